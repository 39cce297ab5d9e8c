"""Workers whose session has ended: their jobs need not wait until their heartbeats are stale."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime

import pytest

from awa_py import State
from awa_py.db.database import Database
from awa_py.maintenance.rescue import GONE_AFTER, MIN_GONE_INTERVAL_S, rescue_gone
from awa_py.observability.metrics import Metrics
from awa_py.store.election import record_election
from awa_py.store.heartbeat import WorkerInfo, heartbeat_worker, lock_worker
from awa_py.store.maintenance import LostJobs, rescue_lost_jobs
from awa_py.store.session import Session
from tests.integration.test_registry import age, info
from tests.support import another_session, count, eventually, insert_running, look, new_owner, seconds, states

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
async def led_for_long(session: Session) -> None:
    await record_election(session, worker_id=new_owner(), hostname="h", pid=1)
    await session.connection.execute("UPDATE awa.leader SET elected_at = now() - interval '1 minute'")


@pytest.fixture
async def holder(database: Database) -> AsyncIterator[Session]:
    """The session of a worker's heartbeat."""
    async with another_session(database) as held:
        yield held


async def killed(holder: Session, session: Session, jobs: int = 3) -> WorkerInfo:
    """A worker that held its lock, ran jobs, and ended without a word, a minute ago."""
    worker = info()
    await heartbeat_worker(holder, worker, locked_on=await lock_worker(holder, worker.id))
    await insert_running(session, jobs, worker_id=worker.id, silent_s=20)
    await holder.connection.close()
    await age(session, worker.id, 60)
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = hashtext($1::text)::oid"

    async def freed() -> bool:
        return not await count(session.connection, locks, str(worker.id))

    await eventually(freed)
    return worker


async def rescue(session: Session, limit: int = 100) -> LostJobs:
    return await rescue_lost_jobs(session, silence=GONE_AFTER, limit=limit)


async def test_its_jobs_go_back_and_then_its_row(holder: Session, session: Session) -> None:
    await killed(holder, session)
    heard: list[str] = []
    await session.connection.add_listener("awa", lambda *args: heard.append(str(args[3])))
    lost = await rescue(session)
    assert [(job.attempt, job.failed) for job in lost.jobs] == [(1, False)] * 3
    assert await states(session) == {"retryable": 3}
    job = await look(session, lost.jobs[0].id)
    assert (job.rescues, job.attempt, job.errors[-1]["error"]) == (1, 1, "worker gone: its session ended")
    await eventually(lambda: heard)
    assert sorted(heard) == [f"lost:{job.id}:1" for job in lost.jobs]
    assert (await rescue(session)).workers == 1
    assert await count(session.connection, "SELECT count(*) FROM awa.workers") == 0
    assert await rescue(session) == LostJobs([], 0, None)


async def test_the_last_attempt_fails(holder: Session, session: Session) -> None:  # A15
    worker = await killed(holder, session, jobs=0)
    (job_id,) = await insert_running(session, worker_id=worker.id, max_attempts=1)
    assert [job.failed for job in (await rescue(session)).jobs] == [True]
    assert (await look(session, job_id)).state is State.FAILED


async def test_many_go_back_in_batches_counted_as_other_rescues(holder: Session, session: Session) -> None:
    worker = await killed(holder, session, jobs=700)
    metrics = Metrics()
    first = await rescue_gone(session, metrics=metrics)
    assert (first.rows_changed, first.has_more) == (500, True)
    assert await count(session.connection, "SELECT count(*) FROM awa.workers WHERE id = $1", worker.id) == 1
    second = await rescue_gone(session, metrics=metrics)
    assert (second.rows_changed, second.has_more) == (200, False)
    retried = metrics.registry.get_sample_value("awa_jobs_retried_total", {"queue": "default", "reason": "lost"})
    assert retried == 700


async def test_two_leaders_rescue_each_job_once(holder: Session, session: Session, database: Database) -> None:
    await killed(holder, session, jobs=300)
    async with another_session(database) as other:
        lost = await asyncio.gather(rescue(session, 1000), rescue(other, 1000))
    assert sum(len(each.jobs) for each in lost) == 300
    assert await count(session.connection, "SELECT max(rescues) FROM awa.scheduled") == 1


class TestNotGone:
    """Each of these workers has been silent, and is left alone."""

    async def left_alone(self, session: Session) -> None:
        lost = await rescue(session)
        assert (lost.jobs, lost.workers) == ([], 0)
        assert await states(session) == {"running": 3}

    async def test_whose_session_lives(self, holder: Session, session: Session) -> None:  # frozen, or cut off
        worker = info()
        await heartbeat_worker(holder, worker, locked_on=await lock_worker(holder, worker.id))
        await insert_running(session, 3, worker_id=worker.id)
        await age(session, worker.id, 60)
        await self.left_alone(session)

    async def test_who_has_another_session(self, holder: Session, session: Session, database: Database) -> None:
        """That of its claims, while the heartbeat cannot connect again."""
        worker = info()
        async with another_session(database) as claims:
            await lock_worker(claims, worker.id)
            await heartbeat_worker(holder, worker, locked_on=await lock_worker(holder, worker.id))
            await insert_running(session, 3, worker_id=worker.id)
            await holder.connection.close()
            await age(session, worker.id, 60)
            await self.left_alone(session)

    async def test_who_was_heard_of_lately(self, holder: Session, session: Session) -> None:
        worker = await killed(holder, session)
        await age(session, worker.id, 8)
        await self.left_alone(session)

    async def test_who_never_had_a_lock(self, holder: Session, session: Session) -> None:
        await killed(holder, session)
        await session.connection.execute("UPDATE awa.workers SET locked_on = NULL")
        await self.left_alone(session)

    async def test_whose_lock_was_on_another_server(self, holder: Session, session: Session) -> None:
        """The server was restarted, or another one took its place: no lock is left of anybody."""
        await killed(holder, session)
        await session.connection.execute("UPDATE awa.workers SET locked_on = locked_on - interval '1 second'")
        await self.left_alone(session)

    async def test_while_the_leader_is_new(self, holder: Session, session: Session) -> None:  # A20
        await killed(holder, session)
        await session.connection.execute("UPDATE awa.leader SET elected_at = now() - interval '5 seconds'")
        await self.left_alone(session)

    async def test_who_is_writing_its_row(self, holder: Session, session: Session, database: Database) -> None:
        worker = await killed(holder, session)
        async with another_session(database) as back, back.connection.transaction():
            await heartbeat_worker(back, worker)
            await self.left_alone(session)


class TestThePace:
    async def test_it_comes_back_when_somebody_may_be_gone(self, session: Session) -> None:
        assert (await rescue_gone(session, metrics=Metrics())).interval_s == GONE_AFTER.total_seconds()
        worker = info()
        began: datetime = await session.connection.fetchval("SELECT pg_postmaster_start_time()")
        await heartbeat_worker(session, worker, locked_on=began - seconds(1))
        await age(session, worker.id, 4)
        pause_s = (await rescue_gone(session, metrics=Metrics())).interval_s
        assert pause_s is not None
        assert 4 < pause_s <= 6
        await age(session, worker.id, 60)  # it is frozen: looked at now and then
        assert (await rescue_gone(session, metrics=Metrics())).interval_s == MIN_GONE_INTERVAL_S
