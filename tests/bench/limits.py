"""Measure the cost of limits: `python -m tests.bench.limits [JOBS] [ROUNDS]`.

Four processes drain the same jobs in turn on one embedded PostgreSQL: without limits, with 500 concurrency keys of
limit 2, and with a `max_workers` that does not bind. First the jobs do nothing, then they take a millisecond. At the
end the keyed jobs run again while another transaction holds an old snapshot. All the time, a task counts the running
jobs of each key.
"""

import asyncio
import statistics
import subprocess
import sys
from contextlib import ExitStack

import awa_py as awa
from awa_py.background import cancel_and_wait
from awa_py.connections import Connection
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.embedded import EmbeddedPostgres
from awa_py.store.queues import pause_queue, set_queue
from awa_py.store.session import Session
from tests.pages import snapshot_held

PROCESSES = 4
KEYS = 500
LIMIT = 2
MAX_WORKERS = 1_000_000  # does not bind
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


async def drain(
    connection: Connection, jobs: int, *, keyed: bool = False, max_workers: int | None = None, kind: str = "nothing"
) -> float:
    """Return the jobs per second from the moment when the queue is resumed."""
    session = Session(connection, Schema())
    await pause_queue(session, "default", paused=True)
    await set_queue(session, "default", {"max_workers": max_workers})
    await asyncio.sleep(3)  # let the workers notice the pause, the limit and the empty queue
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
        "tests.bench.limits:app",
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
        await drain(connection, jobs // 5)
        ratios: dict[str, dict[str, float]] = {}
        keyed_rates: list[float] = []
        for kind in ("nothing", "millisecond"):
            rates: dict[str, list[float]] = {"plain": [], "keys": [], "max_workers": []}
            for n in range(rounds):
                rates["plain"].append(await drain(connection, jobs, kind=kind))
                rates["keys"].append(await drain(connection, jobs, kind=kind, keyed=True))
                rates["max_workers"].append(await drain(connection, jobs, kind=kind, max_workers=MAX_WORKERS))
                line = ", ".join(f"{name} {each[-1]:,.0f}" for name, each in rates.items())
                print(f"round {n + 1}, {kind}, jobs/s: {line}", flush=True)
            ratios[kind] = {name: _ratio(rates[name], rates["plain"]) for name in ("keys", "max_workers")}
            keyed_rates = keyed_rates or rates["keys"]
        pinned = []
        async with snapshot_held(database):
            for n in range(rounds):
                pinned.append(await drain(connection, jobs, keyed=True))
                print(f"round {n + 1}, keys and an old snapshot, jobs/s: {pinned[-1]:,.0f}", flush=True)
    await cancel_and_wait(watching)
    await connection.close()
    print(f"{jobs:,} jobs, {PROCESSES} processes; medians, relative to the same jobs without limits:")
    for kind, of_kind in ratios.items():
        print(f"  {kind}: {', '.join(f'{name} {ratio:.2f}' for name, ratio in of_kind.items())}")
    print(f"  old snapshot: {statistics.median(pinned) / statistics.median(keyed_rates):.2f} of the rate with keys")
    print(f"{len(samples):,} samples; at most {max(samples)} jobs of a key ran at once (limit {LIMIT})")


def _ratio(rates: list[float], plain: list[float]) -> float:
    return statistics.median(rate / base for rate, base in zip(rates, plain, strict=True))


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with EmbeddedPostgres() as server:
        asyncio.run(measure(server.url, jobs, rounds))


if __name__ == "__main__":
    main()
