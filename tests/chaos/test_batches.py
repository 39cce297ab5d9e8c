"""Workers that are killed or stopped during a batch. This module is also the app that they run."""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

import awa_py as awa
from tests.processes import Processes, eventually

pytestmark = pytest.mark.chaos

app = awa.App()


def note(word: str, jobs: list[awa.BatchJob]) -> None:
    lines = "".join(f"{word} {job.id} {job.attempt} {os.getpid()}\n" for job in jobs)
    with open(os.environ["AWA_TEST_LOG"], "a", encoding="utf-8") as log:
        log.write(lines)


@app.job(batch=20, linger="0.2s")
async def hang_once(jobs: list[awa.BatchJob]) -> None:
    """Complete every fourth job. Sleep forever if another job is in its first attempt."""
    note("start", jobs)
    for job in jobs:
        if job.args["number"] % 4 == 0:
            job.complete(job.attempt)
    if any(job.attempt == 1 and not job.settled for job in jobs):
        await asyncio.sleep(3600)
    note("done", jobs)


@app.job(batch=20, linger="4s")
async def gather(jobs: list[awa.BatchJob]) -> None:
    note("start", jobs)


async def count(client: awa.App, state: str) -> int:
    found: int = await client.pool.fetchval("SELECT count(*) FROM awa.jobs WHERE state = $1", state)
    return found


async def test_killed_batch_runs_again_without_its_settled_jobs(
    client: awa.App, awa_processes: Processes, tmp_path: Path
) -> None:
    first = awa_processes.start("worker", "tests.chaos.test_batches:app", "-q", "default", "--concurrency", "3")
    jobs = await client.enqueue_many([client.new("hang_once", {"number": number}) for number in range(60)])

    async def three_batches_sleep() -> bool:
        return (await count(client, "running"), await count(client, "completed")) == (45, 15)

    await eventually("three batches run, and a quarter of their jobs is settled", three_batches_sleep)
    first.send(signal.SIGKILL)
    awa_processes.start("worker", "tests.chaos.test_batches:app", "-q", "default", "--concurrency", "3")

    async def all_completed() -> bool:
        return await count(client, "completed") == 60

    await eventually("all are completed by the second worker", all_completed, 60)
    rows = await client.pool.fetch("SELECT id, attempt, rescues FROM awa.jobs ORDER BY id")
    by_id = {row["id"]: (row["attempt"], row["rescues"]) for row in rows}
    assert by_id == {job.id: (1, 0) if number % 4 == 0 else (2, 1) for number, job in enumerate(jobs)}
    started = Counter(line.split()[1] for line in (tmp_path / "runs.log").read_text().splitlines() if "start" in line)
    assert started == {str(job.id): 1 if number % 4 == 0 else 2 for number, job in enumerate(jobs)}


async def test_stopped_batch_is_released_without_counting_the_attempt(
    client: awa.App, awa_processes: Processes
) -> None:
    worker = awa_processes.start(
        "worker", "tests.chaos.test_batches:app", "-q", "default", "--shutdown-timeout", "1s", "--no-maintenance"
    )
    await client.enqueue_many([client.new("hang_once", {"number": 1}) for _ in range(30)])

    async def all_running() -> bool:
        return await count(client, "running") == 30

    await eventually("all jobs are claimed", all_running)
    worker.send(signal.SIGTERM)
    assert worker.wait(30) == 0
    rows = await client.pool.fetch("SELECT DISTINCT state, attempt FROM awa.jobs")
    assert [tuple(row) for row in rows] == [("available", 0)]


async def test_batch_that_gathered_through_a_freeze_does_not_start(
    client: awa.App, awa_processes: Processes, tmp_path: Path
) -> None:
    """The leases ran out while the worker was frozen. It releases the jobs, and runs them with new leases."""
    worker = awa_processes.start("worker", "tests.chaos.test_batches:app", "-q", "default", "--no-maintenance")
    jobs = await client.enqueue_many([client.new("gather") for _ in range(3)])

    async def all_gathered() -> bool:
        return await count(client, "running") == 3

    await eventually("the worker has them", all_gathered)
    worker.send(signal.SIGSTOP)
    await asyncio.sleep(5)  # longer than the lease and the linger
    worker.send(signal.SIGCONT)
    for job in jobs:
        await client.result(job.id, timeout="60s")
    found = [await client.get(job.id) for job in jobs]
    assert {(job.attempt, job.lease, job.rescues) for job in found} == {(1, 2, 0)}
    assert (tmp_path / "runs.log").read_text().count("start") == 3
