"""Flows and state machines whose workers are killed at random moments."""

import asyncio
import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from pathlib import Path
from typing import Any

import pytest

import awa_py as awa
from tests.chaos import machine_jobs
from tests.processes import Process, Processes, eventually

pytestmark = pytest.mark.chaos  # P1 Y1

KILLS = int(os.environ.get("AWA_TEST_KILLS", "15")) // 3
WORKERS = 3
JOBS = 5  # at a time


@pytest.fixture
async def app(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[awa.App]:
    monkeypatch.setenv("AWA_DATABASE_URL", database_url)
    async with machine_jobs.app as app:
        yield app


class Log:
    """What the handlers have noted: `start PID …` and `end PID …`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, word: str) -> list[str]:
        """Return the notes that begin with this word, in order and without it."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [line.removeprefix(f"{word} ") for line in lines if line.startswith(word)]

    def under_way(self, pids: Set[int]) -> list[int]:
        """Return the processes in which something has started and not ended, out of these."""
        left = Counter(self.read("start")) - Counter(self.read("end"))
        return sorted({int(line.split()[0]) for line in left} & pids)


def start_worker(awa_processes: Processes) -> Process:
    app = "tests.chaos.machine_jobs:app"
    return awa_processes.start("worker", app, "-q", "default", "--concurrency", "20", env={"AWA_GONE_AFTER": "1s"})


async def kill_workers(awa_processes: Processes, log: Log) -> None:
    """Kill workers that run something, at random moments, and replace them."""
    chance = random.Random(KILLS)
    workers = {worker.pid: worker for worker in (start_worker(awa_processes) for _ in range(WORKERS))}
    for _ in range(KILLS):
        await eventually("something runs", lambda: bool(log.under_way(workers.keys())))
        await asyncio.sleep(chance.uniform(0, machine_jobs.SHORT_S))
        victim = workers.pop(chance.choice(log.under_way(workers.keys()) or list(workers)))
        victim.send(signal.SIGKILL)
        victim.wait()
        replacement = start_worker(awa_processes)
        workers[replacement.pid] = replacement


async def run_until_over(killing: "asyncio.Task[None]", run: Callable[[int], Awaitable[None]]) -> int:
    """Run jobs by their numbers, some at a time, until the kills are over. Return how many there were."""
    started = 0

    async def run_some() -> None:
        nonlocal started
        while not killing.done():
            started += 1
            await run(started)

    await asyncio.gather(*[run_some() for _ in range(JOBS)])
    await killing
    return started


async def check_attempts(app: awa.App) -> None:
    """Check that no job has used more attempts than it may, and that all have completed."""
    rows = await app.pool.fetch("SELECT state, attempt, max_attempts FROM awa.jobs")
    assert {row["state"] for row in rows} == {"completed"}
    assert all(row["attempt"] <= row["max_attempts"] for row in rows)
    assert await app.pool.fetchval("SELECT count(*) FROM awa.checkpoints") == 0


async def test_killed_workers_run_each_job_of_a_flow_to_one_end(
    app: awa.App, awa_processes: Processes, tmp_path: Path
) -> None:
    log = Log(tmp_path / "runs.log")

    async def run(number: int) -> None:
        flow = await app.start(machine_jobs.new_flow(number))
        assert await app.result(flow.id, timeout="120s") == machine_jobs.expected(number)

    flows = await run_until_over(asyncio.create_task(kill_workers(awa_processes, log)), run)
    await check_attempts(app)
    children = await app.pool.fetch("SELECT count(*) FROM awa.jobs WHERE parent_id IS NOT NULL GROUP BY parent_id")
    assert [row["count"] for row in children] == [machine_jobs.PARTS + 2] * flows
    starts, expected = len(log.read("start")), flows * (machine_jobs.PARTS + 2)
    print(f"{flows} flows, {KILLS} kills, {expected} jobs, {starts - expected} of them ran again")
    assert starts > expected


async def test_killed_workers_advance_a_machine_by_one_state_at_a_time(
    app: awa.App, awa_processes: Processes, tmp_path: Path
) -> None:
    log = Log(tmp_path / "runs.log")

    async def run(number: int) -> None:
        job: awa.Job[Any] = await machine_jobs.count_up.enqueue(1)
        assert await app.result(job.id, timeout="120s") == machine_jobs.STATES

    machines = await run_until_over(asyncio.create_task(kill_workers(awa_processes, log)), run)
    await check_attempts(app)
    states = defaultdict(list)
    for line in log.read("start"):
        _, _, job_id, state = line.split()
        states[job_id].append(int(state))
    assert len(states) == machines
    for passed in states.values():
        assert passed == sorted(passed)  # no state begins again after a later one has
        assert set(passed) == set(range(1, machine_jobs.STATES + 1))
    starts, expected = len(log.read("start")), machines * machine_jobs.STATES
    print(f"{machines} machines, {KILLS} kills, {expected} states, {starts - expected} of them ran again")
    assert starts > expected
