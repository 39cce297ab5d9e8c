"""chancy with the executor for asyncio, uvloop, and no plugins.

`eager_polling` fetches as soon as a job ends instead of once per polling interval. A worker sends its outcomes every
`send_outgoing_interval`, by default once a second.
"""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from chancy import Chancy as App  # type: ignore[import-not-found]
from chancy import Queue, Worker, job

from tests.bench.peers.kit.contender import Client, Contender, OnStart
from tests.bench.peers.kit.main import main
from tests.bench.peers.kit.shape import Shape

CONCURRENCY = 1000
OUTGOING_S = 0.1
QUIET = logging.getLogger("chancy")

THREADS = 100

handler: list[Callable[..., Any]] = []  # chancy imports its jobs by name, so they cannot be closures


async def noop(*, n: int, text: str = "") -> None:
    await handler[0](n)


def noop_in_thread(*, n: int, text: str = "") -> None:
    handler[0](n)


class ChancyClient:
    def __init__(self, app: Any, shape: Shape) -> None:
        self._app = app
        function = noop_in_thread if shape.sync else noop
        self._jobs = [job(queue=name)(function).job for name in shape.queue_names()]
        self._arguments = shape.arguments()
        self._is_unique = shape.unique

    def _new(self, number: int) -> Any:
        new = self._jobs[number % len(self._jobs)].with_kwargs(**self._arguments(number))
        return new.with_unique_key(str(number)) if self._is_unique else new

    async def enqueue(self, number: int) -> Any:
        return await self._app.push(self._new(number))

    async def enqueue_many(self, numbers: Sequence[int]) -> Any:
        jobs = [self._new(number) for number in numbers]
        async for _ in self._app.push_many(jobs, batch_size=len(jobs)):
            pass


class Chancy(Contender):
    UNFINISHED = "SELECT EXISTS (SELECT FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying'))"

    def _app(self, connections: int) -> Any:
        return App(
            self.url,
            min_connection_pool_size=connections,
            max_connection_pool_size=connections,
            no_default_plugins=True,
            log=QUIET,
        )

    async def install(self) -> None:
        async with self._app(1) as app:
            await app.migrate()
            executor = App.Executor.Threaded if self.shape.sync else App.Executor.Async
            settings = {"executor": executor, "polling_interval": 1, "eager_polling": True}
            slots = self.shape.concurrency or (THREADS if self.shape.sync else CONCURRENCY)
            for name in self.shape.queue_names():
                await app.declare(Queue(name, concurrency=slots, **settings))

    @asynccontextmanager
    async def client(self, connections: int) -> AsyncIterator[Client]:
        async with self._app(connections) as app:
            yield ChancyClient(app, self.shape)

    @asynccontextmanager
    async def worker(self, on_start: OnStart) -> AsyncIterator[None]:
        handler.append(self.shape.handler(on_start, lambda n: n))
        async with self._app(5) as app:
            worker = Worker(app, register_signal_handlers=False, shutdown_timeout=1)
            worker.send_outgoing_interval = OUTGOING_S
            async with worker:
                yield


if __name__ == "__main__":
    QUIET.setLevel(logging.WARNING)
    main(Chancy)
