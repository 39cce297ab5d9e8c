"""Prefetched jobs, and the tasks that run them."""

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

import awa_py as awa
from awa_py import App, Context, State
from awa_py.store.maintenance import rescue_overdue_jobs
from awa_py.store.session import Session
from tests.support import (
    HASTY,
    PATIENCE_S,
    QUICK,
    beaten_since,
    count,
    drain,
    eventually,
    look,
    nothing_runs,
    sample,
    seconds,
    states,
    with_settings,
    working,
)

pytestmark = pytest.mark.integration


class PrefetchControl:
    """The number of prefetched jobs, set by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0
        self._monkeypatch = monkeypatch
        monkeypatch.setattr("awa_py.worker.claiming.prefetch.Prefetch.jobs", property(lambda _: self.ahead))

    def never_release(self) -> None:
        """Never release a job that waits for a slot."""
        self._monkeypatch.setattr("awa_py.worker.claiming.claim_loop.PREFETCH_TIMEOUT_S", 2 * PATIENCE_S)


@pytest.fixture
def prefetch(monkeypatch: pytest.MonkeyPatch) -> PrefetchControl:
    return PrefetchControl(monkeypatch)


class Slots:
    """Two kinds: `hold` keeps its slot until the test lets it go, `pass_by` ends at once."""

    def __init__(self, app: App) -> None:
        self.go_on = asyncio.Event()
        self.held = 0
        self.passed: list[int] = []
        app.job(kind="hold")(self.hold)
        app.job(kind="pass_by")(self.pass_by)

    async def hold(self) -> None:
        self.held += 1
        await self.go_on.wait()

    async def pass_by(self, n: int) -> None:
        self.passed.append(n)

    def have_passed(self, number: int) -> bool:
        return len(self.passed) >= number


async def running_now(session: Session) -> int:
    return await count(session.connection, "SELECT count(*) FROM awa.running")


async def runs_now(session: Session, number: int) -> bool:
    return await running_now(session) == number


@asynccontextmanager
async def one_slot_held(
    app: App, session: Session, prefetch: PrefetchControl, *, ahead: int
) -> AsyncIterator[tuple[Slots, list[int]]]:
    """One job holds the only slot, and `ahead` prefetched jobs wait for it."""
    slots = Slots(app)
    await app.enqueue("hold")
    waiting = [job.id for job in await app.enqueue_many([app.new("pass_by", {"n": n}) for n in range(ahead)])]
    prefetch.ahead = ahead
    try:
        async with working(app, concurrency=1):
            await eventually(lambda: slots.held)
            await eventually(lambda: runs_now(session, 1 + ahead))
            yield slots, waiting
            slots.go_on.set()
    finally:
        slots.go_on.set()


class TestPrefetchSize:
    async def test_short_jobs_are_prefetched_within_the_concurrency(self, app: App, session: Session) -> None:
        now = most = 0

        @app.job
        async def work() -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.001)
            now -= 1

        async def ahead() -> bool:
            return await running_now(session) >= 10

        async with app, working(app, concurrency=3):
            await app.enqueue_many([app.new("work") for _ in range(2_000)])
            await eventually(ahead, every_s=0)
            await eventually(lambda: nothing_runs(session))
        assert most == 3
        assert await states(session) == {"completed": 2_000}

    @pytest.mark.parametrize("how", ["in_loop", "in_thread"])
    async def test_long_jobs_are_not_prefetched(self, app: App, session: Session, how: str) -> None:
        go_on = threading.Event()
        started: list[int] = []

        @app.job
        async def in_loop(n: int) -> None:
            started.append(n)
            while not go_on.is_set():
                await asyncio.sleep(0.01)

        @app.job
        def in_thread(n: int) -> None:
            started.append(n)
            go_on.wait(PATIENCE_S)

        async with app, working(app, concurrency=5):
            await app.enqueue_many([app.new(how, {"n": n}) for n in range(20)])
            await eventually(lambda: len(started) == 5)
            await asyncio.sleep(3 * QUICK.poll_interval.total_seconds())
            assert await states(session) == {"running": 5, "available": 15}
            go_on.set()
            await eventually(lambda: nothing_runs(session))
        assert sorted(started) == list(range(20))

    async def test_long_jobs_after_short_ones_are_not_prefetched(self, app: App, session: Session) -> None:
        slots = Slots(app)
        async with app, working(app, concurrency=2):
            await app.enqueue_many(
                [app.new("pass_by", {"n": n}) for n in range(1_000)] + [app.new("hold") for _ in range(50)]
            )
            await eventually(lambda: slots.held == 2)
            await eventually(lambda: runs_now(session, 2))
            async with working(app, concurrency=48):
                await eventually(lambda: slots.held == 50)
                slots.go_on.set()
                await eventually(lambda: nothing_runs(session))
        assert await states(session) == {"completed": 1_050}
        attempts = await count(session.connection, "SELECT max(attempt) FROM awa.jobs")
        assert attempts == 1


class TestWaitingForASlot:
    async def test_job_without_a_slot_is_released_to_another_worker(
        self, app: App, session: Session, prefetch: PrefetchControl
    ) -> None:
        async with app, one_slot_held(app, session, prefetch, ahead=5) as (slots, waiting):
            prefetch.ahead = 0
            await eventually(lambda: runs_now(session, 1))
            for job_id in waiting:
                job = await app.get(job_id)
                assert (job.state, job.attempt, job.errors) == (State.AVAILABLE, 0, [])
            async with working(app, concurrency=1):
                for job_id in waiting:
                    await app.result(job_id, timeout="20s")
            assert sorted(slots.passed) == list(range(5))
            assert {(await app.get(job_id)).attempt for job_id in waiting} == {1}

    async def test_job_without_a_slot_is_released_while_another_queue_is_busy(
        self, app: App, session: Session, prefetch: PrefetchControl
    ) -> None:
        slots = Slots(app)
        busy = True

        @app.job(queue="other")
        async def again() -> None:
            if busy:
                await again.enqueue()

        async with app, working(app, {"default": 1, "other": 5}, concurrency=6):
            prefetch.ahead = 5
            await app.enqueue("hold")
            await eventually(lambda: slots.held)
            waiting = await app.enqueue_many([app.new("pass_by", {"n": n}) for n in range(3)])
            claimed = "SELECT count(*) FROM awa.running WHERE kind = 'pass_by'"
            await eventually(lambda: claimed_of(session, claimed, 3))
            await app.enqueue_many([app.new("again") for _ in range(20)])
            prefetch.ahead = 0
            await eventually(lambda: claimed_of(session, claimed, 0))
            busy = False
            assert {(await app.get(job.id)).state for job in waiting} == {State.AVAILABLE}
            slots.go_on.set()
            await eventually(lambda: nothing_runs(session))

    async def test_prefetched_jobs_are_released_at_shutdown(
        self, app: App, session: Session, prefetch: PrefetchControl
    ) -> None:
        slots = Slots(app)
        async with app:
            holder = await app.enqueue("hold")
            waiting = await app.enqueue_many([app.new("pass_by", {"n": n}) for n in range(5)])
            prefetch.ahead = 5
            prefetch.never_release()
            worker = app.worker(["default"], concurrency=1, maintenance=False)
            task = asyncio.create_task(worker.run())
            await eventually(lambda: runs_now(session, 6))
            worker.stop()
            await eventually(lambda: runs_now(session, 1))
            assert not task.done()
            for job in waiting:
                assert ((await app.get(job.id)).state, (await app.get(job.id)).attempt) == (State.AVAILABLE, 0)
            slots.go_on.set()
            async with asyncio.timeout(PATIENCE_S):
                await task
            assert (await app.get(holder.id)).state is State.COMPLETED
        assert slots.passed == []

    async def test_worker_stopped_under_load_leaves_nothing_running(self, app: App, session: Session) -> None:
        slots = Slots(app)
        async with app:
            await app.enqueue_many([app.new("pass_by", {"n": n}) for n in range(20_000)])
            for stop in range(1, 6):
                async with working(app, concurrency=10):
                    await eventually(partial(slots.have_passed, 1_000 * stop), every_s=0.001)
                assert await running_now(session) == 0
            assert await count(session.connection, "SELECT count(*) FROM awa.ready WHERE attempt > 0") == 0
        found = await states(session)
        assert found["completed"] == len(slots.passed) == len(set(slots.passed))
        assert sum(found.values()) == 20_000

    async def test_job_cancelled_while_it_waits_never_runs(
        self, app: App, session: Session, prefetch: PrefetchControl
    ) -> None:
        async with app, one_slot_held(app, session, prefetch, ahead=2) as (slots, waiting):
            prefetch.ahead = 0
            assert await app.cancel(waiting[0])
            with pytest.raises(awa.JobCancelled, match="cancelled by user"):
                await app.result(waiting[0], timeout="20s")
            assert slots.held == 1
            slots.go_on.set()
            await app.result(waiting[1], timeout="20s")
            assert slots.passed == [1]

    async def test_job_cancelled_just_before_its_slot_is_free_never_runs(
        self, app: App, session: Session, prefetch: PrefetchControl
    ) -> None:
        prefetch.never_release()
        async with app, one_slot_held(app, session, prefetch, ahead=2) as (slots, waiting):
            await app.cancel(waiting[1])
            await asyncio.sleep(0.1)
            slots.go_on.set()
            await app.result(waiting[0], timeout="20s")
            with pytest.raises(awa.JobCancelled):
                await app.result(waiting[1], timeout="20s")
            assert slots.passed == [0]

    async def test_waiting_for_a_slot_counts_towards_the_timeout(
        self, app: App, session: Session, prefetch: PrefetchControl
    ) -> None:
        """The leader rescues the job at the deadline of its claim, so the worker must use the same deadline."""
        slots = Slots(app)
        worked: list[str] = []

        @app.job(timeout="1s")
        async def work() -> None:
            await asyncio.sleep(0.3)
            worked.append("too late")

        overdue = "SELECT deadline_at < now() FROM awa.running WHERE kind = 'work'"
        async with app:
            await app.enqueue("hold")
            job = await app.enqueue("work")
            prefetch.ahead = 1
            prefetch.never_release()
            async with working(app, concurrency=1):
                await eventually(lambda: session.connection.fetchval(overdue))
                slots.go_on.set()
                await eventually(lambda: nothing_runs(session))
            found = await app.get(job.id)
        assert worked == []
        assert (found.state, found.errors[-1]["error"]) == (State.RETRYABLE, "HandlerTimeout: timed out after 1 s")


async def claimed_of(session: Session, query: str, number: int) -> bool:
    return await count(session.connection, query) == number


class TestOrder:
    @pytest.mark.parametrize("waits", [False, True])
    async def test_one_slot_starts_jobs_in_order(self, app: App, waits: bool) -> None:
        started: list[int] = []

        @app.job
        async def work(n: int) -> None:
            started.append(n)
            if waits and n % 3:
                await asyncio.sleep(0)

        async with app:
            await app.enqueue_many([app.new("work", {"n": n}) for n in range(1_000)])
            async with asyncio.timeout(PATIENCE_S):
                await app.work(concurrency=1, until_idle=True, maintenance=False)
        assert started == list(range(1_000))

    async def test_queues_take_turns(self, app: App, session: Session, prefetch: PrefetchControl) -> None:
        slots = Slots(app)
        ran: list[str] = []

        @app.job
        async def work(queue: str) -> None:
            ran.append(queue)

        async with app:
            prefetch.ahead = 100
            prefetch.never_release()
            await app.enqueue("hold", queue="a")
            async with working(app, ["a", "b", "c"], concurrency=1):
                await eventually(lambda: slots.held)
                await app.enqueue_many([app.new("work", {"queue": q}, queue=q) for q in "abc" for _ in range(20)])
                await eventually(lambda: runs_now(session, 61))
                slots.go_on.set()
                await eventually(lambda: len(ran) == 60)
        assert all(sorted(ran[n : n + 3]) == ["a", "b", "c"] for n in range(0, 60, 3))

    async def test_full_queue_leaves_the_other_slots_free(
        self, app: App, session: Session, prefetch: PrefetchControl
    ) -> None:
        slots = Slots(app)
        async with app, working(app, {"a": 1, "b": 1}, concurrency=2):
            prefetch.ahead = 5
            await app.enqueue_many([app.new("hold", queue="a") for _ in range(3)])
            await eventually(lambda: slots.held == 1)
            job = await app.enqueue("pass_by", {"n": 1}, queue="b")
            await app.result(job.id, timeout="20s")
            assert slots.held == 1
            slots.go_on.set()
            await eventually(lambda: nothing_runs(session))


NUMBER: contextvars.ContextVar[int] = contextvars.ContextVar("NUMBER", default=-1)


class TestTasks:
    async def test_jobs_in_one_task_have_separate_context_variables(self, app: App) -> None:
        seen: list[tuple[int, int]] = []
        tasks: list[object] = []

        @app.job
        async def work(n: int) -> None:
            tasks.append(asyncio.current_task())
            before = NUMBER.get()
            NUMBER.set(n)
            if n % 5 == 4:
                await asyncio.sleep(0)
            seen.append((before, NUMBER.get()))

        async with app:
            await app.enqueue_many([app.new("work", {"n": n}) for n in range(100)])
            await drain(app)
        assert sorted(seen) == [(-1, n) for n in range(100)]
        assert len(set(tasks)) < 100
        assert NUMBER.get() == -1

    async def test_awaiting_handlers_have_their_own_tasks(self, app: App) -> None:
        tasks: list[object] = []
        changed: list[int] = []
        go_on = asyncio.Event()

        @app.job
        async def work(n: int) -> None:
            task = asyncio.current_task()
            tasks.append(task)
            NUMBER.set(n)
            await go_on.wait()
            if asyncio.current_task() is not task or NUMBER.get() != n:
                changed.append(n)

        async with app, working(app, concurrency=20):
            await app.enqueue_many([app.new("work", {"n": n}) for n in range(50)])
            await eventually(lambda: len(tasks) >= 20)
            await asyncio.sleep(0.3)
            assert len(tasks) == len(set(tasks)) == 20
            go_on.set()
            await eventually(lambda: len(tasks) == 50)
        assert changed == []

    async def test_handlers_may_use_timeouts_and_task_groups(self, app: App, session: Session) -> None:
        @app.job
        async def timeout(n: int) -> str:
            try:
                async with asyncio.timeout(0.001):
                    await asyncio.sleep(PATIENCE_S)
            except TimeoutError:
                return "in time"
            return "never"

        @app.job
        async def timeout_that_is_not_needed(n: int) -> str:
            async with asyncio.timeout(0.001):
                return "quick"

        @app.job
        async def group(n: int) -> str:
            async def double(number: int) -> int:
                await asyncio.sleep(0)
                return 2 * number

            async with asyncio.TaskGroup() as tasks:
                doubled = [tasks.create_task(double(number)) for number in range(3)]
            return str(sum(task.result() for task in doubled))

        @app.job
        async def broken_group(n: int) -> str:
            async def fail() -> None:
                raise KeyError("one of them")

            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(fail())
                    await asyncio.sleep(PATIENCE_S)
            except* KeyError:
                pass
            return "caught"

        wanted = {
            "timeout": "in time",
            "timeout_that_is_not_needed": "quick",
            "group": "6",
            "broken_group": "caught",
        }
        async with app:
            jobs = await app.enqueue_many([app.new(kind, {"n": n}) for n in range(25) for kind in wanted])
            await drain(app)
            found = {job.id: (job.kind, (await app.get(job.id)).result) for job in jobs}
        assert set(found.values()) == set(wanted.items())
        assert await states(session) == {"completed": 100}

    @pytest.mark.parametrize("when", ["at_once", "in_its_wait", "before_its_wait", "after_its_end"])
    async def test_handler_that_cancels_itself_does_not_affect_others(
        self, app: App, session: Session, when: str
    ) -> None:
        @app.job(max_attempts=1)
        async def suicidal() -> None:
            task = asyncio.current_task()
            assert task is not None
            if when == "after_its_end":
                asyncio.get_running_loop().call_soon(task.cancel)
                time.sleep(0.01)  # lets other tasks run before the next job
                return
            if when == "in_its_wait":
                asyncio.get_running_loop().call_soon(task.cancel)
            else:
                task.cancel()
            if when != "at_once":
                await asyncio.sleep(1)

        @app.job
        async def work(n: int) -> None:
            if n % 2:
                await asyncio.sleep(0)

        async with app:
            new = [app.new("work", {"n": n}) for n in range(100)]
            for n in (0, 30, 60, 90):
                new.insert(n, app.new("suicidal"))
            await app.enqueue_many(new)
            await drain(app)
            errors = await session.connection.fetch("SELECT kind, errors -> 0 ->> 'error' AS error FROM awa.dead")
        if when in ("at_once", "after_its_end"):
            assert await states(session) == {"completed": 104}
        else:
            assert await states(session) == {"completed": 100, "failed": 4}
            assert {(row["kind"], row["error"]) for row in errors} == {
                ("suicidal", "CancelledError: the handler cancelled itself")
            }

    async def test_handlers_that_never_await_do_not_starve_the_loop(self, app: App) -> None:
        streak = longest = ran = 0

        @app.job
        async def work() -> None:
            nonlocal streak, longest, ran
            ran += 1
            streak += 1
            longest = max(longest, streak)
            if ran > 5_000:  # 500 of these in a row would block the loop for a quarter of a second
                time.sleep(0.0005)

        async def tick() -> None:
            nonlocal streak
            while True:
                streak = 0
                await asyncio.sleep(0)

        async with app, working(app) as worker:
            await app.enqueue_many([app.new("work") for _ in range(6_000)])
            ticker = asyncio.create_task(tick())
            await eventually(lambda: ran > 5_000)
            longest = 0
            await eventually(lambda: sample(worker, "awa_jobs_completed_total", queue="default") == 6_000)
            ticker.cancel()
        assert longest <= 20


class TestClaimedAgain:
    async def test_job_claimed_again_by_the_same_worker_keeps_its_heartbeat(
        self, database_url: str, session: Session
    ) -> None:
        """The old attempt ends in its thread while the new one runs. It must not remove the new one."""
        app = with_settings(database_url, replace(HASTY, heartbeat_staleness=seconds(3)))
        ends: dict[int, threading.Event] = {1: threading.Event(), 2: threading.Event()}
        started: list[int] = []
        told: list[str | None] = []

        @app.job
        def work(ctx: Context) -> int:
            started.append(ctx.attempt)
            ends[ctx.attempt].wait(PATIENCE_S)
            if ctx.attempt == 2:
                told.append(ctx.cancel_reason)
            return ctx.attempt

        async with app, working(app, concurrency=2) as worker:
            job = await app.enqueue("work")
            await eventually(lambda: started == [1])
            await session.connection.execute("UPDATE awa.running SET deadline_at = now()")
            assert len(await rescue_overdue_jobs(session, limit=5)) == 1
            await app.retry(job.id)
            await eventually(lambda: started == [1, 2])
            ends[1].set()
            await eventually(lambda: sample(worker, "awa_lost_leases_total"))
            for _ in range(2):
                last = (await look(session, job.id)).heartbeat_at
                await eventually(partial(beaten_since, session, job.id, last))
            await app.cancel(job.id)
            ends[2].set()
            assert await app.result(job.id, timeout="20s") == 2
        assert sample(worker, "awa_lost_leases_total") == 1
