"""The worker beside the process that measures: `awa worker` with its defaults."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from awa_py.db.database import Database
from awa_py.db.types import Connection

from ..beside import LOOK_EVERY_S, Beside, worker_beside
from .scratch import QUEUE

APP = "awa_cli.bench.jobs:app"
# It is in the registry, and it leads: the first tasks of a new leader are not to fall into the measurement.
READY = "SELECT EXISTS (SELECT FROM awa.workers) AND EXISTS (SELECT FROM awa.leader WHERE worker_id IS NOT NULL)"


@contextmanager
def bench_worker(database: Database) -> Iterator[Beside]:
    """Its jobs are those of the bench."""
    with worker_beside(database, [APP, "-q", QUEUE], {}) as started:
        yield started


async def until_ready(worker: Beside, connection: Connection, database: Database) -> None:
    """Waits until it is at work."""

    async def is_ready() -> bool:
        return bool(await connection.fetchval(database.schema.qualify(READY)))

    async def stopped() -> bool:
        await asyncio.sleep(LOOK_EVERY_S)
        return False

    await worker.wait_until(is_ready, stopped)
