"""Processes that are killed, frozen and stopped in a step of a durable job."""

import asyncio
import signal
from pathlib import Path

import pytest

import awa_py as awa
from tests.chaos import jobs
from tests.processes import Processes, eventually

pytestmark = pytest.mark.chaos


def runs(directory: Path) -> list[str]:
    """Return what the steps did, in order."""
    log = directory / "runs.log"
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


async def test_step_that_kills_its_process_ends_the_job(
    client: awa.App, awa_processes: Processes, tmp_path: Path
) -> None:
    """The first attempt recorded a step, and does not count."""
    job = await jobs.deadly_step.enqueue()
    awa_processes.worker("--processes", "2")

    async def ended() -> bool:
        return (await client.get(job.id)).state.final

    await eventually("the job has ended", ended, 90)
    found = await client.get(job.id)
    assert (found.state, found.attempt, found.lease) == (awa.State.FAILED, 2, 3)
    assert runs(tmp_path) == ["first", "second", "second", "second"]


async def test_step_of_a_killed_worker_runs_again_and_the_ones_before_do_not(
    client: awa.App, awa_processes: Processes, tmp_path: Path
) -> None:
    job = await jobs.three_steps.enqueue(seconds=1)
    first = awa_processes.worker()
    await eventually("the second step runs", lambda: "second" in runs(tmp_path))
    first.send(signal.SIGKILL)
    awa_processes.worker()
    assert await client.result(job.id, timeout="60s") == "done"
    assert runs(tmp_path) == ["first", "second", "second", "second-done", "third"]


async def test_sigterm_waits_for_the_step_and_not_for_the_job(
    client: awa.App, awa_processes: Processes, tmp_path: Path
) -> None:
    job = await jobs.three_steps.enqueue(seconds=1)
    first = awa_processes.worker()
    await eventually("the second step runs", lambda: "second" in runs(tmp_path))
    first.send(signal.SIGTERM)
    assert await asyncio.to_thread(first.wait) == 0
    assert runs(tmp_path) == ["first", "second", "second-done"]
    found = await client.get(job.id)
    assert (found.state, found.attempt, found.errors) == (awa.State.AVAILABLE, 0, [])
    awa_processes.worker()
    assert await client.result(job.id, timeout="60s") == "done"
    assert runs(tmp_path) == ["first", "second", "second-done", "third"]


async def test_frozen_worker_records_nothing_after_its_lease(
    client: awa.App, awa_processes: Processes, tmp_path: Path
) -> None:
    job = await jobs.three_steps.enqueue(seconds=2)
    frozen = awa_processes.worker()
    await eventually("the second step runs", lambda: "second" in runs(tmp_path))
    frozen.send(signal.SIGSTOP)
    awa_processes.worker()
    assert await client.result(job.id, timeout="60s") == "done"
    row = await client.pool.fetchrow("SELECT checkpoints::text, lease FROM awa.completed WHERE id = $1", job.id)
    frozen.send(signal.SIGCONT)
    await eventually("it found that it lost the job", lambda: "lost" in frozen.output or "lease" in frozen.output)
    frozen.send(signal.SIGTERM)
    await asyncio.to_thread(frozen.wait)
    assert await client.pool.fetchval("SELECT count(*) FROM awa.checkpoints") == 0
    again = await client.pool.fetchrow("SELECT checkpoints::text, lease FROM awa.completed WHERE id = $1", job.id)
    assert row == again
    assert runs(tmp_path).count("third") == 1
