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

CONCURRENCY = 5
POOL = 5


class ProcrastinateClient:
    def __init__(self, task: Any) -> None:
        self._task = task

    async def enqueue(self, number: int) -> Any:
        return await self._task.defer_async(n=number)

    async def enqueue_many(self, numbers: Sequence[int]) -> Any:
        return await self._task.batch_defer_async(*({"n": number} for number in numbers))


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

        async def noop(n: int) -> None: ...

        async with app.open_async():
            yield ProcrastinateClient(app.task(noop, name="noop", queue="default"))

    @asynccontextmanager
    async def worker(self, on_start: OnStart) -> AsyncIterator[None]:
        app = self._app(POOL)

        async def noop(n: int) -> None:
            on_start(n)

        app.task(noop, name="noop", queue="default")
        async with app.open_async():
            working = asyncio.create_task(app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False))
            try:
                yield
            finally:
                working.cancel()
                await asyncio.wait([working])


if __name__ == "__main__":
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    main(Procrastinate)
