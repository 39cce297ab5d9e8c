"""Promotion: due jobs become available, and promoted jobs are not scanned again and again."""

import asyncio
import time

import pytest

from awa_py import NewJob, State
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.maintenance.promote import BATCH, Promotion
from awa_py.maintenance.task import Task, run_once
from awa_py.store.finish import complete_jobs
from awa_py.store.maintenance import promote_jobs, promote_jobs_since
from awa_py.store.session import Session
from tests.pages import count_pages, snapshot_held
from tests.support import (
    OWNER,
    FromNow,
    ago,
    another_session,
    claim,
    count,
    insert,
    listen,
    look,
    put,
    put_one,
    seconds,
    states,
)
from tests.tasks import leader_task

pytestmark = pytest.mark.integration  # A13


async def test_due_jobs_become_available_in_order_of_run_at(session: Session) -> None:
    (late,) = await insert(session, "scheduled", state="scheduled", run_at=ago(1))
    (early,) = await insert(session, "scheduled", state="retryable", run_at=ago(9), attempt=2, lease=2)
    (future,) = await insert(session, "scheduled", state="scheduled", run_at=FromNow(60))
    assert (await promote_jobs(session, limit=10))[0] == 2
    rows = await claim(session, limit=5)
    assert [row["id"] for row in rows] == [early, late]
    assert (rows[0]["attempt"], rows[0]["lease"]) == (3, 3)
    assert (await look(session, future)).state is State.SCHEDULED


async def test_batch_is_bounded_and_promotes_the_earliest_jobs(session: Session) -> None:
    for age in (3, 9, 6):
        await insert(session, "scheduled", state="scheduled", run_at=ago(age), args=f'{{"age": {age}}}')
    assert (await promote_jobs(session, limit=2))[0] == 2
    rows = await claim(session, limit=5)
    assert [row["args"] for row in rows] == ['{"age": 9}', '{"age": 6}']


async def test_promotion_returns_the_time_until_the_next_due_job(session: Session) -> None:  # P4
    assert await promote_jobs(session, limit=10) == (0, None)
    await put_one(session, delay=seconds(7))
    promoted, next_s = await promote_jobs(session, limit=10)
    assert promoted == 0
    assert next_s is not None
    assert 5 < next_s <= 7


async def test_waiting_jobs_are_promoted_when_their_timer_fires(session: Session) -> None:
    await insert(session, "scheduled", state="waiting", waits="{}", run_at=ago(60))
    await insert(session, "scheduled", state="waiting", waits="{}", run_at=ago(-60))
    promoted, next_s = await promote_jobs(session, limit=10)
    assert promoted == 1
    assert next_s is not None


async def test_promotion_notifies_workers_once_per_queue(session: Session) -> None:
    notifications = await listen(session, "a", "b")
    for queue in ("a", "a", "b", "without-listeners"):
        await insert(session, "scheduled", state="scheduled", run_at=ago(1), queue=queue)
    await promote_jobs(session, limit=10)
    await session.connection.execute("SELECT 1")
    assert sorted(notifications) == ["ready:a", "ready:b"]


async def test_100_000_due_jobs_are_promoted_in_batches_while_claims_go_on(
    session: Session, database: Database
) -> None:
    total = 100_000
    await insert(session, "scheduled", total, state="scheduled", run_at=ago(60))
    promoting = asyncio.Event()
    claimed: list[int] = []
    times_s: list[float] = []
    claimed_during_promotion = 0

    async def drain(own: Session) -> None:
        nonlocal claimed_during_promotion
        while len(claimed) < total:
            began = time.monotonic()
            rows = await claim(own, limit=500)
            times_s.append(time.monotonic() - began)
            claimed.extend(row["id"] for row in rows)
            claimed_during_promotion += 0 if promoting.is_set() else len(rows)
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
    assert claimed_during_promotion > 0
    assert len(claimed) == len(set(claimed)) == total
    p50, p99 = (sorted(times_s)[int(len(times_s) * share)] * 1000 for share in (0.5, 0.99))
    print(f"{len(times_s)} claims of up to 500: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    assert p99 < 5000


async def test_two_leaders_promote_each_job_once(session: Session, database: Database) -> None:
    await insert(session, "scheduled", 5000, state="scheduled", run_at=ago(1))
    async with another_session(database) as other:
        done = await asyncio.gather(run_once(leader_task("promote"), session), run_once(leader_task("promote"), other))
    assert sum(report.rows_changed for report in done) == 5000
    assert await states(session) == {"available": 5000}


async def test_promotion_skips_locked_jobs(session: Session, database: Database) -> None:
    await insert(session, "scheduled", 2, state="scheduled", run_at=ago(9))
    async with another_session(database) as other, other.connection.transaction():
        await other.connection.execute("SELECT FROM awa.scheduled ORDER BY id LIMIT 1 FOR UPDATE")
        async with asyncio.timeout(5):
            assert (await promote_jobs(session, limit=10))[0] == 1


async def test_arguments_are_unchanged_after_moving_through_every_table(session: Session) -> None:
    (job_id,) = await put(
        session, NewJob(kind="work", args_json='{"deep": {"a": [1, 2.5, null, "ü"]}}', delay=seconds(1))
    )
    await session.connection.execute("UPDATE awa.scheduled SET run_at = now()")
    await promote_jobs(session, limit=1)
    (row,) = await claim(session)
    await complete_jobs(session, OWNER, [job_id], [row["lease"]], ["{}"], keep=True)
    assert (await look(session, job_id)).args == {"deep": {"a": [1, 2.5, None, "ü"]}}


# With an old snapshot.


async def insert_due(session: Session, number: int, *, for_s: float) -> None:
    """Insert jobs that became due one after another until ten seconds ago, in random order."""
    await session.connection.execute(
        "INSERT INTO awa.scheduled (kind, state, run_at) "
        "SELECT 'work', 'scheduled', now() - interval '10 s' - $2::interval * (n / $1::float8) "
        "FROM generate_series(1, $1::int) AS n ORDER BY random()",
        number,
        seconds(for_s),
    )


async def pages_read_by(session: Session, promotion: Promotion | None) -> int:
    """Return the pages that the next promotion reads; None: a promotion without a cursor."""
    since = None if promotion is None else promotion._promoted_until
    async with count_pages(session) as pages_read:
        await promote_jobs_since(session, since, limit=BATCH)
        return (await pages_read()).total


async def test_promoted_jobs_are_not_scanned_again(database: Database) -> None:
    promotion = Promotion()
    async with another_session(database, **STABLE_PLAN_SETTINGS) as leader, snapshot_held(database):
        await insert_due(leader, 20_000, for_s=600)
        for _ in range(10):
            assert (await promotion.run(leader)).rows_changed == BATCH
        early = await pages_read_by(leader, promotion)
        for _ in range(10):
            assert (await promotion.run(leader)).rows_changed == BATCH
        late, from_zero = await pages_read_by(leader, promotion), await pages_read_by(leader, None)
        print(
            f"pages: {early} in the middle, with a batch to promote; {late} at the end; {from_zero} from the beginning"
        )
        assert await states(leader) == {"available": 20_000}
        assert late < 50  # nothing is left
        assert from_zero > 20 * late  # otherwise this test shows nothing


async def test_all_batches_of_a_backlog_cost_the_same(database: Database) -> None:
    """Compare the pages of `scheduled` and its index that the first and the last batches read."""
    promotion = Promotion()
    costs: list[int] = []

    async def read(session: Session) -> int:
        await session.connection.execute("SELECT pg_stat_force_next_flush()")
        return await count(
            session.connection,
            "SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit FROM pg_statio_user_tables "
            "WHERE relname = 'scheduled'",
        )

    async with another_session(database, **STABLE_PLAN_SETTINGS) as leader, snapshot_held(database):
        await insert_due(leader, 40_000, for_s=600)
        before = await read(leader)
        while (await promotion.run(leader)).has_more:
            after = await read(leader)
            costs.append(after - before)
            before = after
    print(f"pages: {costs}")
    assert len(costs) == 40
    # Medians, because a full scan every two seconds is expensive.
    first, last = sorted(costs[:20]), sorted(costs[20:])
    assert last[10] < 2 * first[10]


async def test_job_that_is_committed_late_is_promoted(database: Database) -> None:
    promotion = Promotion()
    async with another_session(database) as leader, another_session(database) as producer:
        late = producer.connection.transaction()
        await late.start()
        await insert(producer, "scheduled", 2_500, state="scheduled", run_at=ago(100))
        await insert_due(leader, 2 * BATCH, for_s=50)
        while (await promotion.run(leader)).has_more:
            pass
        assert await states(leader) == {"available": 2 * BATCH}
        await late.commit()
        batch = await promotion.run(leader)
        if not batch.rows_changed:  # the scan from the cursor found nothing: a full scan follows
            assert batch.next_due_s is not None
            assert batch.next_due_s < 5
            promotion._full_scan.allowed_at = 0.0
            batch = await promotion.run(leader)
        assert (batch.rows_changed, batch.has_more) == (BATCH, True)
        assert (await promotion.run(leader)).rows_changed == BATCH  # the rest follows without another full scan
        assert (await promotion.run(leader)).rows_changed == 500


async def test_jobs_of_the_last_second_are_scanned_again(database: Database) -> None:
    """A job may be due before the transaction that enqueues it has been committed."""
    promotion = Promotion()
    async with another_session(database) as leader, another_session(database) as producer:
        late = producer.connection.transaction()
        await late.start()
        await insert(producer, "scheduled", 1, state="scheduled", run_at=ago(0))
        await insert(leader, "scheduled", 1, state="scheduled", run_at=ago(0))
        while not (await promotion.run(leader)).rows_changed:
            pass
        await late.commit()
        promotion._full_scan._due_at = promotion._full_scan.allowed_at = float("inf")
        assert (await promotion.run(leader)).rows_changed == 1


async def test_run_once_promotes_everything(database: Database) -> None:
    async with another_session(database) as leader:
        await insert_due(leader, 3 * BATCH + 7, for_s=86_400)
        await insert(leader, "scheduled", 2 * BATCH, state="scheduled", run_at=ago(5))  # all at the same moment
        task = Task(name="promote", interval=seconds(5), run=Promotion().run)
        assert (await run_once(task, leader)).rows_changed == 5 * BATCH + 7
        assert await states(leader) == {"available": 5 * BATCH + 7}
