"""Deletion of what is past its retention, and the partitions of the coming days."""

import asyncio
import logging
from datetime import timedelta

import pytest

from awa_py import Settings, State
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.maintenance.task import run_once
from awa_py.store.finish import complete_jobs
from awa_py.store.heartbeat import heartbeat_worker
from awa_py.store.maintenance import (
    delete_completed_jobs,
    delete_dead_jobs,
    delete_free_unique_keys,
    delete_stale_workers,
)
from awa_py.store.partitions import create_day_partitions, drop_completed_partitions
from awa_py.store.session import Session
from tests.support import (
    OWNER,
    ago,
    another_session,
    count,
    insert,
    insert_completed,
    insert_queue,
    insert_running,
    look,
    seconds,
    states,
)
from tests.tasks import leader_task
from tests.workers import worker_info

pytestmark = pytest.mark.integration

STALENESS = timedelta(seconds=90)
DAY = timedelta(days=1)


class TestDeadJobs:
    async def test_dead_jobs_past_the_retention_are_deleted(self, session: Session) -> None:
        await insert(session, "dead", 3, state="failed", finalized_at=ago(3 * 86_400 + 60))
        await insert(session, "dead", 1, state="cancelled", finalized_at=ago(3 * 86_400 + 60))
        await insert(session, "dead", 2, state="failed", finalized_at=ago(60))
        assert await delete_dead_jobs(session, retention=3 * DAY, limit=100) == 4
        assert await states(session) == {"failed": 2}

    async def test_retention_of_the_queue_takes_precedence(self, session: Session) -> None:  # F17
        await insert_queue(session, "brief", failed_retention=seconds(60))
        await insert_queue(session, "long", failed_retention=seconds(1000 * 86_400))
        for queue in ("brief", "long", "default"):
            await insert(session, "dead", state="failed", queue=queue, finalized_at=ago(3600))
        assert await delete_dead_jobs(session, retention=3 * DAY, limit=100) == 1
        await session.connection.execute("UPDATE awa.dead SET finalized_at = now() - interval '10 days'")
        assert await delete_dead_jobs(session, retention=3 * DAY, limit=100) == 1
        assert await session.connection.fetchval("SELECT queue FROM awa.dead") == "long"

    async def test_batch_is_bounded_and_deletes_the_oldest_jobs(self, session: Session) -> None:
        for age in (20, 30, 10):
            await insert(session, "dead", state="failed", finalized_at=ago(age * 86_400), priority=age // 10)
        assert await delete_dead_jobs(session, retention=DAY, limit=2) == 2
        assert await session.connection.fetchval("SELECT priority FROM awa.dead") == 1

    async def test_task_runs_until_a_batch_is_not_full(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("awa_py.maintenance.cleanup.ROWS_PER_BATCH", 100)
        await insert(session, "dead", 250, state="failed", finalized_at=ago(10 * 86_400))
        cleanup = leader_task("cleanup")
        assert (await cleanup.run(session)).rows_changed == 100
        assert (await run_once(cleanup, session)).rows_changed == 150


class TestCompletedJobs:
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

    async def test_partitions_exist_for_the_coming_days(self, session: Session) -> None:
        today = await session.connection.fetchval("SELECT (now() AT TIME ZONE 'UTC')::date")
        days = [(today + timedelta(days=n)).strftime("%Y%m%d") for n in range(8)]
        assert await self.partitions(session) == [*days, "default"]
        assert await create_day_partitions(session, "completed", days_ahead=9) == 2
        assert await create_day_partitions(session, "completed", days_ahead=9) == 0

    async def test_partition_starts_at_midnight_utc_in_any_session_timezone(self, session: Session) -> None:
        await session.connection.execute("SET timezone = 'Pacific/Auckland'")
        await session.connection.execute("SELECT awa.drop_day_partitions('completed', 'infinity')")
        assert await create_day_partitions(session, "completed", days_ahead=7) == 8
        await insert_completed(session, 5, age_s=0)
        today = await session.connection.fetchval("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')")
        assert await count(session.connection, f"SELECT count(*) FROM awa.completed_{today}") == 5

    async def test_old_partition_is_dropped(self, session: Session) -> None:
        await self.add_partition(session, "2020-01-01", "2020-01-02")
        await session.connection.execute(
            "INSERT INTO awa.completed (kind, worker_id, attempted_at, finalized_at) "
            "SELECT 'work', gen_random_uuid(), '2020-01-01 12:00+00', '2020-01-01 12:00+00' FROM generate_series(1, 9)"
        )
        await insert_completed(session, 2, age_s=0)
        assert await drop_completed_partitions(session, retention=DAY) == 1
        assert "20200101" not in await self.partitions(session)
        assert await states(session) == {"completed": 2}

    async def test_partition_is_kept_while_a_queue_keeps_its_jobs(self, session: Session) -> None:
        await self.add_partition(session, "2020-01-01", "2020-01-02")
        await insert_queue(session, "archive", completed_retention=timedelta(days=36_500))
        assert await drop_completed_partitions(session, retention=DAY) == 0
        await insert_queue(session, "archive", completed_retention=DAY)
        assert await drop_completed_partitions(session, retention=DAY) == 1

    async def test_partition_of_yesterday_is_kept_until_its_last_job_is_old(self, session: Session) -> None:
        yesterday, today = await session.connection.fetchrow(  # type: ignore[misc]
            "SELECT to_char(now() AT TIME ZONE 'UTC' - interval '1 day', 'YYYY-MM-DD'), "
            "to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD')"
        )
        await self.add_partition(session, yesterday, today)
        assert await drop_completed_partitions(session, retention=DAY) == 0

    async def test_jobs_in_the_default_partition_move_to_the_new_partition_of_their_day(self, session: Session) -> None:
        await session.connection.execute("SELECT awa.drop_day_partitions('completed', 'infinity')")
        jobs = await insert_completed(session, 3, age_s=0)
        assert await count(session.connection, "SELECT count(*) FROM awa.completed_default") == 3
        assert await create_day_partitions(session, "completed", days_ahead=7) == 8
        assert await count(session.connection, "SELECT count(*) FROM awa.completed_default") == 0
        assert [(await look(session, job_id)).state for job_id in jobs] == [State.COMPLETED] * 3

    async def test_retention_below_a_day_deletes_rows(self, session: Session) -> None:
        await insert_completed(session, 3, age_s=700)
        await insert_completed(session, 2, age_s=0)
        assert await delete_completed_jobs(session, retention=seconds(600), limit=100) == 3
        assert await states(session) == {"completed": 2}

    async def test_batch_of_completed_jobs_is_bounded(self, session: Session) -> None:
        await insert_completed(session, 3, age_s=30 * 86_400)  # in the default partition
        await insert_completed(session, 3, age_s=700)
        deleted = [await delete_completed_jobs(session, retention=seconds(600), limit=2) for _ in range(4)]
        assert deleted == [2, 2, 2, 0]

    async def test_shorter_retention_of_a_queue_deletes_only_its_rows(self, session: Session) -> None:  # F17
        await insert_queue(session, "brief", completed_retention=seconds(600))
        await insert_completed(session, 3, age_s=700, queue="brief")
        await insert_completed(session, 3, age_s=700)
        assert await delete_completed_jobs(session, retention=DAY, limit=100) == 3
        assert await session.connection.fetchval("SELECT DISTINCT queue FROM awa.completed") == "default"

    async def test_rows_of_a_partition_that_will_be_dropped_are_not_deleted(self, session: Session) -> None:
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

    async def test_12_000_rows_are_deleted_within_the_statement_timeout(self, database: Database) -> None:
        async with another_session(database, statement_timeout="10000", **STABLE_PLAN_SETTINGS) as leader:
            await insert_completed(leader, 12_000, age_s=700)
            settings = Settings(completed_retention=seconds(600))
            assert (await run_once(leader_task("cleanup", settings), leader)).rows_changed == 12_000
            assert await states(leader) == {}

    async def test_long_reading_transaction_does_not_block_the_cleanup(
        self, database: Database, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with another_session(database) as reader, another_session(database, lock_timeout="100") as leader:
            await self.add_partition(leader, "2020-01-01", "2020-01-02")
            await insert(leader, "dead", 3, state="failed", finalized_at=ago(10 * 86_400))
            async with reader.connection.transaction():
                await reader.connection.fetch("SELECT count(*) FROM awa.completed")
                with caplog.at_level(logging.INFO):
                    assert (await run_once(leader_task("cleanup"), leader)).rows_changed == 3
                assert "the partitions of table completed are in use" in caplog.text
                assert "20200101" in await self.partitions(leader)
                (job_id,) = await insert_running(leader)
                async with asyncio.timeout(5):  # no other session waits behind the cleanup
                    await complete_jobs(leader, OWNER, [job_id], [1], [None], keep=True)
            assert (await run_once(leader_task("cleanup"), leader)).rows_changed == 1
            assert "20200101" not in await self.partitions(leader)


async def test_only_free_unique_keys_are_deleted(session: Session) -> None:
    await session.connection.execute("SELECT awa.enqueue('work', unique_key => 'held')")
    await session.connection.execute("SELECT awa.enqueue('work', unique_key => 'period', unique_for => '1 hour')")
    await session.connection.execute("SELECT awa.enqueue('work', unique_key => 'over', unique_for => '0')")
    gone = await session.connection.fetchval("SELECT awa.enqueue('work', unique_key => 'gone')")
    await session.connection.execute("DELETE FROM awa.ready WHERE id = $1", gone)
    assert await delete_free_unique_keys(session, after="", limit=100) == (None, 2)
    rows = await session.connection.fetch("SELECT key FROM awa.unique_keys ORDER BY key")
    assert [row["key"] for row in rows] == ["held", "period"]


async def test_unique_keys_are_checked_window_by_window(session: Session) -> None:
    await session.connection.execute(
        "INSERT INTO awa.unique_keys (key, job_id, states) "
        "SELECT to_char(n, 'FM000'), 0, '{running}' FROM generate_series(1, 25) AS n"
    )
    assert await delete_free_unique_keys(session, after="", limit=10) == ("010", 10)
    assert await delete_free_unique_keys(session, after="010", limit=10) == ("020", 10)
    assert await delete_free_unique_keys(session, after="020", limit=10) == (None, 5)


async def test_stale_workers_are_deleted(session: Session) -> None:  # F22
    for _ in range(2):
        await heartbeat_worker(session, worker_info())
    await session.connection.execute(
        "UPDATE awa.workers SET heartbeat_at = now() - interval '901 seconds' "
        "WHERE id = (SELECT id FROM awa.workers LIMIT 1)"
    )
    assert await delete_stale_workers(session, staleness=STALENESS) == 1
    assert await count(session.connection, "SELECT count(*) FROM awa.workers") == 1


async def test_two_leaders_can_create_and_drop_partitions_at_once(session: Session, database: Database) -> None:
    async with another_session(database) as other:
        for _ in range(5):
            await session.connection.execute("SELECT awa.drop_day_partitions('completed', 'infinity')")
            await session.connection.execute(
                "CREATE TABLE awa.completed_20200101 PARTITION OF awa.completed "
                "FOR VALUES FROM ('2020-01-01 00:00+00') TO ('2020-01-02 00:00+00')"
            )
            await insert(session, "dead", 100, state="failed", finalized_at=ago(10 * 86_400))
            await asyncio.gather(run_once(leader_task("cleanup"), session), run_once(leader_task("cleanup"), other))
            assert await count(session.connection, "SELECT count(*) FROM awa.dead") == 0
            made = await count(
                session.connection, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'awa.completed'::regclass"
            )
            assert made == 9
