"""The roll-up: per-minute counts and percentiles of the jobs that ended."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from awa_py import Settings
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.maintenance import rollup
from awa_py.maintenance.reports import RollUpReport
from awa_py.maintenance.rollup import MAX_CATCH_UP, MINUTE, REPEATED_MINUTES, RollUp
from awa_py.maintenance.task import TaskResult, run_once
from awa_py.observability.latency_histogram import merge, percentile
from awa_py.store import metric_buckets
from awa_py.store.metric_buckets import Bucket
from awa_py.store.session import Session
from tests.pages import count_pages
from tests.support import OWNER, another_session, count, insert, seconds
from tests.tasks import leader_task

pytestmark = pytest.mark.integration

RETENTION = timedelta(days=30)
BUCKETS = "SELECT count(*) FROM awa.metric_buckets"


async def this_minute(session: Session) -> datetime:
    """Return the current minute of the database's clock. Wait if it ends too soon."""
    while (now := await session.now()).second > 50:
        await asyncio.sleep(1)
    return now.replace(second=0, microsecond=0)


async def insert_ended(
    session: Session, at: datetime, rows: int = 1, *, wait_s: float = 1.0, run_s: float = 0.1, **columns: Any
) -> None:
    """Insert jobs that ended at this time."""
    table = "completed" if "state" not in columns else "dead"
    began = at - seconds(run_s)
    given = {"worker_id": OWNER, "lease": 1, "attempt": 1, "run_at": began - seconds(wait_s), "attempted_at": began}
    await insert(session, table, rows, **{**given, "finalized_at": at, **columns})


async def list_all_buckets(session: Session) -> list[Bucket]:
    return await metric_buckets.list_buckets(
        session, datetime.fromisoformat("2000-01-01T00:00Z"), queue=None, kind=None
    )


async def roll_up(session: Session) -> int:
    return (await run_once(leader_task("rollup"), session)).rows_changed


class TestBuckets:  # F16
    async def test_minute_has_counts_and_percentiles_by_queue_and_kind(self, session: Session) -> None:
        minute = await this_minute(session) - MINUTE
        await insert_ended(session, minute + seconds(5), 90, queue="a", kind="short", wait_s=0.01, run_s=0.2)
        await insert_ended(session, minute + seconds(9), 10, queue="a", kind="short", wait_s=5, run_s=30, attempt=3)
        await insert_ended(session, minute, 2, queue="a", kind="long", state="failed", attempt=4)
        await insert_ended(session, minute, 3, queue="b", kind="short", state="cancelled", attempt=0, attempted_at=None)
        assert await roll_up(session) == 3
        long, short, unrun = await list_all_buckets(session)
        assert (short.at, short.queue, short.kind) == (minute, "a", "short")
        assert (short.completed, short.failed, short.cancelled, short.retried) == (100, 0, 0, 20)
        assert (long.completed, long.failed, long.cancelled, long.retried) == (0, 2, 0, 6)
        assert (unrun.queue, unrun.cancelled, unrun.retried) == ("b", 3, 0)
        exact = {"wait_p50": 0.01, "wait_p95": 5, "wait_p99": 5, "run_p50": 0.2, "run_p95": 30, "run_p99": 30}
        for name, value in exact.items():
            assert getattr(short, name) == pytest.approx(value, rel=0.06), name
            assert getattr(unrun, name) is None

    async def test_minute_starts_at_second_zero(self, session: Session) -> None:
        minute = await this_minute(session) - MINUTE
        for at in (minute - seconds(0.001), minute, minute + seconds(59.999)):
            await insert_ended(session, at)
        await roll_up(session)
        assert [(bucket.at, bucket.completed) for bucket in await list_all_buckets(session)] == [
            (minute - MINUTE, 1),
            (minute, 2),
        ]

    async def test_repeated_roll_up_changes_nothing(self, session: Session) -> None:
        minute = await this_minute(session)
        for n in range(REPEATED_MINUTES):
            await insert_ended(session, minute - n * MINUTE, 5 + n)
        assert await roll_up(session) == 3
        first = await list_all_buckets(session)
        for _ in range(3):
            assert await roll_up(session) == 0
        assert await list_all_buckets(session) == first

    async def test_last_three_minutes_are_rolled_up_again(self, session: Session) -> None:
        minute = await this_minute(session)
        for n in range(5):
            await insert_ended(session, minute - n * MINUTE)
        task = RollUp(RETENTION)
        while (await task.run(session)).has_more:
            pass
        for n in range(5):  # these commit late
            await insert_ended(session, minute - n * MINUTE)
        assert await task.run(session) == TaskResult(RollUpReport(metric_buckets=REPEATED_MINUTES))
        assert [bucket.completed for bucket in await list_all_buckets(session)] == [1, 1, 2, 2, 2]

    async def test_deleted_jobs_still_count(self, session: Session) -> None:
        minute = await this_minute(session)
        await insert_ended(session, minute, 5)
        await insert_ended(session, minute, 5, kind="other")
        assert await roll_up(session) == 2
        await session.connection.execute("DELETE FROM awa.completed WHERE kind = 'other'")
        await session.connection.execute("DELETE FROM awa.completed WHERE id = (SELECT min(id) FROM awa.completed)")
        assert await roll_up(session) == 0
        assert [bucket.completed for bucket in await list_all_buckets(session)] == [5, 5]

    async def test_job_that_ends_twice_in_a_minute_counts_twice(self, session: Session) -> None:
        minute = await this_minute(session)
        await insert_ended(session, minute, 3, state="failed", run_s=5.0)
        await roll_up(session)
        await session.connection.execute("DELETE FROM awa.dead")
        await insert_ended(session, minute, 2, run_s=0.1)
        await roll_up(session)
        (bucket,) = await list_all_buckets(session)
        assert (bucket.completed, bucket.failed) == (2, 3)
        assert (bucket.run_p50 or 0) > 4  # percentile of the three failed jobs
        await insert_ended(session, minute, 8, run_s=0.1)
        await roll_up(session)
        (bucket,) = await list_all_buckets(session)
        assert (bucket.completed, bucket.failed) == (10, 3)
        assert (bucket.run_p50 or 9) < 1  # percentile of the ten completed jobs
        assert await roll_up(session) == 0

    async def test_two_leaders_count_each_job_once(self, session: Session, database: Database) -> None:
        minute = await this_minute(session)
        await insert_ended(session, minute, 1000)
        async with another_session(database) as other:
            done = await asyncio.gather(roll_up(session), roll_up(other))
        assert sum(done) in (1, 2)
        assert [bucket.completed for bucket in await list_all_buckets(session)] == [1000]


class TestCatchUp:  # F16
    async def test_new_leader_rolls_up_the_missed_minutes(self, session: Session) -> None:
        minute = await this_minute(session)
        await insert_ended(session, minute - 40 * MINUTE)
        await metric_buckets.roll_up_minutes(
            session, minute - 40 * MINUTE, minute - 39 * MINUTE
        )  # no leader since then
        for n in range(40):
            await insert_ended(session, minute - n * MINUTE)
        assert await roll_up(session) == 40
        assert [bucket.at for bucket in await list_all_buckets(session)] == [
            minute - n * MINUTE for n in range(40, -1, -1)
        ]

    async def test_new_leader_rolls_up_at_most_an_hour(self, session: Session) -> None:
        minute = await this_minute(session)
        for n in (0, 59, 60, 61, 62, 300):
            await insert_ended(session, minute - n * MINUTE)
        assert await roll_up(session) == 3
        assert minute - (await list_all_buckets(session))[0].at == MAX_CATCH_UP

    async def test_fast_batches_grow(self, session: Session) -> None:
        task = RollUp(RETENTION)
        batches = 1
        while (await task.run(session)).has_more:
            batches += 1
        assert batches < 15
        assert (await task.run(session)).has_more is False  # from now on, the last three minutes in one batch

    async def test_slow_batches_shrink_to_one_minute(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rollup, "SLOW_BATCH_S", 0.0)
        minute = await this_minute(session)
        for n in range(10):
            await insert_ended(session, minute - n * MINUTE)
        task = RollUp(RETENTION)
        written = 0
        while (batch := await task.run(session)).has_more:
            written += batch.rows_changed
        assert task.minutes_per_batch == 1
        assert written + batch.rows_changed == 10


class TestRetention:
    async def test_roll_ups_past_the_retention_are_deleted(self, session: Session) -> None:  # F16
        for days in (0, 29, 31, 40):
            await session.connection.execute(
                "INSERT INTO awa.metric_buckets (at, queue, kind, completed, failed, cancelled, retried) "
                "VALUES (date_trunc('minute', now()) - $1::interval, 'q', 'k', 1, 0, 0, 0)",
                timedelta(days=days),
            )
        assert (await run_once(leader_task("cleanup"), session)).rows_changed == 2
        assert await count(session.connection, BUCKETS) == 2

    async def test_retention_of_zero_disables_the_roll_up(self, session: Session) -> None:
        await insert_ended(session, await this_minute(session))
        assert (await run_once(leader_task("rollup", Settings(rollup_retention=seconds(0))), session)).rows_changed == 0
        assert await count(session.connection, BUCKETS) == 0


class TestSums:
    async def test_sums_and_percentiles_cover_many_minutes(self, session: Session) -> None:
        minute = await this_minute(session)
        for n in range(20):
            await insert_ended(session, minute - n * MINUTE, 9, queue="a", kind="x", wait_s=0.01)
            await insert_ended(session, minute - n * MINUTE, 1, queue="a", kind="x", wait_s=100, attempt=2)
        await insert_ended(session, minute, 4, queue="a", kind="y", state="failed")
        await insert_ended(session, minute - 50 * MINUTE, 4, queue="a", kind="x")
        await roll_up(session)
        first = minute - 19 * MINUTE
        x, y = await metric_buckets.sum_buckets(session, first, queue=None, kind=None, slot_minutes=5)
        assert (x.queue, x.kind, x.completed, x.failed, x.retried) == ("a", "x", 200, 0, 20)
        assert (y.completed, y.failed) == (0, 4)
        # 180 short waits and 20 long ones: an average of the minutes' percentiles would hide that.
        assert percentile(x.waits, 0.5) == pytest.approx(0.01, rel=0.06)
        assert percentile(x.waits, 0.89) == pytest.approx(0.01, rel=0.06)
        assert percentile(x.waits, 0.91) == pytest.approx(100, rel=0.06)
        assert sum(merge([x.runs, y.runs]).values()) == 204
        assert x.slots == {0: 50, 1: 50, 2: 50, 3: 50}
        assert y.slots == {3: 4}

    @pytest.mark.parametrize(
        ("chosen", "found"),
        [
            ({"queue": "a"}, [("a", "x"), ("a", "y")]),
            ({"kind": "x"}, [("a", "x"), ("b", "x")]),
            ({"queue": "b", "kind": "x"}, [("b", "x")]),
            ({"queue": "c"}, []),
        ],
    )
    async def test_sums_can_be_restricted_to_a_queue_or_a_kind(
        self, session: Session, chosen: dict[str, str], found: list[tuple[str, str]]
    ) -> None:
        minute = await this_minute(session)
        for queue, kind in (("a", "x"), ("a", "y"), ("b", "x")):
            await insert_ended(session, minute, queue=queue, kind=kind)
        await roll_up(session)
        only: dict[str, Any] = {"queue": None, "kind": None, **chosen}
        sums = await metric_buckets.sum_buckets(session, minute, slot_minutes=1, **only)
        assert [(each.queue, each.kind) for each in sums] == found
        assert [(each.queue, each.kind) for each in await metric_buckets.list_buckets(session, minute, **only)] == found


@pytest.mark.parametrize("length_s", [0.0, 0.0005, 0.001, 0.00101, 0.0123, 1, 59.3, 86_400, 10**6, 10**9])
async def test_database_and_python_use_the_same_latency_buckets(session: Session, length_s: float) -> None:
    cell = await session.connection.fetchval("SELECT awa.latency_bucket($1)", seconds(length_s))
    middle = await session.connection.fetchval("SELECT awa.latency_bucket_seconds($1)", cell)
    assert percentile({cell: 1}, 0.5) == pytest.approx(middle)
    if 0.001 <= length_s <= 10**6:
        assert middle == pytest.approx(length_s, rel=0.06)


async def test_missing_duration_has_no_latency_bucket(session: Session) -> None:
    for nothing in ("awa.latency_bucket(NULL)", "awa.latency_bucket_seconds(NULL)"):
        assert await session.connection.fetchval(f"SELECT {nothing}") is None


async def test_roll_up_of_three_minutes_does_not_read_the_whole_day(database: Database) -> None:
    """With the leader's plan settings. VACUUM has run, as autovacuum does after this many rows."""
    async with another_session(database, **STABLE_PLAN_SETTINGS) as leader:
        minute = await this_minute(leader)
        await leader.connection.execute(
            "INSERT INTO awa.completed (kind, queue, worker_id, attempt, lease, run_at, attempted_at, finalized_at) "
            "SELECT 'work', 'q', $1, 1, 1, at, at, at "
            "FROM (SELECT $2::timestamptz - n * interval '300 ms' AS at FROM generate_series(200000, 1, -1) AS n) AS t",
            OWNER,
            minute,
        )
        await leader.connection.execute("VACUUM ANALYZE awa.completed")
        rows, pages = await leader.connection.fetchrow(  # type: ignore[misc]
            "SELECT sum(reltuples), sum(relpages) FROM pg_class JOIN pg_inherits ON oid = inhrelid "
            "WHERE inhparent = 'awa.completed'::regclass"
        )
        assert rows == 200_000
        for _ in range(2):
            async with count_pages(leader) as pages_read:
                assert await metric_buckets.roll_up_minutes(leader, minute - 2 * MINUTE, minute + MINUTE) == 2
                spent = await pages_read()
        print(spent.total, "of", pages, spent.blocks)
        assert spent.whole_tables <= {"completed_default"}
        assert spent.of("completed") < pages / 5
