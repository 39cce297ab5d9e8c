"""Durable jobs whose workers are killed at random moments, while PostgreSQL is restarted."""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

import awa_py as awa
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.errors import CONNECTION_LOST, CONNECTION_REFUSED
from awa_py.db.schema import Schema
from awa_py.embedded import EmbeddedPostgres
from tests.chaos import durable_jobs
from tests.processes import FAST, Process, Processes, processes

pytestmark = pytest.mark.chaos

T = TypeVar("T")
KILLS = int(os.environ.get("AWA_TEST_KILLS", "15"))
KILLS_PER_RESTART = 10  # of PostgreSQL
WORKERS = 4
JOBS = 10  # at a time


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """A separate server with fsync, because it will be killed."""
    with EmbeddedPostgres() as server:
        yield server


def start_worker(awa_processes: Processes) -> Process:
    return awa_processes.start("worker", "tests.chaos.durable_jobs:app", "-q", "default", "--concurrency", "20")


async def kill_workers(server: EmbeddedPostgres, awa_processes: Processes) -> None:
    """Kill workers at random moments and replace them. Restart PostgreSQL now and then."""
    chance = random.Random(KILLS)
    workers = [start_worker(awa_processes) for _ in range(WORKERS)]
    await asyncio.sleep(1)
    for kill in range(KILLS):
        await asyncio.sleep(chance.uniform(0.5, 2.0))
        n = chance.randrange(WORKERS)
        workers[n].send(signal.SIGKILL)
        workers[n].wait()
        workers[n] = start_worker(awa_processes)
        if kill % KILLS_PER_RESTART == KILLS_PER_RESTART - 1:
            await asyncio.to_thread(server.stop_server, chance.choice(("fast", "kill")))
            await asyncio.to_thread(server.start_server)


async def run_jobs(app: awa.App, killing: "asyncio.Task[None]") -> dict[int, int]:
    """Run jobs, some at a time, until the kills are over. Return the results by number."""
    results: dict[int, int] = {}

    async def run(number: int) -> None:
        job = await repeat(lambda: durable_jobs.marathon.enqueue(number))
        await repeat(lambda: app.signal(job.id, "go", number * 1000, key="once"))
        results[number] = await repeat(lambda: app.result(job.id, timeout="120s"))

    numbers = iter(range(10_000))

    async def run_until_over() -> None:
        while not killing.done():
            await run(next(numbers))

    await asyncio.gather(*[run_until_over() for _ in range(JOBS)])
    await killing
    return results


async def repeat(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call while the database is away."""
    while True:
        try:
            return await call()
        except (*CONNECTION_LOST, *CONNECTION_REFUSED):
            await asyncio.sleep(0.2)


async def test_killed_workers_repeat_nothing_that_was_recorded(  # Y1 Y2
    server: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrations.migrate(Database(server.url, Schema()))
    monkeypatch.setenv("AWA_DATABASE_URL", server.url)
    with processes(tmp_path, server.url, FAST) as awa_processes:
        async with durable_jobs.app as app:
            await app.pool.execute("CREATE TABLE public.booked (number int, value int)")
            killing = asyncio.create_task(kill_workers(server, awa_processes))
            results = await run_jobs(app, killing)
            booked = await app.pool.fetch("SELECT number, value, count(*) FROM public.booked GROUP BY 1, 2")
            rows = await app.pool.fetch("SELECT state, attempt, max_attempts FROM awa.jobs")
            left = await app.pool.fetchval("SELECT count(*) FROM awa.checkpoints")
    steps = Counter((tmp_path / "runs.log").read_text().splitlines())
    again = sum(steps.values()) - len(steps)
    print(f"{len(results)} jobs, {KILLS} kills, {len(steps)} steps, {again} of them ran again")
    assert results == {number: durable_jobs.expected(number, number * 1000) for number in results}
    assert {row["count"] for row in booked} == {1}
    assert len(booked) == 10 * len(results)
    assert max(steps.values()) <= 1 + KILLS
    assert {row["state"] for row in rows} == {"completed"}
    assert all(row["attempt"] <= row["max_attempts"] for row in rows)
    assert left == 0
