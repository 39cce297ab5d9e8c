"""The worker process of a benchmark: `awa worker` with its defaults and the jobs of `bench.jobs`."""

import asyncio
from contextlib import AbstractContextManager

from awa_py.connections import Connection
from awa_py.db.database import Database

from ..worker_process import POLL_INTERVAL_S, WorkerProcess, start_worker
from .temporary_schema import QUEUE

APP = "awa_cli.bench.jobs:app"
# It must also be the leader, because the first tasks of a new leader would disturb the measurement.
IS_READY = "SELECT EXISTS (SELECT FROM awa.workers) AND EXISTS (SELECT FROM awa.leader WHERE worker_id IS NOT NULL)"


def start_bench_worker(database: Database) -> AbstractContextManager[WorkerProcess]:
    return start_worker(database, [APP, "-q", QUEUE], {})


async def wait_until_ready(worker: WorkerProcess, connection: Connection, database: Database) -> None:
    async def is_ready() -> bool:
        return bool(await connection.fetchval(database.schema.qualify(IS_READY)))

    async def is_stopped() -> bool:
        await asyncio.sleep(POLL_INTERVAL_S)
        return False

    await worker.wait_until(is_ready, is_stopped)
