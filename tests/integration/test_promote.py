"""Promotion with an old snapshot: promoted jobs are not scanned again and again."""

import pytest

from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.maintenance.promote import BATCH, Promotion
from awa_py.maintenance.task import Task, run_once
from awa_py.store.maintenance import promote_jobs_since
from awa_py.store.session import Session
from tests.pages import count_pages, snapshot_held
from tests.support import ago, another_session, count, insert, seconds, states

pytestmark = pytest.mark.integration


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
        assert await run_once(task, leader) == 5 * BATCH + 7
        assert await states(leader) == {"available": 5 * BATCH + 7}
