"""Workers that are killed, frozen and stopped while they run jobs."""

import signal
from pathlib import Path

import pytest

import awa_py as awa
from tests.chaos import jobs
from tests.processes import Processes, eventually

pytestmark = pytest.mark.chaos


async def count(client: awa.App, state: str) -> int:
    found: int = await client.pool.fetchval("SELECT count(*) FROM awa.jobs WHERE state = $1", state)
    return found


async def test_stale_jobs_of_a_killed_worker_are_finished_by_another(  # A10 A15 Y1
    client: awa.App, awa_processes: Processes
) -> None:
    only_stale = {"AWA_GONE_AFTER": "1h"}
    first = awa_processes.worker("--concurrency", "100", env=only_stale)
    await client.enqueue_many([jobs.sleep_once.new() for _ in range(100)])

    async def all_running() -> bool:
        return await count(client, "running") == 100

    await eventually("100 jobs run", all_running)
    first.send(signal.SIGKILL)
    awa_processes.worker("--concurrency", "100", env=only_stale)

    async def all_completed() -> bool:
        return await count(client, "completed") == 100

    await eventually("all are completed by the second worker", all_completed, 60)
    rows = await client.pool.fetch("SELECT attempt, rescues, errors, lease FROM awa.jobs")
    assert {(row["attempt"], row["rescues"]) for row in rows} == {(2, 1)}
    assert all("heartbeat stale: worker presumed dead" in row["errors"] for row in rows)


async def test_rescues_do_not_exceed_max_attempts(  # A15
    client: awa.App, awa_processes: Processes, tmp_path: Path
) -> None:
    job = await jobs.poison.enqueue()  # it kills every process that runs it
    awa_processes.worker("--processes", "2")

    async def ended() -> bool:
        return (await client.get(job.id)).state.final

    await eventually("the poison job has ended", ended, 90)
    job = await client.get(job.id)
    assert job.state == "failed"
    assert (job.attempt, job.rescues) == (3, 3)
    runs = (tmp_path / "runs.log").read_text().splitlines()
    assert [line.split()[2] for line in runs] == ["1", "2", "3"]
    quick = await jobs.quick.enqueue()
    await client.result(quick.id, timeout="60s")  # the processes were started again


async def test_stopped_worker_lets_jobs_finish_and_releases_the_rest(  # F19
    client: awa.App, awa_processes: Processes
) -> None:
    short = await client.enqueue_many([jobs.nap.new(seconds=1) for _ in range(10)])
    long = await client.enqueue_many([jobs.nap.new(seconds=3600) for _ in range(10)])
    stubborn = await jobs.stubborn.enqueue(seconds=3600)
    worker = awa_processes.worker("--shutdown-timeout", "3s", "--no-maintenance")

    async def all_running() -> bool:
        return await count(client, "running") == 21

    await eventually("all run", all_running)
    worker.send(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert {(await client.get(job.id)).state for job in short} == {"completed"}
    for job in [*long, stubborn]:
        now = await client.get(job.id)
        assert (now.state, now.attempt) == ("available", 0)
    assert await client.pool.fetchval("SELECT count(*) FROM awa.workers") == 0


async def test_second_signal_ends_a_worker_immediately(client: awa.App, awa_processes: Processes) -> None:  # F19
    job = await jobs.nap.enqueue(seconds=3600)
    worker = awa_processes.worker("--shutdown-timeout", "1h")

    async def running() -> bool:
        return (await client.get(job.id)).state == "running"

    await eventually("the job runs", running)
    worker.send(signal.SIGTERM)
    await eventually("the worker drains", lambda: "waiting up to" in worker.output)
    worker.send(signal.SIGTERM)
    worker.wait(20)
    now = await client.get(job.id)
    assert (now.state, now.attempt) == ("available", 0)


async def test_frozen_worker_does_not_change_a_newer_attempt(  # A19 F12 P7
    client: awa.App, awa_processes: Processes, tmp_path: Path
) -> None:
    job = await jobs.stubborn.enqueue(seconds=6)
    frozen = awa_processes.worker("--no-maintenance")

    async def running() -> bool:
        return (await client.get(job.id)).state == "running"

    await eventually("the job runs", running)
    frozen.send(signal.SIGSTOP)
    awa_processes.worker()

    async def taken_over() -> bool:
        return (await client.get(job.id)).attempt == 2

    await eventually("the second attempt runs", taken_over, 30)
    frozen.send(signal.SIGCONT)
    await eventually(
        "the frozen worker learns that it lost its lease", lambda: "the lease was lost" in frozen.output, 30
    )
    now = await client.get(job.id)
    assert now.attempt == 2
    assert now.state in ("running", "completed")
    assert await client.result(job.id, timeout="60s") == {"attempt": 2}
    done = await client.get(job.id)
    assert (done.attempt, done.lease, done.rescues) == (2, 2, 1)


async def test_cancel_from_another_process_reaches_the_handler(client: awa.App, awa_processes: Processes) -> None:  # F7
    job = await jobs.nap.enqueue(seconds=3600)
    awa_processes.worker()

    async def running() -> bool:
        return (await client.get(job.id)).state == "running"

    await eventually("the job runs", running)
    assert await client.cancel(job.id)
    with pytest.raises(awa.JobCancelled, match="cancelled by user"):
        await client.result(job.id, timeout="10s")
