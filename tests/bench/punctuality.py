"""Measure how late scheduled jobs start on an idle machine: `python -m tests.bench.punctuality [JOBS]`.

Jobs are due at random times within a few seconds. The delay is the time from run_at to the start of the attempt, both
on the database's clock. A worker, which is also the leader, runs in this process, on an embedded PostgreSQL.
"""

import asyncio
import random
import statistics
import sys

import awa_py as awa
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.embedded import EmbeddedPostgres

SELECT_DELAYS = """
    SELECT extract(epoch FROM attempted_at - run_at)::float8 * 1000 AS ms
    FROM awa.completed WHERE metadata ? 'measured' ORDER BY ms
"""


async def measure(url: str, jobs: int) -> list[float]:
    await migrations.migrate(Database(url, Schema()))
    app = awa.App(url)

    @app.job
    async def punctual() -> None: ...

    async with app:
        worker = app.worker(["default"])
        working = asyncio.create_task(worker.run())
        await app.result((await punctual.enqueue()).id, timeout="30s")
        period_s = jobs / 20
        scheduled = await app.enqueue_many(
            punctual.options(delay=1 + random.random() * period_s, metadata={"measured": True}).new()
            for _ in range(jobs)
        )
        for job in scheduled:
            await app.result(job.id, timeout="60s")
        delays_ms = [row["ms"] for row in await app.pool.fetch(SELECT_DELAYS)]
        worker.stop()
        await working
    return delays_ms


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with EmbeddedPostgres() as server:
        delays_ms = asyncio.run(measure(server.url, jobs))
    p50, p99 = statistics.median(delays_ms), delays_ms[int(len(delays_ms) * 0.99)]
    print(f"{jobs} scheduled jobs started late by p50 {p50:.1f} ms, p99 {p99:.1f} ms, at most {delays_ms[-1]:.1f} ms")


if __name__ == "__main__":
    main()
