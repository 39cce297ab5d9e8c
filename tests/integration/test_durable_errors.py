"""Errors of steps: which are recorded, and which steps run again."""

import asyncio
from typing import Any

import pytest

import awa_py as awa
from awa_py import App, Context, State
from awa_py.errors import InvalidStep, StepFailed
from awa_py.store.session import Session
from tests.durable import FailingOnce, Trace, checkpoints, end_of, raising, retrying_at_once, run_to_end

pytestmark = pytest.mark.integration


class CardDeclined(Exception):
    """An error that is made by its constructor from other arguments than it keeps."""

    def __init__(self, code: int, *, card: str) -> None:
        super().__init__(f"declined: {code}")
        self.code = code
        self.card = card


class TestLeaving:
    async def test_step_whose_error_left_the_handler_runs_again(
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce
    ) -> None:
        async def fail_first() -> int:
            ran.append("called")
            fail_once("step")
            return 7

        @app.job
        async def work(ctx: Context) -> int:
            return await ctx.step("a", fail_first)

        job = await run_to_end(app, session, "work")
        assert (job.result, ran, job.lease) == (7, ["called"] * 2, 2)

    @pytest.mark.parametrize("how", ["raise", "from", "group"])
    async def test_step_whose_error_was_raised_again_after_another_step_runs_again(
        self, app: App, session: Session, ran: Trace, how: str
    ) -> None:
        async def fail_twice() -> str:
            ran.append("charge")
            if ran.count("charge") < 3:
                raise CardDeclined(5, card="visa")
            return "charged"

        async def charge(ctx: Context) -> str:
            try:
                return await ctx.step("charge", fail_twice)
            except CardDeclined as error:
                await ctx.step("log", ran.step, "log")
                if how == "raise":
                    raise
                raise RuntimeError("not charged") from error

        @app.job(max_attempts=2)
        async def work(ctx: Context) -> str:
            if how != "group":
                return await charge(ctx)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(charge(ctx))
            return task.result()

        job = await run_to_end(app, session, "work")
        assert (job.state, job.result) == (State.COMPLETED, "charged")
        assert ran == ["charge", "log", "charge", "charge"]

    async def test_step_whose_error_was_replaced_by_another_at_once_runs_again(
        self, app: App, session: Session, ran: Trace
    ) -> None:
        async def fail_first() -> str:
            ran.append("charge")
            if len(ran) == 1:
                raise ValueError
            return "charged"

        @app.job
        async def work(ctx: Context) -> str:
            try:
                return await ctx.step("charge", fail_first)
            except ValueError:
                raise RuntimeError("not charged")  # noqa: B904

        job = await run_to_end(app, session, "work")
        assert (job.result, len(ran)) == ("charged", 2)

    async def test_step_that_fails_while_an_error_is_handled_does_not_repeat_the_first_one(
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce
    ) -> None:
        async def notify() -> str:
            fail_once("notify")
            return "notified"

        @app.job
        async def work(ctx: Context) -> str:
            try:
                await ctx.step("charge", raising(ran, ValueError("declined")))
            except ValueError:
                return await ctx.step("notify", notify)
            return "charged"

        job = await run_to_end(app, session, "work")
        assert (job.result, ran) == ("notified", ["ValueError"])


class TestCaught:
    async def test_caught_error_is_raised_again_in_each_attempt(
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce
    ) -> None:
        seen: list[Any] = []

        @app.job
        async def work(ctx: Context) -> None:
            try:
                await ctx.step("charge", raising(ran, CardDeclined(5, card="visa")))
            except CardDeclined as error:
                seen.append((type(error), error.args, error.code, error.card, str(error)))
            fail_once("after the error")

        job = await run_to_end(app, session, "work")
        assert seen == [(CardDeclined, ("declined: 5",), 5, "visa", "declined: 5")] * 2
        assert (job.state, ran) == (State.COMPLETED, ["CardDeclined"])

    async def test_synchronous_handler_catches_the_same_error(
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce
    ) -> None:
        def charge() -> None:
            ran.append("charge")
            raise CardDeclined(5, card="visa")

        @app.job
        def work(ctx: Context) -> int:
            try:
                ctx.step("charge", charge).result()
            except CardDeclined as error:
                ctx.step("log", ran.sync_step, "log").result()
                fail_once("after the log")
                return error.code
            return 0

        job = await run_to_end(app, session, "work")
        assert (job.result, ran) == (5, ["charge", "log"])

    async def test_error_of_an_unknown_class_becomes_step_failed(
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce
    ) -> None:
        class LocalError(Exception): ...

        @app.job
        async def work(ctx: Context) -> str:
            try:
                await ctx.step("a", raising(ran, LocalError("x")))
            except (LocalError, StepFailed) as error:
                text = f"{type(error).__name__} {error}"
            fail_once("after the error")
            return text

        job = await run_to_end(app, session, "work")
        assert (job.result, ran) == (f"StepFailed {LocalError.__qualname__}: x", ["LocalError"])

    async def test_errors_of_a_gather_that_returns_them_are_recorded(
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce
    ) -> None:
        @app.job
        async def work(ctx: Context) -> list[str]:
            steps = [ctx.step("a", raising(ran, ValueError(n))) for n in range(2)]
            found = await asyncio.gather(*steps, ctx.step("b", ran.step, "fine"), return_exceptions=True)
            await ctx.step("c", ran.step, "next")
            fail_once("at the end")
            return [repr(each) for each in found]

        job = await run_to_end(app, session, "work")
        assert job.result == ["ValueError(0)", "ValueError(1)", "'fine'"]
        assert sorted(ran) == ["ValueError", "ValueError", "fine", "next"]


class TestSideBySide:
    @pytest.mark.parametrize("how", ["gather", "group"])
    async def test_step_beside_a_failing_one_is_recorded_once(
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce, how: str
    ) -> None:
        """A gather raises the error while the other step is under way: the attempt ends after both."""
        failed = asyncio.Event()

        async def fail_first() -> None:
            try:
                fail_once("fail_first")
            finally:
                failed.set()

        async def slow() -> int:
            await failed.wait()
            if how == "gather":
                await asyncio.sleep(0.1)
            ran.append("slow")
            return 1

        @app.job
        async def work(ctx: Context) -> None:
            if how == "gather":
                await asyncio.gather(ctx.step("a", fail_first), ctx.step("slow", slow))
            else:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_awaiting(ctx.step("slow", slow)))
                    await ctx.step("a", fail_first)

        job = await run_to_end(app, session, "work")
        assert (job.state, job.lease, ran) == (State.COMPLETED, 2, ["slow"])

    async def test_errors_that_nothing_looked_at_let_their_steps_run_again(
        self, app: App, session: Session, ran: Trace
    ) -> None:
        async def fail_twice(name: str) -> str:
            ran.append(name)
            if ran.count(name) == 1:
                raise ValueError(name)
            return name

        @app.job
        async def work(ctx: Context) -> list[str]:
            return list(await asyncio.gather(*(ctx.step(name, fail_twice, name) for name in "ab")))

        job = await run_to_end(app, session, "work")
        assert (job.result, job.lease, sorted(ran)) == (["a", "b"], 2, ["a", "a", "b", "b"])

    async def test_no_step_begins_after_the_handler_has_failed(self, app: App, session: Session, ran: Trace) -> None:
        @app.job
        async def work(ctx: Context) -> None:
            async def other() -> None:
                await ctx.step("under way", asyncio.sleep, 0.1)
                with pytest.raises(InvalidStep, match="after the end of its handler"):
                    await ctx.step("late", ran.step, "late")

            others.append(asyncio.create_task(other()))
            await ctx.step("a", raising(ran, awa.Fail("at once")))

        others: list[asyncio.Task[None]] = []

        async with app, retrying_at_once(app, session):
            job = await end_of(app, await app.enqueue("work"))
            assert list(await checkpoints(session, job.id)) == ["under way"]
            await others[0]
        assert (job.state, ran) == (State.FAILED, ["Fail"])


async def _awaiting(step: Any) -> Any:
    return await step
