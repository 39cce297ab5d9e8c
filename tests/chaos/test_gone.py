"""Workers that end without a word, by the default settings: their jobs do not wait for 90 seconds, and those of workers
that are frozen, or lost their database, stay theirs."""

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
from awa_py.embedded import EmbeddedPostgres
from tests.chaos import jobs
from tests.processes import Process, Processes, eventually, processes

pytestmark = pytest.mark.chaos

SOONER_THAN_STALE_S = 60  # 90 is when their heartbeats would be stale
RUNNING = (
    "SELECT count(*) FROM awa.running r JOIN awa.workers w ON w.id = r.worker_id "
    "WHERE w.pid = $1 AND w.locked_on IS NOT NULL"
)


@pytest.fixture
def by_default(database_url: str, tmp_path: Path) -> Iterator[Processes]:
    with processes(tmp_path, database_url, {}) as started:
        yield started


async def run_some(client: awa.App, worker: Process, number: int, seconds: float) -> list[int]:
    """So many jobs that this worker runs."""
    enqueued = await client.enqueue_many([jobs.nap.new(seconds=seconds) for _ in range(number)])

    async def all_run() -> bool:
        return bool(await client.pool.fetchval(RUNNING, worker.pid) == number)

    await eventually("the jobs run", all_run)
    return [job.id for job in enqueued]


@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "another"])
async def test_the_jobs_of_a_killed_worker_are_soon_back(client: awa.App, by_default: Processes, leads: bool) -> None:
    doomed = by_default.worker(*([] if leads else ["--no-maintenance"]))
    if leads:
        await eventually("it leads", lambda: "elected as the leader" in doomed.output)
    ids = await run_some(client, doomed, 5, 3600)
    by_default.worker()
    doomed.send(signal.SIGKILL)

    async def all_taken() -> bool:
        found = [await client.get(job_id) for job_id in ids]
        return all(job.attempt == 2 and job.state == "running" for job in found)

    await eventually("another one runs them", all_taken, SOONER_THAN_STALE_S)
    errors = [(await client.get(job_id)).errors[-1]["error"] for job_id in ids]
    assert errors == ["worker gone: its session ended"] * 5

    async def one_left() -> bool:
        return bool(await client.pool.fetchval("SELECT count(*) FROM awa.workers") == 1)

    await eventually("its row goes", one_left)


async def test_the_share_of_a_killed_worker_moves_on(client: awa.App, by_default: Processes) -> None:  # F6
    by_default.worker()
    doomed = by_default.worker("--no-maintenance")
    split = "SELECT array_agg(slots ORDER BY slots) FROM awa.slots"

    async def parts(*wanted: int) -> bool:
        return bool(await client.pool.fetchval(split) == list(wanted))

    await eventually("both are there", lambda: registered(client, 2))
    await client.pool.execute("UPDATE awa.queues SET max_workers = 7")
    await eventually("it is split", lambda: parts(3, 4))
    doomed.send(signal.SIGKILL)
    await eventually("the other one has all", lambda: parts(7), SOONER_THAN_STALE_S)


async def registered(client: awa.App, number: int) -> bool:
    return bool(await client.pool.fetchval("SELECT count(*) FROM awa.workers") == number)


async def test_a_frozen_worker_keeps_its_jobs(client: awa.App, by_default: Processes) -> None:
    by_default.worker()  # leads
    frozen = by_default.worker("--no-maintenance")
    await eventually("both are there", lambda: registered(client, 2))
    first, second = await client.pool.fetch("SELECT pid FROM awa.workers ORDER BY (pid = $1)", frozen.pid)
    assert (first["pid"], second["pid"])[1] == frozen.pid
    await quiet(client, first["pid"])  # so that the other one has the jobs
    ids = await run_some(client, frozen, 3, 20)
    frozen.send(signal.SIGSTOP)
    silent = "SELECT extract(epoch FROM now() - heartbeat_at) > 15 FROM awa.workers WHERE pid = $1"

    async def long_silent() -> bool:
        return bool(await client.pool.fetchval(silent, frozen.pid))

    await eventually("it has been silent for 15 s", long_silent, 60)
    await asyncio.sleep(3)  # the leader looks every two seconds
    assert await client.pool.fetchval(RUNNING, frozen.pid) == 3
    frozen.send(signal.SIGCONT)
    for job_id in ids:
        await client.result(job_id, timeout="60s")
        job = await client.get(job_id)
        assert (job.attempt, job.rescues) == (1, 0)


async def quiet(client: awa.App, pid: int) -> None:
    """Has a worker claim nothing, and waits until it knows."""
    worker_id = await client.pool.fetchval("UPDATE awa.workers SET quiet = true WHERE pid = $1 RETURNING id", pid)
    before = await client.pool.fetchval("SELECT heartbeat_at FROM awa.workers WHERE id = $1", worker_id)

    async def has_looked_twice() -> bool:
        query = "SELECT heartbeat_at > $2::timestamptz + interval '3 seconds' FROM awa.workers WHERE id = $1"
        return bool(await client.pool.fetchval(query, worker_id, before))

    await eventually("it is quiet", has_looked_twice)


@pytest.mark.parametrize("mode", ["fast", "kill"])
async def test_nobody_is_gone_after_postgresql_was_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    with EmbeddedPostgres() as server:
        await migrations.migrate(Database(server.url, Schema()))
        monkeypatch.setenv("AWA_DATABASE_URL", server.url)
        with processes(tmp_path, server.url, {}) as started:
            worker = started.worker()
            async with jobs.app as client:
                ids = await run_some(client, worker, 3, 30)
                # Claims are not waited for by anybody; this is, and they with it.
                await client.pool.execute("UPDATE awa.queues SET updated_at = now()")
                assert mode in ("fast", "kill")
                await asyncio.to_thread(server.stop_server, mode)  # type: ignore[arg-type]
                os.kill(worker.pid, signal.SIGSTOP)  # nobody comes back for longer than it takes to be gone
                await asyncio.to_thread(server.start_server)
                leader = started.start("maintenance")
                await eventually("somebody leads", lambda: "elected as the leader" in leader.output, 60)
                await asyncio.sleep(15)
                assert await client.pool.fetchval("SELECT count(*) FROM awa.running") == 3
                os.kill(worker.pid, signal.SIGCONT)
                for job_id in ids:
                    await client.result(job_id, timeout="60s")
                    assert (await client.get(job_id)).attempt == 1
