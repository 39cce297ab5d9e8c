"""The first of several waits, and handlers that do not let their suspension pass."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from awa_py import App, Context, State, Winner
from awa_py.store.session import Session
from tests.support import drain
from tests.waiting import LONG, is_waiting, pass_time

pytestmark = pytest.mark.integration


class TestFirst:
    async def test_signal_wins_over_a_timer_in_each_attempt(self, app: App, session: Session) -> None:
        """The winner is recorded: when the attempt is repeated, the timer has fired too."""
        winners: list[Winner] = []

        @app.job
        async def race(ctx: Context) -> None:
            winners.append(await ctx.first(ctx.sleep("1h"), ctx.wait_signal("go")))
            await ctx.sleep("2h")

        async with app:
            job = await app.enqueue("race")
            await drain(app)
            assert await is_waiting(app, job.id)
            await app.signal(job, "go", "now")
            await drain(app)
            assert await is_waiting(app, job.id)
            await pass_time(app, session, 2 * 3600)
            assert (await app.get(job)).state is State.COMPLETED
        assert [(each.index, each.value.name, each.value.data) for each in winners] == [(1, "go", "now")] * 2

    async def test_timer_wins_over_a_later_signal(self, app: App, session: Session) -> None:
        @app.job
        async def race(ctx: Context) -> list[Any]:
            first = await ctx.first(ctx.wait_signal("go"), ctx.sleep("1h"))
            signal = await ctx.wait_signal("go")
            return [first.index, first.value, signal and signal.data]

        async with app:
            job = await app.enqueue("race")
            await drain(app)
            await pass_time(app, session)
            assert await is_waiting(app, job.id)
            await app.signal(job, "go", "late")
            await drain(app)
            assert await app.result(job, timeout=LONG) == [1, None, "late"]

    async def test_signal_of_the_loser_is_kept(self, app: App) -> None:
        @app.job
        async def race(ctx: Context) -> list[Any]:
            first = await ctx.first(ctx.wait_signal("a"), ctx.wait_signal("b"))
            other = await ctx.wait_signal("b")
            return [first.index, first.value.data, other and other.data]

        async with app:
            job = await app.enqueue("race")
            await app.signal(job, "b", 2)
            await app.signal(job, "a", 1)
            await drain(app)
            assert await app.result(job, timeout=LONG) == [0, 1, 2]

    async def test_timeout_of_a_signal_wins(self, app: App, session: Session) -> None:
        @app.job
        async def race(ctx: Context) -> list[Any]:
            first = await ctx.first(ctx.wait_signal("a", timeout="2h"), ctx.wait_signal("b", timeout="1h"))
            return [first.index, first.value]

        async with app:
            job = await app.enqueue("race")
            await drain(app)
            await pass_time(app, session)
            assert await app.result(job, timeout=LONG) == [1, None]

    async def test_signal_that_a_lost_attempt_took_wins(self, app: App, session: Session) -> None:
        """The process died after it took the signal, and before it recorded the winner."""

        @app.job
        async def race(ctx: Context) -> list[Any]:
            first = await ctx.first(ctx.sleep("1h"), ctx.wait_signal("go"))
            return [first.index, first.value and first.value.data]

        async with app:
            job = await app.enqueue("race")
            await drain(app)
            await session.connection.execute(
                """INSERT INTO awa.checkpoints (job_id, name, number, type, lease, result)
                   VALUES ($1, 'go', 2, 'signal', 1, json_build_object('name', 'go', 'data', 7, 'sent_at', now()))""",
                job.id,
            )
            await pass_time(app, session)
            assert await app.result(job, timeout=LONG) == [1, 7]

    async def test_short_timer_wins_in_place(self, app: App) -> None:
        @app.job
        async def race(ctx: Context) -> int:
            return (await ctx.first(ctx.wait_signal("go"), ctx.sleep("50ms"))).index

        async with app:
            job = await app.enqueue("race")
            await drain(app)
            assert await app.result(job, timeout=LONG) == 1
            assert (await app.get(job)).lease == 1

    @pytest.mark.parametrize(
        ("call", "problem"),
        [
            (lambda ctx: ctx.first(), "first() needs at least one wait"),
            (lambda ctx: ctx.first(ctx.step("a", int)), "first() takes waits"),
            (lambda ctx: ctx.first(7), "first() takes waits"),
        ],
    )
    async def test_other_calls_than_waits_fail_the_job_at_once(
        self, app: App, call: Callable[[Context], Any], problem: str
    ) -> None:
        @app.job
        async def race(ctx: Context) -> None:
            await call(ctx)

        async with app:
            job = await app.enqueue("race")
            await drain(app)
            ended = await app.get(job)
        assert (ended.state, ended.attempt) == (State.FAILED, 1)
        assert problem in ended.errors[-1]["error"]

    @pytest.mark.parametrize("result", ["5", "-1", '"text"', "null", None])
    async def test_edited_winner_fails_the_job_at_once(self, app: App, session: Session, result: str | None) -> None:
        @app.job
        async def race(ctx: Context) -> None:
            await ctx.first(ctx.sleep("1h"), ctx.sleep("2h"))
            await ctx.sleep("1h")

        async with app:
            job = await app.enqueue("race")
            await drain(app)
            await pass_time(app, session)
            await session.connection.execute("UPDATE awa.checkpoints SET result = $1 WHERE type = 'choice'", result)
            await pass_time(app, session)
            ended = await app.get(job)
        assert ended.state is State.FAILED
        assert '"first"' in ended.errors[-1]["error"]


class TestSwallowedSuspension:
    """A handler that goes on meets the suspension again at its next call, and its end does not count."""

    async def run(self, app: App, session: Session, kind: str) -> Any:
        async with app:
            job = await app.enqueue(kind)
            await drain(app)
            waiting = await app.get(job)
            assert (waiting.state, waiting.attempt, waiting.errors) == (State.WAITING, 0, [])
            await pass_time(app, session)
            return await app.result(job, timeout=LONG)

    async def test_handler_that_catches_everything(self, app: App, session: Session) -> None:
        met: list[str] = []

        @app.job(max_attempts=1)
        async def stubborn(ctx: Context) -> str:
            for call in (ctx.sleep("1h"), ctx.step("work", str)):
                try:
                    await call
                except BaseException as error:
                    met.append(type(error).__name__)
            return "the end"

        assert await self.run(app, session, "stubborn") == "the end"
        assert met == ["CancelledError", "CancelledError"]

    async def test_handler_in_a_thread_that_catches_everything(self, app: App, session: Session) -> None:
        met: list[str] = []

        @app.job(max_attempts=1)
        def stubborn(ctx: Context) -> str:
            for call in (ctx.sleep("1h"), ctx.step("work", str)):
                try:
                    call.result()
                except BaseException as error:
                    met.append(type(error).__name__)
            return "the end"

        assert await self.run(app, session, "stubborn") == "the end"
        assert met == ["Suspended", "Suspended"]

    async def test_error_after_the_suspension_does_not_count(self, app: App, session: Session) -> None:
        @app.job(max_attempts=1)
        async def stubborn(ctx: Context) -> str:
            try:
                await ctx.sleep("1h")
            except asyncio.CancelledError:
                raise ValueError("not the end") from None
            return "the end"

        assert await self.run(app, session, "stubborn") == "the end"

    async def test_gather_that_returns_exceptions_does_not_go_on(self, app: App, session: Session) -> None:
        ran: list[str] = []

        def work() -> None:
            ran.append("work")

        @app.job(max_attempts=1)
        async def stubborn(ctx: Context) -> str:
            await asyncio.gather(ctx.sleep("1h"), ctx.sleep("30m"), return_exceptions=True)
            await ctx.step("work", work)
            return "the end"

        assert await self.run(app, session, "stubborn") == "the end"
        assert ran == ["work"]

    async def test_finally_blocks_run_at_each_suspension(self, app: App, session: Session) -> None:
        ends: list[str] = []

        @app.job
        async def tidy(ctx: Context) -> str:
            try:
                async with asyncio.timeout(60):
                    await ctx.sleep("1h")
                return "the end"
            finally:
                ends.append("closed")

        assert await self.run(app, session, "tidy") == "the end"
        assert ends == ["closed", "closed"]
