"""Measure what `app.result()` costs and how late it is: `python -m tests.bench.results [CALLERS] [JOBS_PER_S]`.

First nothing ends, and the transactions are counted. Then the jobs end in small batches. The delay of a result is the
time from the commit that ended the job. Client and jobs are in this process, on an embedded PostgreSQL.
"""

import asyncio
import statistics
import sys
import time

import awa_py as awa
from awa_py.connections import DedicatedConnection
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.embedded import EmbeddedPostgres

IDLE_S = 10
BATCHES_PER_S = 100
INSERT = "INSERT INTO awa.ready (kind) SELECT 'work' FROM generate_series(1, $1) RETURNING id"
END = """
    WITH ended AS (DELETE FROM awa.ready WHERE id = ANY ($1::bigint[]) RETURNING id, kind)
    INSERT INTO awa.completed (id, kind, worker_id, attempted_at) SELECT id, kind, gen_random_uuid(), now() FROM ended
"""
TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"


async def measure(url: str, callers: int, jobs_per_s: int) -> tuple[float, list[float]]:
    """Return the transactions per second while nothing ends, and the delays of the results in milliseconds."""
    database = Database(url, Schema())
    await migrations.migrate(database)
    connection = await database.connect("bench")
    ids = [row["id"] for row in await connection.fetch(INSERT, callers)]
    ended_at: dict[int, float] = {}
    delays_ms: list[float] = []

    async def wait(app: awa.App, job_id: int) -> None:
        await app.result(job_id)
        delays_ms.append((time.monotonic() - ended_at[job_id]) * 1000)

    async with awa.App(url) as app:
        waiting = [asyncio.create_task(wait(app, job_id)) for job_id in ids]
        await asyncio.sleep(2)
        before, began = await connection.fetchval(TRANSACTIONS), time.monotonic()
        await asyncio.sleep(IDLE_S)
        transactions_per_s = (await connection.fetchval(TRANSACTIONS) - before) / (time.monotonic() - began)
        await end_jobs(connection, ids, jobs_per_s, ended_at)
        await asyncio.gather(*waiting)
    await connection.close()
    return transactions_per_s, sorted(delays_ms)


async def end_jobs(
    connection: DedicatedConnection, ids: list[int], jobs_per_s: int, ended_at: dict[int, float]
) -> None:
    size = max(1, jobs_per_s // BATCHES_PER_S)
    began = time.monotonic()
    for first in range(0, len(ids), size):
        await asyncio.sleep(began + first / jobs_per_s - time.monotonic())
        batch = ids[first : first + size]
        await connection.execute(END, batch)
        ended_at.update(dict.fromkeys(batch, time.monotonic()))


def main() -> None:
    callers = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    jobs_per_s = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000
    with EmbeddedPostgres() as server:
        transactions_per_s, delays_ms = asyncio.run(measure(server.url, callers, jobs_per_s))
    p50, p95 = statistics.median(delays_ms), delays_ms[int(len(delays_ms) * 0.95)]
    print(f"{callers} callers make {transactions_per_s:.1f} transactions/s while they wait")
    print(f"{jobs_per_s} jobs/s end: results after p50 {p50:.1f} ms, p95 {p95:.1f} ms, at most {delays_ms[-1]:.1f} ms")


if __name__ == "__main__":
    main()
