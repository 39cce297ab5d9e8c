"""The worker process of a benchmark: `awa worker` with its defaults and the jobs of `bench.jobs`."""

import asyncio
from contextlib import AbstractContextManager

from awa_py.connections import Connection
from awa_py.db.database import Database

from ..worker_process import POLL_INTERVAL_S, WorkerProcess, start_worker
from .temporary_schema import QUEUE

APP = "awa_cli.bench.jobs:app"
# It must also be the leader, because the first tasks of a new leader would disturb the measurement.
IS_READY = """
    SELECT (SELECT count(*) FROM awa.workers) >= $1 AND EXISTS (SELECT FROM awa.leader WHERE worker_id IS NOT NULL)
"""


def start_bench_worker(
    database: Database, *, processes: int = 1, concurrency: int | None = None
) -> AbstractContextManager[WorkerProcess]:
    arguments = [APP, "-q", QUEUE, "--processes", str(processes)]
    if concurrency is not None:
        arguments += ["--concurrency", str(concurrency)]
    return start_worker(database, arguments, {})


async def wait_until_ready(
    worker: WorkerProcess, connection: Connection, database: Database, *, processes: int = 1
) -> None:
    async def is_ready() -> bool:
        return bool(await connection.fetchval(database.schema.qualify(IS_READY), processes))

    async def is_stopped() -> bool:
        await asyncio.sleep(POLL_INTERVAL_S)
        return False

    await worker.wait_until(is_ready, is_stopped)
