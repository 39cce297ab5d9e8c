"""pgqueuer with asyncpg: batches of 500, a pool of 10.

Its claims and log flushes share one pool, and its log buffer is flushed at batch_size jobs: a batch of 500 makes both
cheap, and ten connections let them overlap. Its log table keeps a row of each finished job, without the payload.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from pgqueuer import QueueManager  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]

from tests.bench.peers.kit.contender import Client, Contender, OnStart
from tests.bench.peers.kit.main import main
from tests.bench.peers.kit.shape import Shape

BATCH = 500
POOL = 10


async def skip_reset(connection: Any) -> None:
    """Do not reset connections: asyncpg's pool would need a round trip for that after each use."""


class PgqueuerClient:
    def __init__(self, queries: Any, shape: Shape) -> None:
        self._queries = queries
        self._arguments = shape.arguments()
        self._entrypoints = shape.queue_names()
        self._is_unique = shape.unique

    async def enqueue(self, number: int) -> Any:
        options = {"dedupe_key": str(number)} if self._is_unique else {}
        return await self._queries.enqueue(self._entrypoint(number), self._payload(number), **options)

    async def enqueue_many(self, numbers: Sequence[int]) -> Any:
        entrypoints, payloads = map(self._entrypoint, numbers), map(self._payload, numbers)
        return await self._queries.enqueue(list(entrypoints), list(payloads), [0] * len(numbers))

    def _entrypoint(self, number: int) -> str:
        return self._entrypoints[number % len(self._entrypoints)]

    def _payload(self, number: int) -> bytes:
        return json.dumps(self._arguments(number)).encode()


class Pgqueuer(Contender):
    UNFINISHED = "SELECT EXISTS (SELECT FROM pgqueuer)"

    async def install(self) -> None:
        connection = await asyncpg.connect(self.url)
        await Queries.from_asyncpg_connection(connection).install()
        await connection.close()

    @asynccontextmanager
    async def client(self, connections: int) -> AsyncIterator[Client]:
        if connections == 1:
            connection = await asyncpg.connect(self.url)
            yield PgqueuerClient(Queries.from_asyncpg_connection(connection), self.shape)
            await connection.close()
        else:
            async with asyncpg.create_pool(
                self.url, min_size=connections, max_size=connections, reset=skip_reset
            ) as pool:
                yield PgqueuerClient(Queries.from_asyncpg_pool(pool), self.shape)

    @asynccontextmanager
    async def worker(self, on_start: OnStart) -> AsyncIterator[None]:
        shape = self.shape
        handler = shape.handler(on_start, lambda job: json.loads(job.payload)["n"])

        async def run_in_thread(job: Any) -> None:
            await asyncio.to_thread(handler, job)  # what it asks for: it accepts no sync functions

        async with asyncpg.create_pool(self.url, min_size=POOL, max_size=POOL, reset=skip_reset) as pool:
            manager = QueueManager(Queries.from_asyncpg_pool(pool))
            for name in shape.queue_names():
                manager.entrypoint(name, concurrency_limit=shape.max_workers)(run_in_thread if shape.sync else handler)
            # It accepts no batch of more than half of the slots.
            slots = shape.concurrency
            sizes = (
                {"batch_size": slots // 2, "max_concurrent_tasks": slots}
                if slots
                else {"batch_size": shape.batch_size(BATCH)}
            )
            running = asyncio.create_task(manager.run(**sizes))
            try:
                yield
            finally:
                manager.shutdown.set()
                await running


if __name__ == "__main__":
    logging.getLogger("pgqueuer").setLevel(logging.WARNING)
    main(Pgqueuer)
