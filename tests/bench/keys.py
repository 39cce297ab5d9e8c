"""Measure the cost of concurrency keys: `python -m tests.bench.keys [JOBS] [ROUNDS]`.

Four processes run the same jobs with 500 keys of limit 2 and without keys, in turn, on one embedded PostgreSQL: first
jobs that do nothing, then jobs that take a millisecond, then again jobs that do nothing, with keys, while another
transaction is held open. Meanwhile, a task repeatedly counts how many jobs of each key run.
"""

import asyncio
import statistics
import subprocess
import sys
from contextlib import ExitStack

import awa_py as awa
from awa_py.background import cancel_and_wait
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.db.types import Connection
from awa_py.embedded import EmbeddedPostgres
from awa_py.store.queues import pause_queue
from awa_py.store.session import Session
from tests.pages import snapshot_held

PROCESSES = 4
KEYS = 500
LIMIT = 2
INSERT_JOBS = """
    INSERT INTO awa.ready (kind, concurrency_key, concurrency_limit, ordered)
    SELECT $5, 'key' || n % $3, $4::smallint, false FROM generate_series(1, $1::int) AS n WHERE $2
    UNION ALL
    SELECT $5, NULL, NULL, NULL FROM generate_series(1, $1) WHERE NOT $2
"""
# Only the latest claims, by the index: reading all rows that died since the last vacuum would use a fifth of a core.
MAX_RUNNING_PER_KEY = """
    SELECT coalesce(max(jobs), 0)
    FROM (SELECT count(*) AS jobs FROM awa.running
          WHERE concurrency_key IS NOT NULL AND claim_number > (SELECT last_value - 10000 FROM awa.claim_number)
          GROUP BY concurrency_key) AS counted
"""
app = awa.App()


@app.job
async def nothing() -> None: ...


@app.job
async def millisecond() -> None:
    await asyncio.sleep(0.001)


async def drain(connection: Connection, jobs: int, *, keyed: bool, kind: str = "nothing") -> float:
    """Return the jobs per second from the moment when the queue is resumed."""
    session = Session(connection, Schema())
    await pause_queue(session, "default", paused=True)
    await asyncio.sleep(3)  # let the workers notice the pause and the empty queue
    await connection.execute(INSERT_JOBS, jobs, keyed, KEYS, LIMIT, kind)
    await connection.execute("VACUUM ANALYZE awa.ready")
    started = await session.now()
    await pause_queue(session, "default", paused=False)
    while await connection.fetchval("SELECT EXISTS (SELECT FROM awa.ready) OR EXISTS (SELECT FROM awa.running)"):
        await asyncio.sleep(0.05)
    ended = await connection.fetchval("SELECT max(finalized_at) FROM awa.completed")
    await connection.execute("TRUNCATE awa.completed")
    return float(jobs / (ended - started).total_seconds())


async def watch_limits(url: str, samples: list[int]) -> None:
    connection = await Database(url, Schema()).connect("bench", {"enable_seqscan": "off"})
    try:
        while True:
            samples.append(await connection.fetchval(MAX_RUNNING_PER_KEY))
            await asyncio.sleep(0.05)
    finally:
        await connection.close()


async def measure(url: str, jobs: int, rounds: int) -> None:
    database = Database(url, Schema())
    await migrations.migrate(database)
    connection = await database.connect("bench")
    samples: list[int] = []
    watching = asyncio.create_task(watch_limits(url, samples))
    command = [
        sys.executable,
        "-m",
        "awa_cli",
        "worker",
        "tests.bench.keys:app",
        "-q",
        "default",
        "--database-url",
        url,
    ]
    with ExitStack() as stack:
        for _ in range(PROCESSES):
            worker = subprocess.Popen(command)
            stack.callback(worker.wait)
            stack.callback(worker.terminate)
        while await connection.fetchval("SELECT count(*) FROM awa.workers") < PROCESSES:
            await asyncio.sleep(0.1)
        await drain(connection, jobs // 5, keyed=False)
        shares: dict[str, float] = {}
        rates: dict[str, list[float]] = {}
        for kind in ("nothing", "millisecond"):
            plain, keyed = [], []
            for n in range(rounds):
                plain.append(await drain(connection, jobs, keyed=False, kind=kind))
                keyed.append(await drain(connection, jobs, keyed=True, kind=kind))
                line = f"{plain[-1]:,.0f} jobs/s of {kind} without keys, {keyed[-1]:,.0f} with"
                print(f"round {n + 1}: {line}", flush=True)
            shares[kind] = statistics.median(b / a for a, b in zip(plain, keyed, strict=True))
            rates[kind] = keyed
        pinned = []
        async with snapshot_held(database):
            for n in range(rounds):
                pinned.append(await drain(connection, jobs, keyed=True))
                print(f"round {n + 1}: {pinned[-1]:,.0f} jobs/s with keys, a transaction open", flush=True)
    await cancel_and_wait(watching)
    await connection.close()
    pinned_share = statistics.median(pinned) / statistics.median(rates["nothing"])
    print(f"{jobs:,} jobs, {KEYS} keys, {LIMIT} at once each, {PROCESSES} processes:")
    print(f"{shares['nothing']:.2f} of the rate without keys, and {pinned_share:.2f} of that with an open transaction;")
    print(f"{shares['millisecond']:.2f} if jobs take a millisecond;")
    print(f"{len(samples):,} samples; at most {max(samples)} jobs of a key ran at once")


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with EmbeddedPostgres() as server:
        asyncio.run(measure(server.url, jobs, rounds))


if __name__ == "__main__":
    main()
