"""PostgreSQL stops under load and comes back. No job is lost, and awa recovers without help."""

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import awa_py as awa
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.errors import CONNECTION_LOST, CONNECTION_REFUSED
from awa_py.db.schema import Schema
from awa_py.embedded import EmbeddedPostgres, ShutdownMode
from awa_py.model.job import State
from awa_py.store.finish import complete_jobs
from awa_py.store.heartbeat import renew_leases
from awa_py.store.queues import set_queue
from tests.chaos import jobs
from tests.processes import FAST, eventually, processes
from tests.support import HASTY, another_session, claim, look, new_owner, put_one, working

pytestmark = pytest.mark.chaos

BATCH = 50


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """A separate server with fsync, because it will be killed."""
    with EmbeddedPostgres() as server:
        yield server


async def enqueue_until_stopped(app: awa.App, stop: asyncio.Event) -> list[int]:
    """Return the ids of all jobs whose enqueue was acknowledged."""
    acknowledged: list[int] = []
    while not stop.is_set():
        try:
            acknowledged += [job.id for job in await app.enqueue_many([jobs.quick.new() for _ in range(BATCH)])]
        except (*CONNECTION_LOST, *CONNECTION_REFUSED):
            await asyncio.sleep(0.2)
        await asyncio.sleep(0.02)
    return acknowledged


@pytest.mark.parametrize(("mode", "down_s"), [("fast", 1), ("kill", 1), ("fast", 10)])
async def test_jobs_survive_an_outage_of_postgresql(
    server: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: ShutdownMode, down_s: int
) -> None:
    await migrations.migrate(Database(server.url, Schema()))
    monkeypatch.setenv("AWA_DATABASE_URL", server.url)
    long_leases = {**FAST, "AWA_HEARTBEAT_STALENESS": "20s", "AWA_HEARTBEAT_INTERVAL": "2s", "AWA_GONE_AFTER": "10s"}
    with processes(tmp_path, server.url, long_leases) as awa_processes:
        workers = [awa_processes.worker(), awa_processes.worker()]
        async with jobs.app as app:
            stop = asyncio.Event()
            enqueueing = asyncio.create_task(enqueue_until_stopped(app, stop))
            nap = await jobs.nap.enqueue(seconds=5)
            later = await jobs.quick.options(delay="3s").enqueue()
            await asyncio.sleep(1)
            for _ in range(1 if down_s > 5 else 3):
                await asyncio.to_thread(server.stop_server, mode)
                await asyncio.sleep(down_s)
                await asyncio.to_thread(server.start_server)
                await asyncio.sleep(1)
            stop.set()
            acknowledged = [*await enqueueing, nap.id, later.id]

            async def all_completed() -> bool:
                return not await app.pool.fetchval("SELECT count(*) FROM awa.jobs WHERE state <> 'completed'")

            await eventually("all jobs are completed", all_completed, 120)
            kept = {row["id"] for row in await app.pool.fetch("SELECT id FROM awa.completed")}
        assert set(acknowledged) <= kept  # no acknowledged job is lost
        assert all(worker.running for worker in workers)
        runs = Counter(line.split()[1] for line in (tmp_path / "runs.log").read_text().splitlines() if "done" in line)
        assert set(map(str, acknowledged)) <= set(runs)  # each ran at least once
        assert await leaders(server.url) == 1


async def test_jobs_that_finished_during_an_outage_do_not_run_again(  # A20
    server: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outage is longer than the staleness, and the leader is back before the worker."""
    await migrations.migrate(Database(server.url, Schema()))
    monkeypatch.setenv("AWA_DATABASE_URL", server.url)
    staleness_s = 6
    settings = {**FAST, "AWA_HEARTBEAT_STALENESS": f"{staleness_s}s"}
    with processes(tmp_path, server.url, settings) as started:
        worker = started.worker("--no-maintenance")
        leader = started.start("maintenance")
        await eventually("there is a leader", lambda: "elected as the leader" in leader.output)
        async with jobs.app as app:
            enqueued = await app.enqueue_many([jobs.nap.new(seconds=2) for _ in range(20)])
            log = tmp_path / "runs.log"
            await eventually("they all run", lambda: log.exists() and log.read_text().count("start") == 20)
            await asyncio.to_thread(server.stop_server, "fast")
            await asyncio.sleep(staleness_s + 1)
            worker.send(signal.SIGSTOP)
            assert log.read_text().count("done") == 20
            await asyncio.to_thread(server.start_server)
            await eventually("it leads again", lambda: leader.output.count("elected as the leader") == 2)
            await asyncio.sleep(1.5)  # three times the rescue interval
            worker.send(signal.SIGCONT)
            for job in enqueued:
                await app.result(job.id, timeout="60s")
            found = [await app.get(job.id) for job in enqueued]
    assert {(job.attempt, job.rescues) for job in found} == {(1, 0)}
    assert log.read_text().count("start") == 20


async def test_worker_has_one_heartbeat_session_while_synchronous_replication_hangs(server: EmbeddedPostgres) -> None:
    database = Database(server.url, Schema())
    await migrations.migrate(database)
    app = awa.App(server.url, settings=HASTY)
    async with another_session(database) as session:
        connection = session.connection
        async with working(app):
            await connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            await connection.execute("SELECT pg_reload_conf()")
            sent = "SELECT max(heartbeat_at) > now() - interval '1 second' FROM awa.workers"
            for _ in range(12):  # four times the staleness
                await asyncio.sleep(0.5)
                sessions = await connection.fetchval(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'awa heartbeat'"
                )
                assert sessions == 1
            await eventually("heartbeats are sent", lambda: connection.fetchval(sent))
            await connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            await connection.execute("SELECT pg_reload_conf()")


async def test_worker_whose_claim_a_crash_undid_cannot_write_to_the_job(
    server: EmbeddedPostgres,
) -> None:
    database = Database(server.url, Schema())
    await migrations.migrate(database)
    async with another_session(database) as session:
        await session.connection.execute(
            "ALTER SYSTEM SET wal_writer_delay = '10s'"
        )  # so that nothing flushes the claim
        await session.connection.execute("SELECT pg_reload_conf()")
        await asyncio.sleep(1)  # the WAL writer reads it after its current sleep; no view shows that
        job_id = await put_one(session)
    first, second = new_owner(), new_owner()
    async with another_session(database, synchronous_commit="off") as session:  # as workers claim
        (lost,) = await claim(session, worker_id=first)
        await asyncio.to_thread(server.stop_server, "kill")
    await asyncio.to_thread(server.start_server)
    async with another_session(database) as session:
        assert (await look(session, job_id)).state is State.AVAILABLE
        (row,) = await claim(session, worker_id=second)
        assert (row["id"], row["lease"]) == (lost["id"], lost["lease"])
        assert await renew_leases(session, first, [job_id], [lost["lease"]]) == {}
        assert await complete_jobs(session, first, [job_id], [lost["lease"]], None, keep=True) == set()
        assert await complete_jobs(session, second, [job_id], [row["lease"]], None, keep=True) is None
        assert (await look(session, job_id)).worker_id == second


async def test_crash_does_not_undo_a_durable_claim(server: EmbeddedPostgres) -> None:
    """Otherwise a job could start more often than max_attempts allows."""
    database = Database(server.url, Schema())
    await migrations.migrate(database)
    async with another_session(database) as session:
        await set_queue(session, "default", {"durable_claims": True})
        await session.connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")  # nothing else flushes the claim
        await session.connection.execute("SELECT pg_reload_conf()")
        await asyncio.sleep(1)  # the WAL writer reads it after its current sleep; no view shows that
        job_id = await put_one(session)
    async with another_session(database, synchronous_commit="off") as session:  # as workers claim
        await claim(session)
        await asyncio.to_thread(server.stop_server, "kill")
    await asyncio.to_thread(server.start_server)
    async with another_session(database) as session:
        job = await look(session, job_id)
        assert (job.state, job.attempt) == (State.RUNNING, 1)


async def leaders(url: str) -> int:
    connection = await Database(url, Schema()).connect("test")
    try:
        found: int = await connection.fetchval(
            # The locks of workers have the objsubid 2.
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
        )
        return found
    finally:
        await connection.close()
