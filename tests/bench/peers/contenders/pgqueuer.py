"""pgqueuer with asyncpg: batches of 500, a pool of 10.

Its claims and log flushes share one pool, and its log buffer is flushed at batch_size jobs: a batch of 500 makes both
cheap, and ten connections let them overlap. Its log table keeps a row of each finished job, without the payload.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from pgqueuer import QueueManager  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]

from tests.bench.peers.kit.contender import Client, Contender, OnStart
from tests.bench.peers.kit.main import main

BATCH = 500
POOL = 10


async def skip_reset(connection: Any) -> None:
    """Do not reset connections: asyncpg's pool would need a round trip for that after each use."""


class PgqueuerClient:
    def __init__(self, queries: Any) -> None:
        self._queries = queries

    async def enqueue(self, number: int) -> Any:
        return await self._queries.enqueue("noop", b'{"n": %d}' % number)

    async def enqueue_many(self, numbers: Sequence[int]) -> Any:
        size = len(numbers)
        return await self._queries.enqueue(["noop"] * size, [b'{"n": %d}' % n for n in numbers], [0] * size)


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
            yield PgqueuerClient(Queries.from_asyncpg_connection(connection))
            await connection.close()
        else:
            async with asyncpg.create_pool(
                self.url, min_size=connections, max_size=connections, reset=skip_reset
            ) as pool:
                yield PgqueuerClient(Queries.from_asyncpg_pool(pool))

    @asynccontextmanager
    async def worker(self, on_start: OnStart) -> AsyncIterator[None]:
        async def noop(job: Any) -> None:
            on_start(int(job.payload[6:-1]))

        async with asyncpg.create_pool(self.url, min_size=POOL, max_size=POOL, reset=skip_reset) as pool:
            manager = QueueManager(Queries.from_asyncpg_pool(pool))
            manager.entrypoint("noop")(noop)
            running = asyncio.create_task(manager.run(batch_size=BATCH))
            try:
                yield
            finally:
                manager.shutdown.set()
                await running


if __name__ == "__main__":
    logging.getLogger("pgqueuer").setLevel(logging.WARNING)
    main(Pgqueuer)
