"""Rescue of the jobs of workers whose session has ended, before their heartbeats are stale."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest

from awa_py import Settings, State
from awa_py.db.database import Database
from awa_py.maintenance.rescue import MAX_GONE_CHECKS, rescue_gone
from awa_py.observability.metrics import Metrics
from awa_py.store.election import record_election
from awa_py.store.heartbeat import WorkerInfo, heartbeat_worker, lock_worker
from awa_py.store.maintenance import LostJobs, rescue_lost_jobs, rescue_stale_jobs
from awa_py.store.session import Session
from tests.support import another_session, count, eventually, insert_running, look, new_owner, seconds, states
from tests.workers import set_silence, worker_info

GONE_AFTER = Settings().gone_after

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
async def leader_of_a_minute(session: Session) -> None:
    await record_election(session, worker_id=new_owner(), hostname="h", pid=1)
    await session.connection.execute("UPDATE awa.leader SET elected_at = now() - interval '1 minute'")


@pytest.fixture
async def holder(database: Database) -> AsyncIterator[Session]:
    """Open the session of a worker's heartbeat."""
    async with another_session(database) as held:
        yield held


async def killed(holder: Session, session: Session, jobs: int = 3) -> WorkerInfo:
    """Add a worker that held its lock, ran jobs, and was killed a minute ago."""
    worker = worker_info()
    await heartbeat_worker(holder, worker, locked_on=await lock_worker(holder, worker.id))
    await insert_running(session, jobs, worker_id=worker.id, silent_s=20)
    await holder.connection.close()
    await set_silence(session, worker.id, 60)
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = hashtext($1::text)::oid"

    async def freed() -> bool:
        return not await count(session.connection, locks, str(worker.id))

    await eventually(freed)
    return worker


async def rescue(session: Session, limit: int = 100) -> LostJobs:
    return await rescue_lost_jobs(session, silence=GONE_AFTER, limit=limit)


async def test_jobs_of_a_gone_worker_are_rescued_before_its_row_is_deleted(holder: Session, session: Session) -> None:
    await killed(holder, session)
    notifications: list[str] = []
    await session.connection.add_listener("awa", lambda *args: notifications.append(str(args[3])))
    lost = await rescue(session)
    assert [(job.attempt, job.failed) for job in lost.jobs] == [(1, False)] * 3
    assert await states(session) == {"retryable": 3}
    job = await look(session, lost.jobs[0].id)
    assert (job.rescues, job.attempt, job.errors[-1]["error"]) == (1, 1, "worker gone: its session ended")
    await eventually(lambda: notifications)
    assert sorted(notifications) == [f"lost:{job.id}:1" for job in lost.jobs]
    assert (await rescue(session)).removed_workers == 1
    assert await count(session.connection, "SELECT count(*) FROM awa.workers") == 0
    assert await rescue(session) == LostJobs(jobs=[], removed_workers=0, next_s=None)


async def test_job_without_attempts_left_fails(holder: Session, session: Session) -> None:  # A15
    worker = await killed(holder, session, jobs=0)
    (job_id,) = await insert_running(session, worker_id=worker.id, max_attempts=1)
    assert [job.failed for job in (await rescue(session)).jobs] == [True]
    assert (await look(session, job_id)).state is State.FAILED


async def test_jobs_with_a_key_wait_until_their_worker_has_stopped_their_handlers(
    holder: Session, session: Session
) -> None:
    """The worker may only be unable to connect. It stops its handlers before their leases expire."""
    worker = await killed(holder, session, jobs=1)
    key: dict[str, Any] = {"concurrency_key": "a", "concurrency_limit": 1, "ordered": True, "worker_id": worker.id}
    (keyed,) = await insert_running(session, silent_s=20, **key)
    assert keyed not in [job.id for job in (await rescue(session)).jobs]
    assert (await rescue(session)).removed_workers == 0
    assert await states(session) == {"retryable": 1, "running": 1}
    (stale,) = (await rescue_stale_jobs(session, staleness=seconds(15), limit=10)).jobs
    assert stale.id == keyed
    assert (await rescue(session)).removed_workers == 1


async def test_jobs_are_rescued_in_batches_and_counted_as_lost(holder: Session, session: Session) -> None:
    worker = await killed(holder, session, jobs=700)
    metrics = Metrics()
    first = await rescue_gone(session, gone_after=GONE_AFTER, metrics=metrics)
    assert (first.rows_changed, first.has_more) == (500, True)
    assert await count(session.connection, "SELECT count(*) FROM awa.workers WHERE id = $1", worker.id) == 1
    second = await rescue_gone(session, gone_after=GONE_AFTER, metrics=metrics)
    assert (second.rows_changed, second.has_more) == (200, False)
    retried = metrics.registry.get_sample_value("awa_jobs_retried_total", {"queue": "default", "reason": "lost"})
    assert retried == 700


async def test_two_leaders_rescue_each_job_once(holder: Session, session: Session, database: Database) -> None:
    await killed(holder, session, jobs=300)
    async with another_session(database) as other:
        lost = await asyncio.gather(rescue(session, 1000), rescue(other, 1000))
    assert sum(len(each.jobs) for each in lost) == 300
    assert await count(session.connection, "SELECT max(rescues) FROM awa.scheduled") == 1


class TestWorkerThatIsNotGone:
    """Each of these workers has been silent, but its jobs are not rescued."""

    async def assert_not_rescued(self, session: Session) -> None:
        lost = await rescue(session)
        assert (lost.jobs, lost.removed_workers) == ([], 0)
        assert await states(session) == {"running": 3}

    async def test_worker_with_a_live_session(self, holder: Session, session: Session) -> None:  # frozen, or cut off
        worker = worker_info()
        await heartbeat_worker(holder, worker, locked_on=await lock_worker(holder, worker.id))
        await insert_running(session, 3, worker_id=worker.id)
        await set_silence(session, worker.id, 60)
        await self.assert_not_rescued(session)

    async def test_worker_with_another_live_session(
        self, holder: Session, session: Session, database: Database
    ) -> None:
        """Its claims have a session, while the heartbeat cannot reconnect."""
        worker = worker_info()
        async with another_session(database) as claims:
            await lock_worker(claims, worker.id)
            await heartbeat_worker(holder, worker, locked_on=await lock_worker(holder, worker.id))
            await insert_running(session, 3, worker_id=worker.id)
            await holder.connection.close()
            await set_silence(session, worker.id, 60)
            await self.assert_not_rescued(session)

    async def test_worker_with_a_recent_heartbeat(self, holder: Session, session: Session) -> None:
        worker = await killed(holder, session)
        await set_silence(session, worker.id, 8)
        await self.assert_not_rescued(session)

    async def test_worker_that_never_had_a_lock(self, holder: Session, session: Session) -> None:
        await killed(holder, session)
        await session.connection.execute("UPDATE awa.workers SET locked_on = NULL")
        await self.assert_not_rescued(session)

    async def test_worker_whose_lock_was_on_another_server(self, holder: Session, session: Session) -> None:
        """After a restart or a failover of the server, no worker holds a lock."""
        await killed(holder, session)
        await session.connection.execute("UPDATE awa.workers SET locked_on = locked_on - interval '1 second'")
        await self.assert_not_rescued(session)

    async def test_silent_worker_while_the_leader_is_new(self, holder: Session, session: Session) -> None:  # A20
        await killed(holder, session)
        await session.connection.execute("UPDATE awa.leader SET elected_at = now() - interval '5 seconds'")
        await self.assert_not_rescued(session)

    async def test_worker_that_is_writing_its_row(self, holder: Session, session: Session, database: Database) -> None:
        worker = await killed(holder, session)
        async with another_session(database) as back, back.connection.transaction():
            await heartbeat_worker(back, worker)
            await self.assert_not_rescued(session)


class TestInterval:
    async def test_task_runs_again_when_a_worker_may_be_gone(self, session: Session) -> None:
        assert (
            await rescue_gone(session, gone_after=GONE_AFTER, metrics=Metrics())
        ).interval_s == GONE_AFTER.total_seconds()
        worker = worker_info()
        began: datetime = await session.connection.fetchval("SELECT pg_postmaster_start_time()")
        await heartbeat_worker(session, worker, locked_on=began - seconds(1))
        await set_silence(session, worker.id, 4)
        pause_s = (await rescue_gone(session, gone_after=GONE_AFTER, metrics=Metrics())).interval_s
        assert pause_s is not None
        assert 4 < pause_s <= 6
        await set_silence(session, worker.id, 60)  # it is frozen: checked at the minimum interval
        assert (
            await rescue_gone(session, gone_after=GONE_AFTER, metrics=Metrics())
        ).interval_s == GONE_AFTER.total_seconds() / MAX_GONE_CHECKS
