"""Children of durable jobs: spawned once, all or none; their parent waits without a slot."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

import awa_py as awa
from awa_py import App, Context, State
from awa_py.maintenance.tasks import one_shot_tasks
from awa_py.store.session import Session
from awa_py.worker import parent_waker
from tests.support import QUICK, count, drain, eventually, insert, seconds, with_settings, working

pytestmark = pytest.mark.integration

UNFINISHED = "SELECT count(*) FROM awa.jobs WHERE state NOT IN ('completed', 'failed', 'cancelled')"


@pytest.fixture
def square(app: App) -> Any:
    @app.job
    async def square(number: int) -> int:
        if number < 0:
            raise awa.Fail(f"{number} is negative")
        return number * number

    return square


@pytest.fixture
def run(app: App) -> Callable[..., Any]:
    async def run(job: Any, *args: Any) -> Any:
        """Run a job to its end in a worker with one slot."""
        async with app, working(app, {"default": 1}, concurrency=1, maintenance=True):
            enqueued = await job.enqueue(*args)
            return await app.result(enqueued.id, timeout="30s")

    return run


async def test_parent_gets_the_results_with_one_slot(app: App, square: Any, run: Any) -> None:  # D5 Y5
    attempts: list[int] = []

    @app.job
    async def parent(ctx: Context) -> list[int]:
        attempts.append(ctx.attempt)
        first = await ctx.spawn(square, 2)
        second = await ctx.spawn(square, number=3)
        return [await first, await second, *await ctx.gather(second, first)]

    assert await run(parent) == [4, 9, 9, 4]
    assert set(attempts) == {1}  # a wait does not count as an attempt


async def test_children_are_spawned_once(app: App, square: Any, session: Session) -> None:
    failures = iter([RuntimeError("first"), RuntimeError("second")])

    @app.job
    async def parent(ctx: Context) -> int:
        child = await ctx.spawn(square, 2)
        results = await ctx.map(square, [1, 2, 3])
        for error in failures:
            raise error
        return int(sum(results) + await child)

    async with app, working(app, maintenance=True):
        job = await parent.enqueue()
        assert await app.result(job.id, timeout="30s") == 18
        children = await count(session.connection, "SELECT count(*) FROM awa.jobs WHERE parent_id = $1", job.id)
    assert children == 4


async def test_map_keeps_the_order_of_its_items(app: App, square: Any, run: Any) -> None:
    @app.job
    async def parent(ctx: Context) -> list[int]:
        return await ctx.map(square, [3, 1, 2])

    assert await run(parent) == [9, 1, 4]


async def test_map_of_nothing_is_an_empty_list(app: App, square: Any, run: Any) -> None:
    @app.job
    async def parent(ctx: Context) -> list[int]:
        return await ctx.map(square, [])

    assert await run(parent) == []


async def test_at_once_limits_the_children_that_run(app: App) -> None:
    running = most = 0

    @app.job
    async def child(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return number

    @app.job
    async def parent(ctx: Context) -> list[int]:
        return await ctx.map(child, range(12)).at_once(3)

    async with app, working(app, {"default": 20}, maintenance=True):
        job = await parent.enqueue()
        assert await app.result(job.id, timeout="30s") == [*range(12)]
    assert most == 3


class TestFailures:
    async def test_failed_child_raises_in_its_parent(self, app: App, square: Any, run: Any) -> None:
        @app.job
        async def parent(ctx: Context) -> list[Any]:
            child = await ctx.spawn(square, -1)
            try:
                await child
            except awa.ChildFailed as error:
                return [error.job_id == child.id, error.kind, error.error]
            return []

        assert await run(parent) == [True, "square", "-1 is negative"]

    async def test_failed_child_fails_its_parent(self, app: App, square: Any) -> None:
        @app.job(max_attempts=1)
        async def parent(ctx: Context) -> list[int]:
            return await ctx.map(square, [1, -2])

        async with app, working(app, maintenance=True):
            job = await parent.enqueue()
            with pytest.raises(awa.JobFailed, match=r"child \d+ \(square\) failed: -2 is negative"):
                await app.result(job.id, timeout="30s")

    async def test_failures_are_values_on_request(self, app: App, square: Any, run: Any) -> None:
        @app.job
        async def parent(ctx: Context) -> list[str]:
            return [str(value) for value in await ctx.map(square, [2, -1]).keep_going()]

        four, failure = await run(parent)
        assert four == "4"
        assert failure.endswith("(square) failed: -1 is negative")

    async def test_first_failure_wakes_the_parent(self, app: App, square: Any) -> None:
        never = asyncio.Event()

        @app.job
        async def slow(number: int) -> None:
            await never.wait()

        @app.job
        async def parent(ctx: Context) -> str:
            children = [await ctx.spawn(slow, 1), await ctx.spawn(square, -1)]
            try:
                await ctx.gather(*children)
            except awa.ChildFailed as error:
                return error.kind
            return ""

        async with app, working(app, maintenance=True):
            job = await parent.enqueue()
            assert await app.result(job.id, timeout="30s") == "square"
            never.set()

    async def test_cancelled_child_wakes_the_parent(self, app: App, square: Any) -> None:
        @app.job
        async def parent(ctx: Context) -> str:
            child = await ctx.spawn(square.options(queue="nobody"), 1)
            try:
                await child
            except awa.ChildFailed as error:
                return error.error
            return ""

        async with app, working(app, maintenance=True):
            job = await parent.enqueue()
            await eventually(lambda: is_waiting(app, job.id))
            (child,) = await app.children(job.id)
            await app.cancel(child.id)
            assert await app.result(job.id, timeout="30s") == "cancelled by user"


class TestCancel:
    async def test_tree_is_cancelled_with_its_root(self, app: App, square: Any, session: Session) -> None:
        @app.job
        async def inner(ctx: Context) -> int:
            return sum(await ctx.map(square.options(queue="nobody"), [1, 2, 3]))

        @app.job
        async def outer(ctx: Context) -> int:
            return sum([await (await ctx.spawn(inner)) for _ in range(2)])

        async with app, working(app, maintenance=True):
            job = await outer.enqueue()
            await eventually(lambda: count(session.connection, "SELECT count(*) FROM awa.ready WHERE queue = 'nobody'"))
            await app.cancel(job.id)
            await eventually(lambda: all_ended(session))
            states = await session.connection.fetch("SELECT DISTINCT state FROM awa.jobs")
        assert {row["state"] for row in states} == {"cancelled"}

    async def test_children_can_be_left_alone(self, app: App, square: Any) -> None:
        @app.job
        async def parent(ctx: Context) -> int:
            return await (await ctx.spawn(square.options(queue="nobody"), 1))

        async with app, working(app, maintenance=True):
            job = await parent.enqueue()
            await eventually(lambda: is_waiting(app, job.id))
            (child,) = await app.children(job.id)
            await app.cancel(job.id, children=False)
            assert (await app.get(job.id)).state is State.CANCELLED
            assert (await app.get(child.id)).state is State.AVAILABLE


class TestBadInput:
    async def test_child_of_another_job_is_refused(self, app: App, square: Any) -> None:
        taken: list[Any] = []

        @app.job
        async def parent(ctx: Context) -> None:
            if taken:
                await ctx.gather(taken[0])
            else:
                taken.append(await ctx.spawn(square, 1))

        async with app:
            await parent.enqueue()
            await drain(app)
            thief = await parent.enqueue()
            await drain(app)
            found = await app.get(thief.id)
        assert found.state is State.FAILED
        assert "only its parent can wait for it" in found.errors[-1]["error"]

    async def test_unique_child_is_refused(self, app: App, square: Any) -> None:
        @app.job
        async def parent(ctx: Context) -> None:
            await ctx.spawn(square.options(unique=True), 1)

        async with app:
            job = await parent.enqueue()
            await drain(app)
            found = await app.get(job.id)
        assert found.state is State.FAILED
        assert "a child has no unique key" in found.errors[-1]["error"]

    async def test_changed_items_are_a_mismatch(self, app: App, square: Any) -> None:
        items = iter([[1, 2], [2, 1]])

        @app.job
        async def parent(ctx: Context) -> None:
            await ctx.map(square, next(items))

        async with app, working(app, maintenance=True):
            job = await parent.enqueue()
            with pytest.raises(awa.JobFailed, match=r"recorded with other arguments"):
                await app.result(job.id, timeout="30s")


class TestRaces:
    """Two workers: one ends a child while the other suspends its parent. The leader's net is off."""

    RACES = 5_000

    async def run(self, database_url: str, races: int, patience: str = "30s") -> int:
        """Return how many of the parents end."""
        app = with_settings(database_url, replace(QUICK, heartbeat_rescue_interval=seconds(3600)))

        @app.job(queue="children")
        async def child(number: int) -> int:
            return number

        @app.job
        async def parent(ctx: Context, number: int) -> int:
            return await (await ctx.spawn(child, number))

        async with app, working(app, {"default": 50}), working(app, {"children": 50}):
            jobs = await app.enqueue_many([parent.new(n) for n in range(races)])
            ended = 0
            for n, job in enumerate(jobs):
                with suppress(awa.ResultTimeout):
                    assert await app.result(job.id, timeout=patience if n == ended else "10ms") == n
                    ended += 1
        return ended

    async def test_no_wake_up_is_lost(self, database_url: str) -> None:
        ended = await self.run(database_url, self.RACES)
        assert ended == self.RACES

    async def test_wake_ups_are_lost_without_the_look_after_the_suspension(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """This shows that the races happen."""
        monkeypatch.setattr(parent_waker, "waits_for_children", lambda job: False)
        ended = await self.run(database_url, 500, patience="5s")
        assert ended < 500


class TestWaking:
    @pytest.mark.parametrize("outcome", [awa.Snooze("1h"), awa.Retry("later"), awa.Throttled("busy")])
    async def test_child_that_is_cancelled_while_it_ends_wakes_its_parent(self, app: App, outcome: Exception) -> None:
        """The request arrives before the outcome, and too late to stop the handler."""

        @app.job(queue="children")
        async def child(ctx: Context) -> None:
            async with app.pool.acquire() as connection:
                await connection.execute("UPDATE awa.running SET cancel_requested_at = now() WHERE id = $1", ctx.job.id)
            raise outcome

        @app.job
        async def parent(ctx: Context) -> str:
            try:
                await (await ctx.spawn(child))
            except awa.ChildFailed as error:
                return error.error
            return ""

        async with app, working(app, ["default", "children"]):  # without a leader
            assert await app.result(await parent.enqueue(), timeout="20s") == "cancelled by user"

    async def test_leader_wakes_a_parent_whose_child_ended_unnoticed(
        self, app: App, square: Any, session: Session
    ) -> None:
        """The worker dies between the commit that ends the last child and its look at the parent."""

        @app.job
        async def parent(ctx: Context) -> int:
            return await (await ctx.spawn(square.options(queue="nobody"), 4))

        async with app:
            job = await parent.enqueue()
            await drain(app)
            assert (await app.get(job.id)).state is State.WAITING
            (child,) = await app.children(job.id)
            await session.connection.execute(
                "WITH ended AS (DELETE FROM awa.ready WHERE id = $1 RETURNING *) "
                "INSERT INTO awa.completed (id, kind, queue, parent_id, worker_id, attempted_at, result) "
                "SELECT id, kind, queue, parent_id, gen_random_uuid(), now(), '16' FROM ended",
                child.id,
            )
            task = one_shot_tasks(QUICK)["parents"]
            assert (await task.run(session)).rows_changed == 1
            await drain(app)
            assert await app.result(job.id, timeout="10s") == 16

    async def test_parent_runs_again_once_after_many_children(self, app: App, square: Any) -> None:
        attempts: list[None] = []

        @app.job
        async def parent(ctx: Context) -> int:
            attempts.append(None)
            return sum(await ctx.map(square, range(2_000)))

        async with app, working(app, {"default": 50}, maintenance=True):
            job = await parent.enqueue()
            assert await app.result(job.id, timeout="60s") == sum(n * n for n in range(2_000))
        assert len(attempts) == 2


async def test_results_survive_the_retention(app: App, square: Any, session: Session) -> None:
    @app.job
    async def parent(ctx: Context) -> int:
        child = await ctx.spawn(square, 5)
        await ctx.wait_signal("go")
        return int(await child)

    async with app:
        job = await parent.enqueue()
        await drain(app)
        (child,) = await app.children(job.id)
        await session.connection.execute(
            "UPDATE awa.completed SET finalized_at = now() - interval '30 days' WHERE id = $1", child.id
        )
        cleanup = one_shot_tasks(QUICK)["cleanup"]
        await cleanup.run(session)
        await session.connection.fetchval("SELECT awa.signal($1, 'go')", job.id)
        await drain(app)
        assert await app.result(job.id, timeout="10s") == 25


async def test_retention_of_zero_keeps_the_results_of_children(app: App, square: Any, session: Session) -> None:
    await session.connection.execute("INSERT INTO awa.queues (name, completed_retention) VALUES ('brief', '0')")

    @app.job
    async def parent(ctx: Context) -> int:
        return sum(await ctx.map(square.options(queue="brief"), [1, 2]))

    async with app, working(app, ("default", "brief"), maintenance=True):
        job = await parent.enqueue()
        assert await app.result(job.id, timeout="30s") == 5


async def test_synchronous_parent(app: App, square: Any, run: Any) -> None:
    @app.job
    def parent(ctx: Context) -> list[int]:
        child = ctx.spawn(square, 2).result()
        return [child.result(), *ctx.map(square, [3]).result()]

    assert await run(parent) == [4, 9]


async def test_first_of_a_child_and_a_timer(app: App, square: Any, run: Any) -> None:
    @app.job
    async def parent(ctx: Context) -> list[Any]:
        child = await ctx.spawn(square, 3)
        winner = await ctx.first(ctx.sleep("1h"), child)
        return [winner.index, winner.value]

    assert await run(parent) == [1, 9]


async def is_waiting(app: App, job_id: int) -> bool:
    return (await app.get(job_id)).state is State.WAITING


async def all_ended(session: Session) -> bool:
    return await count(session.connection, UNFINISHED) == 0


async def test_cleanup_deletes_results_whose_parent_has_ended(session: Session) -> None:
    (parent,) = await insert(session, "scheduled", state="waiting", waits="{}")
    await session.connection.execute(
        "INSERT INTO awa.kept_results (parent_id, id, kind) VALUES ($1, 8, 'square'), (777, 9, 'square')", parent
    )
    await one_shot_tasks(QUICK)["cleanup"].run(session)
    kept = await session.connection.fetch("SELECT id FROM awa.kept_results")
    assert [row["id"] for row in kept] == [8]
