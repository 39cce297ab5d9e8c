"""Ready jobs that have waited for long move up, priority by priority."""

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


async def age(session: Session) -> int:
    moved, place = await age_jobs(session, after="", queues=100, age=AGE, limit=MAX_JOBS)
    assert place is None
    return moved


async def ready(session: Session, count: int = 1, *, waited_s: float = 0, **columns: Any) -> list[int]:
    return await insert(session, "ready", count, entered_at=ago(waited_s), **columns)


async def priorities(session: Session, *jobs: int) -> list[int]:
    return [(await look(session, job)).priority for job in jobs]


KEYED: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 1, "ordered": False}


async def test_jobs_of_an_ordered_key_stay_in_their_line(session: Session) -> None:
    """One before them may wait for its next attempt, and comes back to where it was."""
    await ready(session, priority=1)
    (behind,) = await ready(session, priority=2, waited_s=61, **KEYED | {"ordered": True})
    assert await age(session) == 0
    assert await priorities(session, behind) == [2]


@pytest.mark.parametrize("line", [{}, KEYED], ids=["without a key", "with a key"])
class TestTheMove:
    async def test_who_has_waited_moves_up_one(self, session: Session, line: dict[str, Any]) -> None:
        await ready(session, priority=1)
        jobs = [(await ready(session, priority=priority, waited_s=61, **line))[0] for priority in PRIORITIES]
        assert await age(session) == 3
        assert await priorities(session, *jobs) == [1, 1, 2, 3]
        # It has just come there.
        assert await age(session) == 0

    async def test_who_has_not_waited_for_long_stays(self, session: Session, line: dict[str, Any]) -> None:
        await ready(session, priority=1, **line)
        await ready(session, priority=4, waited_s=30, **line)
        assert await age(session) == 0

    async def test_where_nobody_is_before_it_nothing_moves(self, session: Session, line: dict[str, Any]) -> None:
        await ready(session, 5, priority=3, waited_s=1000, **line)
        await ready(session, priority=4, queue="other", waited_s=1000, **line)
        assert await age(session) == 0

    async def test_keyed_jobs_and_others_stand_before_one_another(self, session: Session, line: dict[str, Any]) -> None:
        other = KEYED if not line else {}
        await ready(session, priority=1, **other)
        await ready(session, priority=2, waited_s=61, **line)
        assert await age(session) == 1

    async def test_it_comes_behind_those_who_wait_there(self, session: Session, line: dict[str, Any]) -> None:
        (first,) = await ready(session, priority=1)
        (old,) = await ready(session, priority=2, waited_s=61)
        await age(session)
        (last,) = await ready(session, priority=1)
        assert [row["id"] for row in await claim(session, limit=9)] == [first, old, last]

    async def test_the_queues_own_age(self, session: Session, line: dict[str, Any]) -> None:
        for name, setting in (("off", seconds(0)), ("short", seconds(10)), ("long", seconds(900))):
            await insert_queue(session, name, aging=setting)
            await ready(session, priority=1, queue=name)
        moved = {}
        for name in ("off", "short", "long"):
            (moved[name],) = await ready(session, priority=3, queue=name, waited_s=100, **line)
        assert await age(session) == 1
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
    async def test_a_pause_is_no_waiting_in_line(
        self, session: Session, line: dict[str, Any], columns: dict[str, Any], moved: int
    ) -> None:
        await insert_queue(session, **columns)
        await ready(session, priority=1)
        await ready(session, priority=2, waited_s=61, **line)
        assert await age(session) == moved

    async def test_it_is_bounded(self, session: Session, line: dict[str, Any]) -> None:
        await ready(session, priority=1)
        jobs = await ready(session, MAX_JOBS + 10, priority=2, waited_s=61, **line)
        assert await age(session) == MAX_JOBS
        # Those who have waited for longest.
        assert await priorities(session, *jobs) == [1] * MAX_JOBS + [2] * 10


async def test_a_row_that_somebody_holds_is_passed_over(session: Session, database: Database) -> None:
    await ready(session, priority=1)
    held, free = await ready(session, 2, priority=2, waited_s=61)
    async with another_session(database) as other, other.connection.transaction():
        await other.connection.execute("SELECT FROM awa.ready WHERE id = $1 FOR UPDATE", held)
        async with asyncio.timeout(10):
            assert await age(session) == 1
    assert await priorities(session, held, free) == [2, 1]


async def test_a_claim_does_not_wait_for_it(session: Session, database: Database) -> None:
    (first,) = await ready(session, priority=1)
    await ready(session, 3, priority=2, waited_s=61)
    (young,) = await ready(session, priority=3)
    async with another_session(database) as other, other.connection.transaction():
        assert await age(other) == 3
        async with asyncio.timeout(10):
            assert [row["id"] for row in await claim(session, limit=9)] == [first, young]


async def test_a_cursor_finds_what_has_moved(session: Session) -> None:
    """A worker begins near the last position that it has seen: whoever moves up comes above it."""
    (old,) = await ready(session, priority=2, waited_s=61)
    *_, last = await ready(session, 5, priority=1)
    above = max(row["pos"] for row in await claim(session, limit=4))
    assert await age(session) == 1
    assert [row["id"] for row in await claim(session, limit=9, after=above)] == [last, old]


async def test_two_leaders_move_it_once(session: Session, database: Database) -> None:
    await ready(session, priority=1)
    jobs = await ready(session, 50, priority=4, waited_s=61)
    async with another_session(database) as other:
        moved = await asyncio.gather(age(session), age(other))
    assert sum(moved) == 50
    assert await priorities(session, *jobs) == [3] * 50


async def test_many_queues_are_walked_over_in_steps(session: Session) -> None:
    for n in range(25):
        await ready(session, priority=1, queue=f"q{n:02}")
        await ready(session, priority=2, queue=f"q{n:02}", waited_s=61, **(KEYED if n % 2 else {}))
    place: str | None = ""
    steps = []
    while place is not None:
        moved, place = await age_jobs(session, after=place, queues=10, age=AGE, limit=MAX_JOBS)
        steps.append(moved)
    assert steps == [10, 10, 5]


async def test_the_leader_does_it(session: Session) -> None:
    (task,) = (task for task in all_tasks(Settings(aging_interval=AGE), [], Metrics()) if task.name == "aging")
    await ready(session, priority=1)
    await ready(session, priority=2, waited_s=61)
    assert await run_once(task, session) == 1
    assert await run_once(task, session) == 0


async def test_a_million_of_one_priority_are_not_rewritten(database: Database) -> None:
    """Nor read: the pages that a look touches are few, and as many as with a hundred."""
    spent = []
    for count in (100, 20_000):
        async with another_session(database, **STABLE_PLAN_SETTINGS) as session:
            await ready(session, count, priority=2, waited_s=10_000, queue="bulk")
            await ready(session, count, priority=2, waited_s=10_000, queue="keyed", **KEYED)
            await age(session)
            async with count_pages(session) as pages_read:
                assert await age(session) == 0
                found = await pages_read()
                assert "ready" not in found.whole_tables
                spent.append(found.of("ready"))
    assert max(spent) < 100


async def test_a_long_line_of_young_ones_is_not_read(database: Database) -> None:
    async with another_session(database, **STABLE_PLAN_SETTINGS) as session:
        await ready(session, priority=1)
        await ready(session, 20_000, priority=3)
        await age(session)
        async with count_pages(session) as pages_read:
            assert await age(session) == 0
            assert (await pages_read()).of("ready") < MAX_JOBS + 100


async def test_a_stream_of_urgent_jobs_starves_nobody(app: App, session: Session) -> None:
    """Urgent jobs always wait, since each brings the next before it ends: that of priority 4 runs in the end."""
    ran = 0
    over = False

    @app.job(priority=1)
    async def urgent() -> None:
        nonlocal ran
        ran += 1
        if not over:
            await urgent.enqueue()
        await asyncio.sleep(0.02)  # long enough that hardly anything is claimed ahead

    @app.job(priority=4)
    async def patient() -> str:
        return "my turn"

    aging = Task(name="aging", interval=seconds(1), run=Aging(age=seconds(0.001)).run)
    async with app:
        await app.enqueue_many([urgent.new() for _ in range(20)])
        job = await patient.enqueue()
        async with working(app, {"default": 1}):
            await eventually(lambda: ran > 60)
            assert (await app.get(job.id)).state is State.AVAILABLE
            await eventually(lambda: grown_old(app, session, aging, job), every_s=0.2)
            over = True
        assert (await app.get(job.id)).result == "my turn"


async def grown_old(app: App, session: Session, aging: Task, job: awa.Job) -> bool:
    await run_once(aging, session)
    return (await app.get(job.id)).state is State.COMPLETED
