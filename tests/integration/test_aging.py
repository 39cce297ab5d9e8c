"""Aging: jobs that have waited too long move up by one priority."""

import asyncio
from typing import Any

import pytest

import awa_py as awa
from awa_py import App, Settings, State
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.maintenance.aging import MAX_JOBS, Aging
from awa_py.maintenance.task import Task, run_once
from awa_py.maintenance.tasks import all_tasks
from awa_py.observability.metrics import Metrics
from awa_py.store.claim import PRIORITIES
from awa_py.store.maintenance import age_jobs
from awa_py.store.session import Session
from tests.pages import count_pages
from tests.support import ago, another_session, claim, eventually, insert, insert_queue, look, seconds, working

pytestmark = pytest.mark.integration

AGE = seconds(60)


async def run_aging(session: Session) -> int:
    moved, last_queue = await age_jobs(session, after="", queues=100, age=AGE, limit=MAX_JOBS)
    assert last_queue is None
    return moved


async def insert_available(session: Session, count: int = 1, *, waited_s: float = 0, **columns: Any) -> list[int]:
    return await insert(session, "ready", count, entered_at=ago(waited_s), **columns)


async def priorities(session: Session, *jobs: int) -> list[int]:
    return [(await look(session, job)).priority for job in jobs]


KEYED: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 1, "ordered": False}


async def test_jobs_of_an_ordered_key_keep_their_priority(session: Session) -> None:
    """A job before them may wait for its next attempt, and returns to its place."""
    await insert_available(session, priority=1)
    (behind,) = await insert_available(session, priority=2, waited_s=61, **KEYED | {"ordered": True})
    assert await run_aging(session) == 0
    assert await priorities(session, behind) == [2]


@pytest.mark.parametrize("key", [{}, KEYED], ids=["without a key", "with a key"])
class TestMove:
    async def test_job_that_waited_too_long_moves_up_by_one_priority(
        self, session: Session, key: dict[str, Any]
    ) -> None:
        await insert_available(session, priority=1)
        jobs = [(await insert_available(session, priority=priority, waited_s=61, **key))[0] for priority in PRIORITIES]
        assert await run_aging(session) == 3
        assert await priorities(session, *jobs) == [1, 1, 2, 3]
        # They have just arrived at their new priority.
        assert await run_aging(session) == 0

    async def test_job_that_waited_a_short_time_keeps_its_priority(self, session: Session, key: dict[str, Any]) -> None:
        await insert_available(session, priority=1, **key)
        await insert_available(session, priority=4, waited_s=30, **key)
        assert await run_aging(session) == 0

    async def test_job_without_more_urgent_jobs_keeps_its_priority(self, session: Session, key: dict[str, Any]) -> None:
        await insert_available(session, 5, priority=3, waited_s=1000, **key)
        await insert_available(session, priority=4, queue="other", waited_s=1000, **key)
        assert await run_aging(session) == 0

    async def test_more_urgent_jobs_count_with_and_without_keys(self, session: Session, key: dict[str, Any]) -> None:
        other = KEYED if not key else {}
        await insert_available(session, priority=1, **other)
        await insert_available(session, priority=2, waited_s=61, **key)
        assert await run_aging(session) == 1

    async def test_moved_job_is_claimed_after_the_jobs_of_its_new_priority(
        self, session: Session, key: dict[str, Any]
    ) -> None:
        (first,) = await insert_available(session, priority=1)
        (old,) = await insert_available(session, priority=2, waited_s=61)
        await run_aging(session)
        (last,) = await insert_available(session, priority=1)
        assert [row["id"] for row in await claim(session, limit=9)] == [first, old, last]

    async def test_queue_can_have_its_own_age(self, session: Session, key: dict[str, Any]) -> None:
        for name, setting in (("off", seconds(0)), ("short", seconds(10)), ("long", seconds(900))):
            await insert_queue(session, name, aging=setting)
            await insert_available(session, priority=1, queue=name)
        moved = {}
        for name in ("off", "short", "long"):
            (moved[name],) = await insert_available(session, priority=3, queue=name, waited_s=100, **key)
        assert await run_aging(session) == 1
        assert await priorities(session, *moved.values()) == [3, 2, 3]

    @pytest.mark.parametrize(
        ("columns", "moved"),
        [
            ({"paused": True}, 0),
            ({"paused": True, "paused_until": ago(1)}, 1),
            ({"throttled_until": ago(-99)}, 0),
            ({"throttled_until": ago(1)}, 1),
        ],
    )
    async def test_jobs_of_a_paused_or_throttled_queue_do_not_age(
        self, session: Session, key: dict[str, Any], columns: dict[str, Any], moved: int
    ) -> None:
        await insert_queue(session, **columns)
        await insert_available(session, priority=1)
        await insert_available(session, priority=2, waited_s=61, **key)
        assert await run_aging(session) == moved

    async def test_batch_is_bounded_and_moves_the_oldest_jobs(self, session: Session, key: dict[str, Any]) -> None:
        await insert_available(session, priority=1)
        jobs = await insert_available(session, MAX_JOBS + 10, priority=2, waited_s=61, **key)
        assert await run_aging(session) == MAX_JOBS
        # The jobs that have waited longest.
        assert await priorities(session, *jobs) == [1] * MAX_JOBS + [2] * 10


async def test_locked_job_is_skipped(session: Session, database: Database) -> None:
    await insert_available(session, priority=1)
    held, free = await insert_available(session, 2, priority=2, waited_s=61)
    async with another_session(database) as other, other.connection.transaction():
        await other.connection.execute("SELECT FROM awa.ready WHERE id = $1 FOR UPDATE", held)
        async with asyncio.timeout(10):
            assert await run_aging(session) == 1
    assert await priorities(session, held, free) == [2, 1]


async def test_claim_does_not_wait_for_aging(session: Session, database: Database) -> None:
    (first,) = await insert_available(session, priority=1)
    await insert_available(session, 3, priority=2, waited_s=61)
    (young,) = await insert_available(session, priority=3)
    async with another_session(database) as other, other.connection.transaction():
        assert await run_aging(other) == 3
        async with asyncio.timeout(10):
            assert [row["id"] for row in await claim(session, limit=9)] == [first, young]


async def test_claim_cursor_finds_a_moved_job(session: Session) -> None:
    """A worker starts its scan near the last position that it has seen. A moved job gets a position above that."""
    (old,) = await insert_available(session, priority=2, waited_s=61)
    *_, last = await insert_available(session, 5, priority=1)
    above = max(row["pos"] for row in await claim(session, limit=4))
    assert await run_aging(session) == 1
    assert [row["id"] for row in await claim(session, limit=9, after=above)] == [last, old]


async def test_two_leaders_move_each_job_once(session: Session, database: Database) -> None:
    await insert_available(session, priority=1)
    jobs = await insert_available(session, 50, priority=4, waited_s=61)
    async with another_session(database) as other:
        moved = await asyncio.gather(run_aging(session), run_aging(other))
    assert sum(moved) == 50
    assert await priorities(session, *jobs) == [3] * 50


async def test_queues_are_handled_in_batches(session: Session) -> None:
    for n in range(25):
        await insert_available(session, priority=1, queue=f"q{n:02}")
        await insert_available(session, priority=2, queue=f"q{n:02}", waited_s=61, **(KEYED if n % 2 else {}))
    last_queue: str | None = ""
    steps = []
    while last_queue is not None:
        moved, last_queue = await age_jobs(session, after=last_queue, queues=10, age=AGE, limit=MAX_JOBS)
        steps.append(moved)
    assert steps == [10, 10, 5]


async def test_aging_is_a_task_of_the_leader(session: Session) -> None:
    (task,) = (task for task in all_tasks(Settings(aging_interval=AGE), [], Metrics()) if task.name == "aging")
    await insert_available(session, priority=1)
    await insert_available(session, priority=2, waited_s=61)
    assert (await run_once(task, session)).rows_changed == 1
    assert (await run_once(task, session)).rows_changed == 0


async def test_many_jobs_of_one_priority_are_not_rewritten(database: Database) -> None:
    """Nor read: the number of pages read is small, and the same as with a hundred jobs."""
    spent = []
    for count in (100, 20_000):
        async with another_session(database, **STABLE_PLAN_SETTINGS) as session:
            await insert_available(session, count, priority=2, waited_s=10_000, queue="bulk")
            await insert_available(session, count, priority=2, waited_s=10_000, queue="keyed", **KEYED)
            await run_aging(session)
            async with count_pages(session) as pages_read:
                assert await run_aging(session) == 0
                found = await pages_read()
                assert "ready" not in found.whole_tables
                spent.append(found.of("ready"))
    assert max(spent) < 100


async def test_many_jobs_that_waited_a_short_time_are_not_read(database: Database) -> None:
    async with another_session(database, **STABLE_PLAN_SETTINGS) as session:
        await insert_available(session, priority=1)
        await insert_available(session, 20_000, priority=3)
        await run_aging(session)
        async with count_pages(session) as pages_read:
            assert await run_aging(session) == 0
            assert (await pages_read()).of("ready") < MAX_JOBS + 100


async def test_stream_of_urgent_jobs_does_not_starve_the_others(app: App, session: Session) -> None:
    """An urgent job is always available, since each enqueues the next before it ends."""
    ran = 0
    over = False

    @app.job(priority=1)
    async def urgent() -> None:
        nonlocal ran
        ran += 1
        if not over:
            await urgent.enqueue()
        await asyncio.sleep(0.02)  # long enough that hardly any job is prefetched

    @app.job(priority=4)
    async def waiting() -> str:
        return "my turn"

    aging = Task(name="aging", interval=seconds(1), run=Aging(age=seconds(0.001), check_interval=seconds(1)).run)
    async with app:
        await app.enqueue_many([urgent.new() for _ in range(20)])
        job = await waiting.enqueue()
        async with working(app, {"default": 1}):
            await eventually(lambda: ran > 60)
            assert (await app.get(job.id)).state is State.AVAILABLE
            await eventually(lambda: completes_after_aging(app, session, aging, job), every_s=0.2)
            over = True
        assert (await app.get(job.id)).result == "my turn"


async def completes_after_aging(app: App, session: Session, aging: Task, job: awa.Job) -> bool:
    await run_once(aging, session)
    return (await app.get(job.id)).state is State.COMPLETED
