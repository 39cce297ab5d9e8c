"""Workers whose session ended: their jobs are rescued long before their heartbeats are stale. Workers that are frozen
or lost their database keep their jobs."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import awa_py as awa
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.embedded import EmbeddedPostgres, ShutdownMode
from tests.chaos import jobs
from tests.processes import Process, Processes, eventually, processes

pytestmark = pytest.mark.chaos

# Heartbeats are stale after 90 seconds, as by default: only the end of the session can be noticed in time.
GONE_AFTER_S = 2
LONG_LEASES = {"AWA_GONE_AFTER": f"{GONE_AFTER_S}s", "AWA_REPORT_INTERVAL": "500ms", "AWA_SHARE_STALENESS": "2s"}
RESCUED_WITHIN_S = 60
CLAIMED = (
    "SELECT count(*) FROM awa.running r JOIN awa.workers w ON w.id = r.worker_id "
    "WHERE w.pid = $1 AND w.locked_on IS NOT NULL"
)


@pytest.fixture
def started(database_url: str, tmp_path: Path) -> Iterator[Processes]:
    with processes(tmp_path, database_url, LONG_LEASES) as started:
        yield started


async def start_naps(client: awa.App, worker: Process, number: int, seconds: float) -> list[int]:
    """Enqueue jobs and wait until this worker runs them all."""
    enqueued = await client.enqueue_many([jobs.nap.new(seconds=seconds) for _ in range(number)])

    async def all_run() -> bool:
        return bool(await client.pool.fetchval(CLAIMED, worker.pid) == number)

    await eventually("the jobs run", all_run)
    return [job.id for job in enqueued]


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "other worker"])
async def test_jobs_of_a_killed_worker_are_rescued_early(client: awa.App, started: Processes, leads: bool) -> None:
    killed = started.worker(*([] if leads else ["--no-maintenance"]))
    if leads:
        await eventually("it is the leader", lambda: "elected as the leader" in killed.output)
    ids = await start_naps(client, killed, 5, 3600)
    started.worker()
    killed.send(signal.SIGKILL)

    async def all_run_again() -> bool:
        found = [await client.get(job_id) for job_id in ids]
        return all(job.attempt == 2 and job.state == "running" for job in found)

    await eventually("the other worker runs them", all_run_again, RESCUED_WITHIN_S)
    errors = [(await client.get(job_id)).errors[-1]["error"] for job_id in ids]
    assert errors == ["worker gone: its session ended"] * 5
    await eventually("the worker's row is deleted", lambda: are_registered(client, 1))


async def test_share_of_a_killed_worker_goes_to_the_others(client: awa.App, started: Processes) -> None:  # F6
    started.worker()
    killed = started.worker("--no-maintenance")

    async def are_split(*slots: int) -> bool:
        return bool(await client.pool.fetchval("SELECT array_agg(slots ORDER BY slots) FROM awa.slots") == list(slots))

    await eventually("both workers are registered", lambda: are_registered(client, 2))
    await client.pool.execute("UPDATE awa.queues SET max_workers = 7")
    await eventually("the slots are split", lambda: are_split(3, 4))
    killed.send(signal.SIGKILL)
    await eventually("the other worker has all slots", lambda: are_split(7), RESCUED_WITHIN_S)


async def are_registered(client: awa.App, number: int) -> bool:
    return bool(await client.pool.fetchval("SELECT count(*) FROM awa.workers") == number)


async def test_frozen_worker_keeps_its_jobs(client: awa.App, started: Processes) -> None:
    leader = started.worker()
    frozen = started.worker("--no-maintenance")
    await eventually("both workers are registered", lambda: are_registered(client, 2))
    await make_quiet(client, leader)  # so that the other worker claims the jobs
    ids = await start_naps(client, frozen, 3, 8)
    frozen.send(signal.SIGSTOP)
    silent = "SELECT now() - heartbeat_at > $2 * interval '1 second' FROM awa.workers WHERE pid = $1"

    async def is_silent() -> bool:
        return bool(await client.pool.fetchval(silent, frozen.pid, 2.5 * GONE_AFTER_S))

    await eventually("it has been silent for more than twice the time", is_silent)
    assert await client.pool.fetchval(CLAIMED, frozen.pid) == 3
    frozen.send(signal.SIGCONT)
    for job_id in ids:
        await client.result(job_id, timeout="60s")
        job = await client.get(job_id)
        assert (job.attempt, job.rescues) == (1, 0)


async def make_quiet(client: awa.App, worker: Process) -> None:
    """Make a worker claim nothing, and wait until it knows."""
    set_quiet = "UPDATE awa.workers SET quiet = true WHERE pid = $1 RETURNING heartbeat_at"
    before = await client.pool.fetchval(set_quiet, worker.pid)

    async def has_reported_twice() -> bool:
        query = "SELECT heartbeat_at > $2::timestamptz + interval '1 second' FROM awa.workers WHERE pid = $1"
        return bool(await client.pool.fetchval(query, worker.pid, before))

    await eventually("the worker is quiet", has_reported_twice)


@pytest.mark.parametrize("mode", ["fast", "kill"])
async def test_workers_keep_their_jobs_after_a_restart_of_postgresql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: ShutdownMode
) -> None:
    with EmbeddedPostgres() as server:
        await migrations.migrate(Database(server.url, Schema()))
        monkeypatch.setenv("AWA_DATABASE_URL", server.url)
        with processes(tmp_path, server.url, LONG_LEASES) as started:
            worker = started.worker()
            async with jobs.app as client:
                ids = await start_naps(client, worker, 3, 15)
                # Claims do not wait for the disk; this does, and their WAL is written with it.
                await client.pool.execute("UPDATE awa.queues SET updated_at = now()")
                await asyncio.to_thread(server.stop_server, mode)
                os.kill(worker.pid, signal.SIGSTOP)  # it cannot reconnect in time
                await asyncio.to_thread(server.start_server)
                leader = started.start("maintenance")
                await eventually("there is a leader", lambda: "elected as the leader" in leader.output, 60)
                await asyncio.sleep(2.5 * GONE_AFTER_S)  # nothing to wait for: the leader must not rescue
                assert await client.pool.fetchval("SELECT count(*) FROM awa.running") == 3
                os.kill(worker.pid, signal.SIGCONT)
                for job_id in ids:
                    await client.result(job_id, timeout="60s")
                    assert (await client.get(job_id)).attempt == 1
