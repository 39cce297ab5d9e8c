"""Rescue of jobs with a stale heartbeat and of jobs past their deadline."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial

import pytest

from awa_py import App, Settings, State
from awa_py.db.database import Database
from awa_py.maintenance.cleanup import Cleanup
from awa_py.maintenance.rescue import Watch, rescue_overdue, rescue_stale
from awa_py.maintenance.task import run_once
from awa_py.observability.metrics import Metrics
from awa_py.store.heartbeat import renew_leases
from awa_py.store.maintenance import fail_expired_jobs, promote_jobs, rescue_overdue_jobs, rescue_stale_jobs
from awa_py.store.queues import set_queue
from awa_py.store.session import Session
from tests.support import (
    OWNER,
    FromNow,
    ago,
    another_session,
    claim,
    count,
    eventually,
    insert,
    insert_queue,
    insert_running,
    leading,
    look,
    put_one,
    seconds,
    states,
)
from tests.tasks import leader_task

pytestmark = pytest.mark.integration

STALENESS = timedelta(seconds=90)
INTERVAL = timedelta(seconds=30)
DAY = timedelta(days=1)


class TestStaleJobs:
    async def test_stale_job_becomes_retryable_with_the_reason(self, session: Session) -> None:  # A10
        (job_id,) = await insert_running(session, silent_s=100, attempt=3)
        (rescued,) = (await rescue_stale_jobs(session, staleness=STALENESS, limit=500)).jobs
        assert (rescued.id, rescued.attempt, rescued.failed) == (job_id, 3, False)
        job = await look(session, job_id)
        assert (job.state, job.attempt, job.rescues, job.finalized_at) == (State.RETRYABLE, 3, 1, None)  # A15, A16
        (error,) = job.errors
        assert (error["attempt"], error["error"]) == (3, "heartbeat stale: worker presumed dead")
        assert (error["worker_id"], error["rescued"]) == (str(OWNER), True)
        assert error["at"]

    async def test_rescued_job_waits_for_its_backoff_and_at_least_a_second(self, session: Session) -> None:  # A15
        await insert_queue(session, "quick", backoff_enabled=False)
        await insert_queue(session, "slow", backoff_base=seconds(40))
        (quick,) = await insert_running(session, silent_s=100, queue="quick", attempt=9)
        (slow,) = await insert_running(session, silent_s=100, queue="slow")
        await rescue_stale_jobs(session, staleness=STALENESS, limit=500)
        rows = await session.connection.fetch(
            "SELECT id, extract(epoch FROM run_at - now())::float8 AS s FROM awa.jobs"
        )
        waits = {row["id"]: row["s"] for row in rows}
        assert 0 < waits[quick] <= 1.2
        assert 30 < waits[slow] <= 48

    async def test_stale_job_without_attempts_left_fails(self, session: Session) -> None:  # A15
        (job_id,) = await insert_running(session, silent_s=100, attempt=3, max_attempts=3)
        (rescued,) = (await rescue_stale_jobs(session, staleness=STALENESS, limit=500)).jobs
        job = await look(session, job_id)
        assert rescued.failed
        assert (job.state, job.rescues) == (State.FAILED, 1)
        assert job.finalized_at is not None

    async def test_job_with_a_recent_heartbeat_is_not_rescued(self, session: Session) -> None:  # D2
        await insert_running(session, silent_s=80)
        await insert_running(session, attempted_at=ago(10_000), heartbeat_at=ago(5))
        assert (await rescue_stale_jobs(session, staleness=STALENESS, limit=500)).jobs == []

    async def test_queue_can_have_its_own_staleness(self, session: Session) -> None:
        await insert_queue(session, "hasty", staleness=seconds(5))
        await insert_queue(session, "slow", staleness=seconds(1000))
        (hasty,) = await insert_running(session, silent_s=10, queue="hasty")
        await insert_running(session, silent_s=500, queue="slow")
        await insert_running(session, silent_s=10)
        stale = await rescue_stale_jobs(session, staleness=STALENESS, limit=500)
        assert [job.id for job in stale.jobs] == [hasty]

    async def test_task_rescues_1200_stale_jobs_in_batches(self, session: Session) -> None:  # A17
        await insert_running(session, 1200, silent_s=100)
        assert (await run_once(leader_task("rescue"), session)).rows_changed == 1200
        assert await states(session) == {"retryable": 1200}

    async def test_concurrent_rescues_are_disjoint(self, session: Session, database: Database) -> None:  # D2
        await insert_running(session, 1000, silent_s=100)
        async with another_session(database) as other:
            for _ in range(10):
                first, second = await asyncio.gather(
                    rescue_stale_jobs(session, staleness=STALENESS, limit=50),
                    rescue_stale_jobs(other, staleness=STALENESS, limit=50),
                )
                assert not {job.id for job in first.jobs} & {job.id for job in second.jobs}
                assert len(first.jobs) == len(second.jobs) == 50
        assert await count(session.connection, "SELECT count(*) FROM awa.scheduled WHERE rescues = 1") == 1000

    async def test_heartbeat_in_progress_prevents_the_rescue(self, session: Session, database: Database) -> None:
        (job_id,) = await insert_running(session, silent_s=100)
        await session.connection.execute("SET lock_timeout = '5s'")
        async with another_session(database) as owner, owner.connection.transaction():
            assert await renew_leases(owner, OWNER, [job_id], [1]) == {job_id: False}
            assert (await rescue_stale_jobs(session, staleness=STALENESS, limit=500)).jobs == []
        assert (await rescue_stale_jobs(session, staleness=STALENESS, limit=500)).jobs == []

    async def test_worker_is_notified_of_the_rescue(self, session: Session) -> None:  # A12
        notifications: list[str] = []
        await session.connection.add_listener("awa", lambda *args: notifications.append(str(args[3])))
        (job_id,) = await insert_running(session, silent_s=100, lease=7)
        await rescue_stale_jobs(session, staleness=STALENESS, limit=500)
        await session.connection.execute("SELECT 1")
        assert f"lost:{job_id}:7" in notifications

    async def test_rescue_is_logged(self, session: Session, caplog: pytest.LogCaptureFixture) -> None:  # A21
        (job_id,) = await insert_running(session, silent_s=100, attempt=2)
        with caplog.at_level(logging.WARNING):
            await rescue_stale(session, staleness=STALENESS, interval=INTERVAL, metrics=Metrics())
        assert f"job {job_id} (work) goes back to its queue at its 2nd attempt" in caplog.text

    async def test_rescues_of_one_kind_are_one_warning(  # A21
        self, session: Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        await insert_running(session, 3, silent_s=3600)
        with caplog.at_level(logging.DEBUG, logger="awa.rescue"):
            await rescue_stale(session, staleness=STALENESS, interval=INTERVAL, metrics=Metrics())
        levels = [record.levelname for record in caplog.records if record.name == "awa.rescue"]
        assert sorted(levels) == ["DEBUG", "DEBUG", "WARNING"]
        assert "(and 2 more like it)" in caplog.text


@asynccontextmanager
async def slow_commits(session: Session) -> AsyncIterator[None]:
    """Let each commit of the leader take longer than a second."""
    await session.connection.execute("""
        CREATE FUNCTION public.dawdle() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_catalog.pg_sleep(1.2); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER dawdle AFTER UPDATE ON awa.leader DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION public.dawdle();
    """)
    try:
        yield
    finally:
        await session.connection.execute("DROP FUNCTION public.dawdle CASCADE")


class TestWatch:  # A20
    """The leader counts only the silence that it has watched itself."""

    LOOKED_BEFORE = "SELECT now() - interval '30 seconds'"

    async def test_long_silence_does_not_count_before_the_leader_has_watched_for_the_staleness(
        self, session: Session
    ) -> None:
        await insert_running(session, silent_s=1000)
        looked_at = await session.connection.fetchval(self.LOOKED_BEFORE)
        for watched_s, rescued in [(0, 0), (89, 0), (91, 1)]:
            stale = await rescue_stale_jobs(
                session, staleness=STALENESS, limit=500, watched=seconds(watched_s), looked_at=looked_at
            )
            assert len(stale.jobs) == rescued

    async def test_each_queue_is_watched_for_its_own_staleness(self, session: Session) -> None:
        await insert_queue(session, "hasty", staleness=seconds(5))
        (hasty,) = await insert_running(session, silent_s=1000, queue="hasty")
        await insert_running(session, silent_s=1000)
        looked_at = await session.connection.fetchval(self.LOOKED_BEFORE)
        stale = await rescue_stale_jobs(
            session, staleness=STALENESS, limit=500, watched=seconds(10), looked_at=looked_at
        )
        assert [job.id for job in stale.jobs] == [hasty]

    async def test_job_that_was_not_silent_at_the_look_before_is_not_rescued(self, session: Session) -> None:
        """The server hung, or its clock was set forward, between two looks."""
        watch = Watch()
        watch.began_at -= 3600
        watch.looked_at = await session.connection.fetchval("SELECT now() - interval '95 seconds'")
        await insert_running(session, silent_s=100)
        rescue = partial(rescue_stale, session, staleness=STALENESS, interval=INTERVAL, metrics=Metrics(), watch=watch)
        assert (await rescue()).rows_changed == 0
        watch.looked_at -= seconds(30)
        assert (await rescue()).rows_changed == 1

    async def test_look_that_follows_another_one_at_once_does_not_count(self, session: Session) -> None:
        """A change of a queue causes a look. Workers need time to renew their leases after the server hung."""
        watch = Watch()
        watch.began_at -= 3600
        await insert_running(session, silent_s=100)
        rescue = partial(rescue_stale, session, staleness=STALENESS, interval=INTERVAL, metrics=Metrics(), watch=watch)
        for _ in range(3):
            assert (await rescue()).rows_changed == 0
        assert watch.looked_at is not None
        watch.looked_at -= seconds(16)
        assert (await rescue()).rows_changed == 1

    @pytest.mark.parametrize("task", ["rescue", "deadlines"])
    async def test_silence_does_not_count_while_commits_take_long(
        self, database: Database, session: Session, task: str
    ) -> None:
        """A synchronous standby hangs: workers can write neither heartbeats nor outcomes, and the leader can read."""
        await insert_running(session, silent_s=1000, deadline_at=ago(100))
        watch = Watch()
        async with leading(database, since_s=3600) as leader:

            async def rescue() -> int:
                watch.began_at -= 3600
                watch.looked_at = await session.connection.fetchval(self.LOOKED_BEFORE)
                return (await run_once(leader_task(task, watch=watch), leader)).rows_changed

            async with slow_commits(session):
                assert await rescue() == 0
            assert watch.looked_at is None
            assert watch.duration < STALENESS
            assert await rescue() == 1

    async def test_first_look_of_a_leader_rescues_nothing(self, session: Session) -> None:
        await insert_running(session, silent_s=1000)
        assert (await run_once(leader_task("rescue", watch=Watch()), session)).rows_changed == 0
        assert await states(session) == {"running": 1}

    async def test_deadline_of_a_running_job_waits_for_the_watch(self, session: Session) -> None:
        await insert_running(session, deadline_at=ago(1000))
        await insert(session, "ready", expires_at=ago(1))
        watch = Watch()
        assert (await run_once(leader_task("deadlines", watch=watch), session)).rows_changed == 1
        assert await states(session) == {"failed": 1, "running": 1}
        watch.began_at -= STALENESS.total_seconds()
        assert (await run_once(leader_task("deadlines", watch=watch), session)).rows_changed == 1


class TestInterval:
    """The leader looks often enough for the smallest staleness in use."""

    @pytest.mark.parametrize(("staleness_s", "interval_s"), [(300, 30), (45, 15), (5, 5 / 3), (0.5, 1)])
    async def test_interval_follows_the_smallest_staleness(
        self, session: Session, staleness_s: float, interval_s: float
    ) -> None:
        await insert_queue(session, "calm", staleness=seconds(3600))
        await insert_queue(session, "hasty", staleness=seconds(staleness_s))
        result = await rescue_stale(session, staleness=STALENESS, interval=INTERVAL, metrics=Metrics())
        assert result.interval_s == pytest.approx(interval_s)

    async def test_new_staleness_of_a_queue_is_effective_within_seconds(
        self, database_url: str, session: Session
    ) -> None:
        app = App(database_url, settings=Settings())
        metrics = Metrics()
        candidate = app.candidate(metrics=metrics)
        candidate.start()
        try:
            runs = partial(metrics.registry.get_sample_value, "awa_task_runs_total", {"task": "rescue"})
            await eventually(runs)  # the next look would come after 30 seconds
            await set_queue(session, "hasty", {"staleness": seconds(3)})
            (job_id,) = await insert_running(session, silent_s=4, queue="hasty")
            await eventually(lambda: is_rescued(session, job_id), timeout_s=20)
        finally:
            await candidate.stop()


async def is_rescued(session: Session, job_id: int) -> bool:
    return (await look(session, job_id)).state is State.RETRYABLE


class TestOverdueJobs:
    async def test_overdue_job_becomes_retryable_with_the_reason(self, session: Session) -> None:  # A11
        (job_id,) = await insert_running(session, deadline_at=ago(1))
        (rescued,) = await rescue_overdue_jobs(session, limit=500)
        job = await look(session, job_id)
        assert (rescued.id, job.state, job.rescues) == (job_id, State.RETRYABLE, 0)
        assert job.errors[-1]["error"] == "hard deadline exceeded"
        assert (job.errors[-1]["worker_id"], job.errors[-1]["rescued"]) == (str(OWNER), True)

    async def test_overdue_job_waits_at_least_a_second(self, session: Session) -> None:  # A15
        await insert_queue(session, backoff_enabled=False)
        (job_id,) = await insert_running(session, deadline_at=ago(1))
        await rescue_overdue_jobs(session, limit=500)
        job = await look(session, job_id)
        rescued_at = datetime.fromisoformat(job.errors[-1]["at"])
        assert seconds(1) <= job.run_at - rescued_at <= seconds(1.2)

    async def test_job_without_a_passed_deadline_is_not_rescued(self, session: Session) -> None:  # A11
        await insert_running(session, silent_s=10**8)
        await insert_running(session, deadline_at=FromNow(60))
        assert await rescue_overdue_jobs(session, limit=500) == []

    async def test_running_job_past_its_expiry_fails(self, session: Session) -> None:  # D3
        (job_id,) = await insert_running(session, deadline_at=ago(1), expires_at=ago(1))
        (rescued,) = await rescue_overdue_jobs(session, limit=500)
        assert rescued.failed
        assert (await look(session, job_id)).state is State.FAILED

    async def test_job_that_expires_before_its_start_fails(self, session: Session) -> None:  # D3
        (ready,) = await insert(session, "ready", expires_at=ago(1))
        (retryable,) = await insert(session, "scheduled", state="retryable", attempt=1, expires_at=ago(1))
        (alive,) = await insert(session, "ready", expires_at=FromNow(60))
        assert await fail_expired_jobs(session, limit=500) == {"default": 2}
        for job_id in (ready, retryable):
            job = await look(session, job_id)
            assert (job.state, job.errors[-1]["error"]) == (State.FAILED, "hard deadline exceeded")
        assert (await look(session, alive)).state is State.AVAILABLE

    async def test_task_runs_until_a_batch_is_not_full(self, session: Session) -> None:  # A17
        await insert_running(session, 700, deadline_at=ago(1))
        await insert(session, "ready", 800, expires_at=ago(1))
        await insert(session, "scheduled", 600, state="scheduled", expires_at=ago(1))
        assert len(await rescue_overdue_jobs(session, limit=100)) == 100
        assert (await run_once(leader_task("deadlines"), session)).rows_changed == 2000
        assert await states(session) == {"failed": 1400, "retryable": 700}

    async def test_locked_job_does_not_delay_the_rescue_of_others(self, session: Session, database: Database) -> None:
        locked, other = await insert_running(session, 2, deadline_at=ago(1))
        await session.connection.execute("SET lock_timeout = '5s'")
        async with another_session(database) as owner, owner.connection.transaction():
            await owner.connection.execute("SELECT FROM awa.running WHERE id = $1 FOR UPDATE", locked)
            assert [job.id for job in await rescue_overdue_jobs(session, limit=500)] == [other]
        assert [job.id for job in await rescue_overdue_jobs(session, limit=500)] == [locked]

    async def test_two_leaders_handle_each_overdue_job_once(self, session: Session, database: Database) -> None:
        await insert_running(session, 400, deadline_at=ago(1))
        await insert(session, "ready", 400, expires_at=ago(1))
        async with another_session(database) as other:
            done = await asyncio.gather(
                run_once(leader_task("deadlines"), session), run_once(leader_task("deadlines"), other)
            )
        assert sum(report.rows_changed for report in done) == 800
        assert await states(session) == {"failed": 400, "retryable": 400}


async def test_two_leaders_rescue_each_job_once(session: Session, database: Database) -> None:
    await insert_running(session, 2000, silent_s=100)
    async with another_session(database) as other:
        done = await asyncio.gather(run_once(leader_task("rescue"), session), run_once(leader_task("rescue"), other))
    assert sum(report.rows_changed for report in done) == 2000
    assert await states(session) == {"retryable": 2000}


async def test_job_whose_worker_always_crashes_fails_in_the_end(session: Session) -> None:  # A15
    job_id = await put_one(session, max_attempts=3)
    for attempt in (1, 2, 3):
        (row,) = await claim(session)
        assert row["attempt"] == attempt
        await session.connection.execute(
            "UPDATE awa.running SET attempted_at = now() - interval '2 min', heartbeat_at = now() - interval '2 min'"
        )
        await rescue_stale_jobs(session, staleness=STALENESS, limit=10)
        await session.connection.execute("UPDATE awa.scheduled SET run_at = now()")
        await promote_jobs(session, limit=10)
    job = await look(session, job_id)
    assert (job.state, job.attempt, job.rescues, len(job.errors)) == (State.FAILED, 3, 3, 3)


async def test_job_that_is_overdue_and_stale_is_rescued_once(session: Session, database: Database) -> None:
    await insert_running(session, 400, silent_s=100, deadline_at=ago(1), worker_id=OWNER)
    async with another_session(database) as other:
        stale = partial(rescue_stale, staleness=STALENESS, interval=INTERVAL, metrics=Metrics())
        await asyncio.gather(stale(session), rescue_overdue(other, staleness=STALENESS, metrics=Metrics()))
        await stale(session)
    assert await states(session) == {"retryable": 400}
    assert await count(session.connection, "SELECT max(jsonb_array_length(errors)) FROM awa.scheduled") == 1
    cleanup = Cleanup(
        completed_retention=DAY, failed_retention=DAY, events_retention=DAY, rollup_retention=DAY, staleness=STALENESS
    )
    assert (await cleanup.run(session)).rows_changed == 0
