"""What the leader does: promote, rescue, clean up, point out. Each statement is safe with two leaders at once."""

import asyncio
import logging
import time
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest

from awa_py import NewJob, Settings, State
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.maintenance.cleanup import Cleanup
from awa_py.maintenance.promote import Promotion
from awa_py.maintenance.rescue import rescue_overdue, rescue_stale
from awa_py.maintenance.task import Task, run_once
from awa_py.maintenance.tasks import all_tasks
from awa_py.maintenance.unserved import Unserved
from awa_py.observability.metrics import Metrics
from awa_py.store.finish import complete_jobs
from awa_py.store.heartbeat import WorkerInfo, heartbeat_worker, renew_leases
from awa_py.store.maintenance import (
    delete_completed_jobs,
    delete_dead_jobs,
    delete_free_unique_keys,
    delete_stale_workers,
    fail_expired_jobs,
    promote_jobs,
    rescue_overdue_jobs,
    rescue_stale_jobs,
)
from awa_py.store.partitions import create_day_partitions, drop_completed_partitions
from awa_py.store.session import Session
from tests.support import (
    OWNER,
    FromNow,
    ago,
    another_session,
    claim,
    count,
    insert,
    insert_completed,
    insert_queue,
    insert_running,
    listen,
    look,
    new_owner,
    put,
    put_one,
    seconds,
    states,
)

pytestmark = pytest.mark.integration

STALENESS = timedelta(seconds=90)
DAY = timedelta(days=1)


def task(name: str, settings: Settings | None = None) -> Task:
    (found,) = (task for task in all_tasks(settings or Settings(), [], Metrics()) if task.name == name)
    return found


class TestPromote:  # A13
    async def test_due_jobs_become_available_in_the_order_of_their_times(self, session: Session) -> None:
        (late,) = await insert(session, "scheduled", state="scheduled", run_at=ago(1))
        (early,) = await insert(session, "scheduled", state="retryable", run_at=ago(9), attempt=2, lease=2)
        (future,) = await insert(session, "scheduled", state="scheduled", run_at=FromNow(60))
        assert (await promote_jobs(session, limit=10))[0] == 2
        rows = await claim(session, limit=5)
        assert [row["id"] for row in rows] == [early, late]
        assert (rows[0]["attempt"], rows[0]["lease"]) == (3, 3)
        assert (await look(session, future)).state is State.SCHEDULED

    async def test_a_batch_is_bounded_and_takes_the_earliest(self, session: Session) -> None:
        for age in (3, 9, 6):
            await insert(session, "scheduled", state="scheduled", run_at=ago(age), args=f'{{"age": {age}}}')
        assert (await promote_jobs(session, limit=2))[0] == 2
        rows = await claim(session, limit=5)
        assert [row["args"] for row in rows] == ['{"age": 9}', '{"age": 6}']

    async def test_it_says_when_to_come_back(self, session: Session) -> None:  # P4
        assert await promote_jobs(session, limit=10) == (0, None)
        await put_one(session, delay=seconds(7))
        promoted, next_s = await promote_jobs(session, limit=10)
        assert promoted == 0
        assert next_s is not None
        assert 5 < next_s <= 7

    async def test_waiting_jobs_are_not_due(self, session: Session) -> None:
        await insert(session, "scheduled", state="waiting", run_at=ago(60))
        assert await promote_jobs(session, limit=10) == (0, None)

    async def test_the_workers_are_told_once_a_queue(self, session: Session) -> None:
        heard = await listen(session, "a", "b")
        for queue in ("a", "a", "b", "nobody-waits-here"):
            await insert(session, "scheduled", state="scheduled", run_at=ago(1), queue=queue)
        await promote_jobs(session, limit=10)
        await session.connection.execute("SELECT 1")
        assert sorted(heard) == ["ready:a", "ready:b"]

    async def test_a_hundred_thousand_due_jobs_come_in_batches_while_claims_go_on(
        self, session: Session, database: Database
    ) -> None:
        total = 100_000
        await insert(session, "scheduled", total, state="scheduled", run_at=ago(60))
        promoting = asyncio.Event()
        taken: list[int] = []
        times_s: list[float] = []
        taken_meanwhile = 0

        async def drain(own: Session) -> None:
            nonlocal taken_meanwhile
            while len(taken) < total:
                began = time.monotonic()
                rows = await claim(own, limit=500)
                times_s.append(time.monotonic() - began)
                taken.extend(row["id"] for row in rows)
                taken_meanwhile += 0 if promoting.is_set() else len(rows)
                if not rows:
                    await asyncio.sleep(0.01)

        async with (
            another_session(database, **STABLE_PLAN_SETTINGS) as leader,
            another_session(database, **STABLE_PLAN_SETTINGS) as own,
        ):
            draining = asyncio.create_task(drain(own))
            batches = 0
            promotion = Promotion()
            while (batch := await promotion.run(leader)).has_more:
                batches += 1
                assert batch.rows_changed == 1000
            promoting.set()
            async with asyncio.timeout(60):
                await draining
        assert batches == 100
        assert taken_meanwhile > 0
        assert len(taken) == len(set(taken)) == total
        p50, p99 = (sorted(times_s)[int(len(times_s) * share)] * 1000 for share in (0.5, 0.99))
        print(f"{len(times_s)} claims of up to 500: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        assert p99 < 5000


class TestRescueOfStaleJobs:
    async def test_a_stale_job_is_tried_again_with_the_reason(self, session: Session) -> None:  # A10
        (job_id,) = await insert_running(session, silent_s=100, attempt=3)
        (rescued,) = await rescue_stale_jobs(session, staleness=STALENESS, limit=500)
        assert (rescued.id, rescued.attempt, rescued.failed) == (job_id, 3, False)
        job = await look(session, job_id)
        assert (job.state, job.attempt, job.rescues, job.finalized_at) == (State.RETRYABLE, 3, 1, None)  # A15, A16
        (error,) = job.errors
        assert (error["attempt"], error["error"]) == (3, "heartbeat stale: worker presumed dead")
        assert error["at"]

    async def test_it_goes_by_the_backoff_curve_and_at_least_a_second(self, session: Session) -> None:  # A15
        await insert_queue(session, "quick", backoff_enabled=False)
        await insert_queue(session, "slow", backoff_base=seconds(40))
        (quick,) = await insert_running(session, silent_s=100, queue="quick", attempt=9)
        (slow,) = await insert_running(session, silent_s=100, queue="slow")
        await rescue_stale_jobs(session, staleness=STALENESS, limit=500)
        rows = await session.connection.fetch(
            "SELECT id, extract(epoch FROM run_at - now())::float8 AS s FROM awa.jobs"
        )
        waits = {row["id"]: row["s"] for row in rows}
        assert waits[quick] == pytest.approx(1, abs=0.9)
        assert waits[slow] == pytest.approx(40, abs=5)

    async def test_used_up_attempts_end_in_failed(self, session: Session) -> None:  # A15
        (job_id,) = await insert_running(session, silent_s=100, attempt=3, max_attempts=3)
        (rescued,) = await rescue_stale_jobs(session, staleness=STALENESS, limit=500)
        job = await look(session, job_id)
        assert rescued.failed
        assert (job.state, job.rescues) == (State.FAILED, 1)
        assert job.finalized_at is not None

    async def test_live_owners_are_never_touched(self, session: Session) -> None:  # D2
        await insert_running(session, silent_s=80)
        await insert_running(session, attempted_at=ago(10_000), heartbeat_at=ago(5))
        assert await rescue_stale_jobs(session, staleness=STALENESS, limit=500) == []

    async def test_the_queue_may_be_more_patient_or_less(self, session: Session) -> None:
        await insert_queue(session, "hasty", staleness=seconds(5))
        await insert_queue(session, "patient", staleness=seconds(1000))
        (hasty,) = await insert_running(session, silent_s=10, queue="hasty")
        await insert_running(session, silent_s=500, queue="patient")
        await insert_running(session, silent_s=10)
        rescued = await rescue_stale_jobs(session, staleness=STALENESS, limit=500)
        assert [job.id for job in rescued] == [hasty]

    async def test_twelve_hundred_in_one_go(self, session: Session) -> None:  # A17
        await insert_running(session, 1200, silent_s=100)
        assert await run_once(task("rescue"), session) == 1200
        assert await states(session) == {"retryable": 1200}

    async def test_two_rescuers_at_once_are_disjoint(self, session: Session, database: Database) -> None:  # D2
        await insert_running(session, 1000, silent_s=100)
        async with another_session(database) as other:
            for _ in range(10):
                first, second = await asyncio.gather(
                    rescue_stale_jobs(session, staleness=STALENESS, limit=50),
                    rescue_stale_jobs(other, staleness=STALENESS, limit=50),
                )
                assert not {job.id for job in first} & {job.id for job in second}
                assert len(first) == len(second) == 50
        assert await count(session.connection, "SELECT count(*) FROM awa.scheduled WHERE rescues = 1") == 1000

    async def test_a_beat_under_way_saves_the_job(self, session: Session, database: Database) -> None:
        (job_id,) = await insert_running(session, silent_s=100)
        async with another_session(database) as owner, owner.connection.transaction():
            assert await renew_leases(owner, OWNER, [job_id], [1]) == {job_id: False}
            assert await rescue_stale_jobs(session, staleness=STALENESS, limit=500) == []
        assert await rescue_stale_jobs(session, staleness=STALENESS, limit=500) == []

    async def test_the_owner_is_told(self, session: Session) -> None:  # A12
        heard: list[str] = []
        await session.connection.add_listener("awa", lambda *args: heard.append(str(args[3])))
        (job_id,) = await insert_running(session, silent_s=100, lease=7)
        await rescue_stale_jobs(session, staleness=STALENESS, limit=500)
        await session.connection.execute("SELECT 1")
        assert f"lost:{job_id}:7" in heard

    async def test_each_is_logged(self, session: Session, caplog: pytest.LogCaptureFixture) -> None:  # A21
        (job_id,) = await insert_running(session, silent_s=100, attempt=2)
        with caplog.at_level(logging.WARNING):
            await rescue_stale(session, staleness=STALENESS, metrics=Metrics())
        assert f"job {job_id} (work) goes back to its queue at its 2nd attempt" in caplog.text

    async def test_many_of_a_kind_are_one_line(self, session: Session, caplog: pytest.LogCaptureFixture) -> None:  # A21
        await insert_running(session, 3, silent_s=3600)
        with caplog.at_level(logging.DEBUG, logger="awa.rescue"):
            await rescue_stale(session, staleness=seconds(90), metrics=Metrics())
        levels = [record.levelname for record in caplog.records if record.name == "awa.rescue"]
        assert sorted(levels) == ["DEBUG", "DEBUG", "WARNING"]
        assert "(and 2 more like it)" in caplog.text


class TestRescueOfOverdueJobs:
    async def test_an_overdue_job_is_tried_again_with_the_reason(self, session: Session) -> None:  # A11
        (job_id,) = await insert_running(session, deadline_at=ago(1))
        (rescued,) = await rescue_overdue_jobs(session, limit=500)
        job = await look(session, job_id)
        assert (rescued.id, job.state, job.rescues) == (job_id, State.RETRYABLE, 0)
        assert job.errors[-1]["error"] == "hard deadline exceeded"

    async def test_without_a_deadline_never(self, session: Session) -> None:  # A11
        await insert_running(session, silent_s=10**8)
        await insert_running(session, deadline_at=FromNow(60))
        assert await rescue_overdue_jobs(session, limit=500) == []

    async def test_past_its_absolute_deadline_it_fails(self, session: Session) -> None:  # D3
        (job_id,) = await insert_running(session, deadline_at=ago(1), expires_at=ago(1))
        (rescued,) = await rescue_overdue_jobs(session, limit=500)
        assert rescued.failed
        assert (await look(session, job_id)).state is State.FAILED

    async def test_what_could_not_even_start_in_time_fails(self, session: Session) -> None:  # D3
        (ready,) = await insert(session, "ready", expires_at=ago(1))
        (retryable,) = await insert(session, "scheduled", state="retryable", attempt=1, expires_at=ago(1))
        (alive,) = await insert(session, "ready", expires_at=FromNow(60))
        assert await fail_expired_jobs(session, limit=500) == {"default": 2}
        for job_id in (ready, retryable):
            job = await look(session, job_id)
            assert (job.state, job.errors[-1]["error"]) == (State.FAILED, "hard deadline exceeded")
        assert (await look(session, alive)).state is State.AVAILABLE

    async def test_the_task_goes_on_until_a_short_batch(self, session: Session) -> None:  # A17
        await insert_running(session, 700, deadline_at=ago(1))
        await insert(session, "ready", 800, expires_at=ago(1))
        await insert(session, "scheduled", 600, state="scheduled", expires_at=ago(1))
        assert await run_once(task("deadlines"), session) == 2100
        assert await states(session) == {"failed": 1400, "retryable": 700}

    async def test_two_at_once_are_disjoint(self, session: Session, database: Database) -> None:
        await insert_running(session, 400, deadline_at=ago(1))
        await insert(session, "ready", 400, expires_at=ago(1))
        async with another_session(database) as other:
            done = await asyncio.gather(run_once(task("deadlines"), session), run_once(task("deadlines"), other))
        assert sum(done) == 800
        assert await states(session) == {"failed": 400, "retryable": 400}


class TestCleanupOfDeadJobs:
    async def test_past_the_retention_they_go(self, session: Session) -> None:
        await insert(session, "dead", 3, state="failed", finalized_at=ago(3 * 86_400 + 60))
        await insert(session, "dead", 1, state="cancelled", finalized_at=ago(3 * 86_400 + 60))
        await insert(session, "dead", 2, state="failed", finalized_at=ago(60))
        assert await delete_dead_jobs(session, retention=3 * DAY, limit=100) == 4
        assert await states(session) == {"failed": 2}

    async def test_the_queues_own_retention_rules(self, session: Session) -> None:  # F17
        await insert_queue(session, "brief", failed_retention=seconds(60))
        await insert_queue(session, "long", failed_retention=seconds(1000 * 86_400))
        for queue in ("brief", "long", "default"):
            await insert(session, "dead", state="failed", queue=queue, finalized_at=ago(3600))
        assert await delete_dead_jobs(session, retention=3 * DAY, limit=100) == 1
        await session.connection.execute("UPDATE awa.dead SET finalized_at = now() - interval '10 days'")
        assert await delete_dead_jobs(session, retention=3 * DAY, limit=100) == 1
        assert await session.connection.fetchval("SELECT queue FROM awa.dead") == "long"

    async def test_a_batch_is_bounded_and_takes_the_oldest(self, session: Session) -> None:
        for age in (20, 30, 10):
            await insert(session, "dead", state="failed", finalized_at=ago(age * 86_400), priority=age // 10)
        assert await delete_dead_jobs(session, retention=DAY, limit=2) == 2
        assert await session.connection.fetchval("SELECT priority FROM awa.dead") == 1

    async def test_the_task_goes_on_until_a_short_batch(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("awa_py.maintenance.cleanup.ROWS_PER_BATCH", 100)
        await insert(session, "dead", 250, state="failed", finalized_at=ago(10 * 86_400))
        assert await run_once(task("cleanup"), session) == 250


class TestCleanupOfCompletedJobs:
    async def partitions(self, session: Session) -> list[str]:
        rows = await session.connection.fetch(
            "SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid "
            "WHERE inhparent = 'awa.completed'::regclass"
        )
        return sorted(row["relname"].removeprefix("completed_") for row in rows)

    async def add_partition(self, session: Session, day: str, next_day: str) -> None:
        await session.connection.execute(
            f"CREATE TABLE awa.completed_{day.replace('-', '')} PARTITION OF awa.completed "
            f"FOR VALUES FROM ('{day} 00:00+00') TO ('{next_day} 00:00+00')"
        )

    async def test_the_days_ahead_have_partitions(self, session: Session) -> None:
        today = await session.connection.fetchval("SELECT (now() AT TIME ZONE 'UTC')::date")
        days = [(today + timedelta(days=n)).strftime("%Y%m%d") for n in range(8)]
        assert await self.partitions(session) == [*days, "default"]
        assert await create_day_partitions(session, "completed", days_ahead=9) == 2
        assert await create_day_partitions(session, "completed", days_ahead=9) == 0

    async def test_a_partition_begins_at_midnight_utc_wherever_the_session_is(self, session: Session) -> None:
        await session.connection.execute("SET timezone = 'Pacific/Auckland'")
        await session.connection.execute("SELECT awa.drop_day_partitions('completed', 'infinity')")
        assert await create_day_partitions(session, "completed", days_ahead=7) == 8
        await insert_completed(session, 5, age_s=0)
        today = await session.connection.fetchval("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')")
        assert await count(session.connection, f"SELECT count(*) FROM awa.completed_{today}") == 5

    async def test_old_partitions_are_dropped_whole(self, session: Session) -> None:
        await self.add_partition(session, "2020-01-01", "2020-01-02")
        await session.connection.execute(
            "INSERT INTO awa.completed (kind, worker_id, attempted_at, finalized_at) "
            "SELECT 'work', gen_random_uuid(), '2020-01-01 12:00+00', '2020-01-01 12:00+00' FROM generate_series(1, 9)"
        )
        await insert_completed(session, 2, age_s=0)
        assert await drop_completed_partitions(session, retention=DAY) == 1
        assert "20200101" not in await self.partitions(session)
        assert await states(session) == {"completed": 2}

    async def test_a_partition_stays_while_any_queue_keeps_its_jobs(self, session: Session) -> None:
        await self.add_partition(session, "2020-01-01", "2020-01-02")
        await insert_queue(session, "archive", completed_retention=timedelta(days=36_500))
        assert await drop_completed_partitions(session, retention=DAY) == 0
        await insert_queue(session, "archive", completed_retention=DAY)
        assert await drop_completed_partitions(session, retention=DAY) == 1

    async def test_yesterdays_partition_stays_until_its_last_job_is_old(self, session: Session) -> None:
        yesterday, today = await session.connection.fetchrow(  # type: ignore[misc]
            "SELECT to_char(now() AT TIME ZONE 'UTC' - interval '1 day', 'YYYY-MM-DD'), "
            "to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD')"
        )
        await self.add_partition(session, yesterday, today)
        assert await drop_completed_partitions(session, retention=DAY) == 0

    async def test_what_waits_in_the_default_partition_moves_when_the_day_gets_one(self, session: Session) -> None:
        await session.connection.execute("SELECT awa.drop_day_partitions('completed', 'infinity')")
        jobs = await insert_completed(session, 3, age_s=0)
        assert await count(session.connection, "SELECT count(*) FROM awa.completed_default") == 3
        assert await create_day_partitions(session, "completed", days_ahead=7) == 8
        assert await count(session.connection, "SELECT count(*) FROM awa.completed_default") == 0
        assert [(await look(session, job_id)).state for job_id in jobs] == [State.COMPLETED] * 3

    async def test_a_short_retention_deletes_rows(self, session: Session) -> None:
        await insert_completed(session, 3, age_s=700)
        await insert_completed(session, 2, age_s=0)
        assert await delete_completed_jobs(session, retention=seconds(600), limit=100) == 3
        assert await states(session) == {"completed": 2}

    async def test_a_queues_shorter_retention_deletes_its_rows_only(self, session: Session) -> None:  # F17
        await insert_queue(session, "brief", completed_retention=seconds(600))
        await insert_completed(session, 3, age_s=700, queue="brief")
        await insert_completed(session, 3, age_s=700)
        assert await delete_completed_jobs(session, retention=DAY, limit=100) == 3
        assert await session.connection.fetchval("SELECT DISTINCT queue FROM awa.completed") == "default"

    async def test_what_a_partition_will_take_with_it_is_not_deleted_row_by_row(self, session: Session) -> None:
        yesterday, today = await session.connection.fetchrow(  # type: ignore[misc]
            "SELECT to_char(now() AT TIME ZONE 'UTC' - interval '2 day', 'YYYY-MM-DD'), "
            "to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD')"
        )
        await self.add_partition(session, yesterday, today)
        await insert_completed(session, 3, age_s=86_400 + 600)
        assert await delete_completed_jobs(session, retention=DAY, limit=100) == 0

    async def test_old_rows_of_the_default_partition_are_deleted(self, session: Session) -> None:
        await insert_completed(session, 3, age_s=30 * 86_400)
        assert await count(session.connection, "SELECT count(*) FROM awa.completed_default") == 3
        assert await delete_completed_jobs(session, retention=DAY, limit=100) == 3

    async def test_five_thousand_rows_go_in_one_batch_and_quickly(self, database: Database) -> None:
        async with another_session(database, statement_timeout="10000", **STABLE_PLAN_SETTINGS) as leader:
            await insert_completed(leader, 12_000, age_s=700)
            settings = Settings(completed_retention=seconds(600))
            assert await run_once(task("cleanup", settings), leader) == 12_000
            assert await states(leader) == {}

    async def test_somebody_who_reads_does_not_stall_the_cleanup(
        self, database: Database, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with another_session(database) as reader, another_session(database, lock_timeout="100") as leader:
            await self.add_partition(leader, "2020-01-01", "2020-01-02")
            await insert(leader, "dead", 3, state="failed", finalized_at=ago(10 * 86_400))
            async with reader.connection.transaction():
                await reader.connection.fetch("SELECT count(*) FROM awa.completed")
                with caplog.at_level(logging.INFO):
                    assert await run_once(task("cleanup"), leader) == 3
                assert "the partitions of table completed are in use" in caplog.text
                assert "20200101" in await self.partitions(leader)
                (job_id,) = await insert_running(leader)
                async with asyncio.timeout(5):  # and nobody waits behind us
                    await complete_jobs(leader, OWNER, [job_id], [1], [None], keep=True)
            assert await run_once(task("cleanup"), leader) == 1
            assert "20200101" not in await self.partitions(leader)


class TestSweeps:
    async def test_only_free_keys_are_swept(self, session: Session) -> None:
        await session.connection.execute("SELECT awa.enqueue('work', unique_key => 'held')")
        await session.connection.execute("SELECT awa.enqueue('work', unique_key => 'period', unique_for => '1 hour')")
        await session.connection.execute("SELECT awa.enqueue('work', unique_key => 'over', unique_for => '0')")
        gone = await session.connection.fetchval("SELECT awa.enqueue('work', unique_key => 'gone')")
        await session.connection.execute("DELETE FROM awa.ready WHERE id = $1", gone)
        assert await delete_free_unique_keys(session, after="", limit=100) == (None, 2)
        rows = await session.connection.fetch("SELECT key FROM awa.unique_keys ORDER BY key")
        assert [row["key"] for row in rows] == ["held", "period"]

    async def test_it_goes_on_where_it_was(self, session: Session) -> None:
        await session.connection.execute(
            "INSERT INTO awa.unique_keys (key, job_id, states) "
            "SELECT to_char(n, 'FM000'), 0, '{running}' FROM generate_series(1, 25) AS n"
        )
        assert await delete_free_unique_keys(session, after="", limit=10) == ("010", 10)
        assert await delete_free_unique_keys(session, after="010", limit=10) == ("020", 10)
        assert await delete_free_unique_keys(session, after="020", limit=10) == (None, 5)

    async def test_silent_workers_go(self, session: Session) -> None:  # F22
        for _ in range(2):
            await heartbeat_worker(session, worker())
        await session.connection.execute(
            "UPDATE awa.workers SET heartbeat_at = now() - interval '901 seconds' "
            "WHERE id = (SELECT id FROM awa.workers LIMIT 1)"
        )
        assert await delete_stale_workers(session, staleness=STALENESS) == 1
        assert await count(session.connection, "SELECT count(*) FROM awa.workers") == 1


def worker(worker_id: UUID | None = None, queue: str = "default", kind: str = "work") -> WorkerInfo:
    return WorkerInfo(
        id=worker_id or new_owner(), hostname="h", pid=1, version="1", queues=(queue,), kinds=(kind,), concurrency=1
    )


class TestUnserved:  # F9
    def unserved(self, metrics: Metrics | None = None) -> Unserved:
        return Unserved(staleness=STALENESS, metrics=metrics or Metrics(), grace=seconds(5))

    async def test_it_is_said_once_and_the_job_stays(self, session: Session, caplog: pytest.LogCaptureFixture) -> None:
        metrics = Metrics()
        (job_id,) = await insert(session, "ready", kind="lost", run_at=ago(10))
        unserved = self.unserved(metrics)
        assert (await unserved.run(session)).rows_changed == 1
        assert (await unserved.run(session)).rows_changed == 0
        job = await look(session, job_id)
        assert (job.state, job.attempt) == (State.AVAILABLE, 0)
        assert [error["error"] for error in job.errors] == ["no handler registered for kind: lost"]
        assert "1 jobs wait in queue default: no handler registered for kind: lost" in caplog.text
        assert metrics.registry.get_sample_value("awa_unserved_jobs_total", {"queue": "default"}) == 1

    async def test_served_kinds_are_left_alone(self, session: Session) -> None:
        await heartbeat_worker(session, worker())
        await insert(session, "ready", run_at=ago(10))
        assert (await self.unserved().run(session)).rows_changed == 0

    async def test_a_worker_of_another_queue_or_kind_or_a_dead_one_does_not_serve(self, session: Session) -> None:
        await heartbeat_worker(session, worker(queue="other"))
        await heartbeat_worker(session, worker(kind="other"))
        dead = worker()
        await heartbeat_worker(session, dead)
        await session.connection.execute(
            "UPDATE awa.workers SET heartbeat_at = now() - interval '2 min' WHERE id = $1", dead.id
        )
        await insert(session, "ready", run_at=ago(10))
        assert (await self.unserved().run(session)).rows_changed == 1

    async def test_a_fresh_job_has_a_grace(self, session: Session) -> None:
        await insert(session, "ready", run_at=ago(1))
        assert (await self.unserved().run(session)).rows_changed == 0

    async def test_many_are_found_in_windows(self, session: Session) -> None:
        await insert(session, "ready", 1200, run_at=ago(10))
        run = Task(name="unserved", interval=seconds(1), run=self.unserved().run)
        assert await run_once(run, session) == 1200

    async def test_two_at_once_say_it_once(self, session: Session, database: Database) -> None:
        jobs = await insert(session, "ready", 300, run_at=ago(10))
        async with another_session(database) as other:
            await asyncio.gather(self.unserved().run(session), self.unserved().run(other))
        errors = [len((await look(session, job_id)).errors) for job_id in jobs[::50]]
        assert errors == [1] * 6
        assert await count(session.connection, "SELECT max(jsonb_array_length(errors)) FROM awa.ready") == 1


class TestTwoAtOnce:
    async def test_promotion(self, session: Session, database: Database) -> None:
        await insert(session, "scheduled", 5000, state="scheduled", run_at=ago(1))
        async with another_session(database) as other:
            done = await asyncio.gather(run_once(task("promote"), session), run_once(task("promote"), other))
        assert sum(done) == 5000
        assert await states(session) == {"available": 5000}

    async def test_rescue(self, session: Session, database: Database) -> None:
        await insert_running(session, 2000, silent_s=100)
        async with another_session(database) as other:
            done = await asyncio.gather(run_once(task("rescue"), session), run_once(task("rescue"), other))
        assert sum(done) == 2000
        assert await states(session) == {"retryable": 2000}

    async def test_cleanup_with_partitions_to_make_and_to_drop(self, session: Session, database: Database) -> None:
        async with another_session(database) as other:
            for _ in range(5):
                await session.connection.execute("SELECT awa.drop_day_partitions('completed', 'infinity')")
                await session.connection.execute(
                    "CREATE TABLE awa.completed_20200101 PARTITION OF awa.completed "
                    "FOR VALUES FROM ('2020-01-01 00:00+00') TO ('2020-01-02 00:00+00')"
                )
                await insert(session, "dead", 100, state="failed", finalized_at=ago(10 * 86_400))
                await asyncio.gather(run_once(task("cleanup"), session), run_once(task("cleanup"), other))
                assert await count(session.connection, "SELECT count(*) FROM awa.dead") == 0
                made = await count(
                    session.connection, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'awa.completed'::regclass"
                )
                assert made == 9


async def test_a_poison_job_ends_in_failed_by_its_crashes_alone(session: Session) -> None:  # A15
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


async def test_every_task_is_fine_with_nothing_to_do(session: Session) -> None:
    for each in all_tasks(Settings(), [], Metrics()):
        assert await run_once(each, session) == 0


async def test_the_table_of_tasks_has_the_intervals_of_the_settings() -> None:  # A1
    intervals = {each.name: each.interval.total_seconds() for each in all_tasks(Settings(), [], Metrics())}
    assert {name: intervals[name] for name in ("promote", "rescue", "deadlines", "cleanup", "cron", "cron-sync")} == {
        "promote": 5,
        "rescue": 30,
        "deadlines": 30,
        "cleanup": 60,
        "cron": 1,
        "cron-sync": 60,
    }
    assert intervals["check"] <= 5


async def test_a_wide_row_moves_through_every_table_unchanged(session: Session) -> None:
    (job_id,) = await put(
        session, NewJob(kind="work", args_json='{"deep": {"a": [1, 2.5, null, "ü"]}}', delay=seconds(1))
    )
    await session.connection.execute("UPDATE awa.scheduled SET run_at = now()")
    await promote_jobs(session, limit=1)
    (row,) = await claim(session)
    await complete_jobs(session, OWNER, [job_id], [row["lease"]], ["{}"], keep=True)
    assert (await look(session, job_id)).args == {"deep": {"a": [1, 2.5, None, "ü"]}}


async def test_overdue_and_stale_at_once_counts_once(session: Session, database: Database) -> None:
    await insert_running(session, 400, silent_s=100, deadline_at=ago(1), worker_id=OWNER)
    async with another_session(database) as other:
        stale = partial(rescue_stale, staleness=STALENESS, metrics=Metrics())
        await asyncio.gather(stale(session), rescue_overdue(other, metrics=Metrics()))
        await stale(session)
    assert await states(session) == {"retryable": 400}
    assert await count(session.connection, "SELECT max(jsonb_array_length(errors)) FROM awa.scheduled") == 1
    cleanup = Cleanup(
        completed_retention=DAY, failed_retention=DAY, events_retention=DAY, rollup_retention=DAY, staleness=STALENESS
    )
    assert (await cleanup.run(session)).rows_changed == 0
