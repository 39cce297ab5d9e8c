"""procrastinate with psycopg (the compiled one) and uvloop.

It claims and finishes one job per statement, so only the number of concurrent statements can be tuned. A pool much
larger than the number of cores only adds contention at the head of the queue.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import procrastinate  # type: ignore[import-not-found]

from tests.bench.peers.kit.contender import Client, Contender, OnStart
from tests.bench.peers.kit.main import main
from tests.bench.peers.kit.shape import Shape

CONCURRENCY = 5
POOL = 5


class ProcrastinateClient:
    def __init__(self, task: Any, shape: Shape) -> None:
        self._task = task
        self._queues = shape.queue_names()
        self._arguments = shape.arguments()
        self._is_unique = shape.unique

    async def enqueue(self, number: int) -> Any:
        task = self._task.configure(queueing_lock=str(number)) if self._is_unique else self._task
        return await task.defer_async(**self._arguments(number))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        for index, queue in enumerate(self._queues):
            share = [self._arguments(number) for number in numbers if number % len(self._queues) == index]
            await self._task.configure(queue=queue).batch_defer_async(*share)


class Procrastinate(Contender):
    UNFINISHED = "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))"

    def _app(self, connections: int) -> Any:
        pool = {"min_size": connections, "max_size": connections}
        return procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=self.url, **pool))

    async def install(self) -> None:
        app = self._app(1)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def client(self, connections: int) -> AsyncIterator[Client]:
        app = self._app(connections)

        async def noop(n: int, text: str = "") -> None: ...

        async with app.open_async():
            yield ProcrastinateClient(app.task(noop, name="noop", queue="default"), self.shape)

    @asynccontextmanager
    async def worker(self, on_start: OnStart) -> AsyncIterator[None]:
        app = self._app(POOL)
        slots = self.shape.concurrency or CONCURRENCY
        app.task(self.shape.handler(on_start, lambda n, text="": n), name="noop", queue="default")
        async with app.open_async():
            working = asyncio.create_task(app.run_worker_async(concurrency=slots, install_signal_handlers=False))
            try:
                yield
            finally:
                working.cancel()
                await asyncio.wait([working])


if __name__ == "__main__":
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    main(Procrastinate)
