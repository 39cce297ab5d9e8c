"""chancy with the executor for asyncio, uvloop, and no plugins.

`eager_polling` fetches as soon as a job ends instead of once per polling interval. A worker sends its outcomes every
`send_outgoing_interval`, by default once a second.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from chancy import Chancy as App  # type: ignore[import-not-found]
from chancy import Queue, Worker, job

from tests.bench.peers.kit.contender import Client, Contender, OnStart
from tests.bench.peers.kit.main import main

CONCURRENCY = 1000
OUTGOING_S = 0.1
QUIET = logging.getLogger("chancy")

handler: list[OnStart] = []  # chancy imports its jobs by name, so they cannot be closures


async def noop(*, n: int) -> None:
    handler[0](n)


class ChancyClient:
    def __init__(self, app: Any) -> None:
        self._app = app
        self._job = job(queue="default")(noop).job

    async def enqueue(self, number: int) -> Any:
        return await self._app.push(self._job.with_kwargs(n=number))

    async def enqueue_many(self, numbers: Sequence[int]) -> Any:
        jobs = [self._job.with_kwargs(n=number) for number in numbers]
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
            settings = {"executor": App.Executor.Async, "polling_interval": 1, "eager_polling": True}
            await app.declare(Queue("default", concurrency=CONCURRENCY, **settings))

    @asynccontextmanager
    async def client(self, connections: int) -> AsyncIterator[Client]:
        async with self._app(connections) as app:
            yield ChancyClient(app)

    @asynccontextmanager
    async def worker(self, on_start: OnStart) -> AsyncIterator[None]:
        handler.append(on_start)
        async with self._app(5) as app:
            worker = Worker(app, register_signal_handlers=False, shutdown_timeout=1)
            worker.send_outgoing_interval = OUTGOING_S
            async with worker:
                yield


if __name__ == "__main__":
    QUIET.setLevel(logging.WARNING)
    main(Chancy)
