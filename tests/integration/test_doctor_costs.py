"""`awa doctor` reads as few pages of a large database as of a small one."""

import pytest

from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.store import backlog, partitions
from awa_py.store.session import Session
from tests.pages import PageCounts, count_pages
from tests.support import another_session, insert, insert_completed, insert_running, seconds

pytestmark = pytest.mark.integration

HOT = {"ready", "scheduled", "running", "completed", "dead"}
ROWS = 20_000
STALENESS = seconds(90)


async def fill(session: Session) -> None:
    """Fill three queues with many jobs, in an order that matches no index."""
    await session.connection.execute(
        "INSERT INTO awa.ready (kind, queue, priority) "
        "SELECT 'k' || n % 7, 'q' || n % 3, 1 + n % 4 FROM generate_series(1, $1::int) AS n",
        ROWS,
    )
    await session.connection.execute(
        "INSERT INTO awa.scheduled (state, kind, run_at) "
        "SELECT 'scheduled', 'work', now() + n % 1000 * interval '1 minute' FROM generate_series(1, $1::int) AS n",
        ROWS,
    )
    await insert_running(session, ROWS, silent_s=30)
    await insert_completed(session, ROWS, age_s=60)
    await session.connection.execute("ANALYZE")


async def run_queries(session: Session) -> None:
    """Run all queries of the checks that read jobs, with the same limits."""
    queues = await backlog.list_waiting_queues(session, limit=1_000, count_to=101, staleness=STALENESS)
    assert [queue.jobs for queue in queues] == [101, 101, 101]
    names = [queue.name for queue in queues]
    unserved = await backlog.list_unserved_kinds(session, names, look_at=25, staleness=STALENESS)
    assert len(unserved) == 21
    await backlog.get_overdue_work(session, look_at=1_000, staleness=STALENESS, grace=STALENESS)
    await backlog.get_stuck_waits(session, look_at=1_000, grace=STALENESS, long=STALENESS)
    assert await partitions.find_stray_completed_job(session) is None


async def test_checks_read_only_the_head_of_long_queues(database: Database) -> None:
    async with another_session(database, **STABLE_PLAN_SETTINGS) as session:
        await fill(session)
        cost = await cost_of_queries(session)
        # 101 jobs of each queue, 25 of each priority, and the first thousand running ones.
        assert cost.of("ready") < 2_000, cost.blocks
        assert cost.of("running") < 2_500, cost.blocks
        assert cost.of("scheduled") < 30, cost.blocks
        assert not cost.whole_tables & HOT, cost.whole_tables
        await insert(session, "ready", 3 * ROWS, queue="q1", kind="k1")
        await insert_running(session, ROWS)
        assert (await cost_of_queries(session)).total < cost.total * 1.1 + 50


async def cost_of_queries(session: Session) -> PageCounts:
    async with count_pages(session) as pages_read:
        await run_queries(session)
        return await pages_read()
