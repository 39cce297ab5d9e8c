"""How often a step is tried, for how long, and how many attempts a durable job has."""

import asyncio
import threading
from typing import Any

import pytest

import awa_py as awa
from awa_py import App, Context, Job, State
from awa_py.errors import StepTimeout
from awa_py.model.durable import Step
from awa_py.store.session import Session
from tests.durable import FailingOnce, Trace, checkpoints, end_of, folded, raising, retrying_at_once, run_to_end, waits
from tests.support import eventually

pytestmark = pytest.mark.integration


class TestRetry:
    async def test_short_pauses_are_made_in_place(self, app: App, session: Session, ran: Trace) -> None:
        async def fail_twice() -> int:
            ran.append("called")
            if len(ran) < 3:
                raise ValueError
            return len(ran)

        @app.job
        async def work(ctx: Context) -> int:
            return await ctx.step("a", fail_twice).retry(3, base="10ms")

        job = await run_to_end(app, session, "work")
        assert (job.result, job.lease) == (3, 1)
        assert await folded(session, job.id) == ["a"]

    async def test_number_of_tries_is_kept_over_suspensions(self, app: App, session: Session, ran: Trace) -> None:
        """The first pause is made in place, the next two suspend the job."""
        seen: list[Any] = []

        @app.job
        async def work(ctx: Context) -> None:
            try:
                await ctx.step("a", raising(ran, ValueError("x"))).retry(4, base="600ms")
            except ValueError as error:
                seen.append(str(error))

        async with app, retrying_at_once(app, session):
            job = await app.enqueue("work")
            await eventually(lambda: waits(session, job.id))
            assert len(ran) == 2
            await eventually(lambda: len(ran) == 3 and waits(session, job.id))
            assert (await end_of(app, job)).state is State.COMPLETED
        assert (len(ran), seen) == (4, ["x"])

    async def test_step_that_used_up_its_tries_gets_one_more_in_each_further_attempt(
        self, app: App, session: Session, ran: Trace
    ) -> None:
        @app.job(max_attempts=2)
        async def work(ctx: Context) -> None:
            await ctx.step("a", raising(ran, ValueError("x"))).retry(2, base="1.1s")

        job = await run_to_end(app, session, "work")
        assert (job.state, len(ran)) == (State.FAILED, 3)

    async def test_tries_are_recorded(self, app: App, session: Session, ran: Trace, fail_once: FailingOnce) -> None:
        async def fail_first() -> None:
            fail_once("step")

        @app.job(max_attempts=1)
        async def work(ctx: Context) -> None:
            await ctx.step("a", fail_first).retry(5, base="1ms")
            raise RuntimeError

        job = await run_to_end(app, session, "work")
        assert (await checkpoints(session, job.id))["a"]["tries"] == 2


class TestTimeout:
    @pytest.mark.parametrize("kind", ["coroutine", "thread", "transaction"])
    async def test_step_that_takes_longer_than_its_timeout_raises_step_timeout(
        self, app: App, session: Session, fail_once: FailingOnce, kind: str
    ) -> None:
        never = threading.Event()

        async def sleep_in_transaction(connection: Any) -> None:
            await connection.fetchval("SELECT pg_sleep(600)")

        @app.job
        async def work(ctx: Context) -> str:
            step: Step[Any]
            if kind == "coroutine":
                step = ctx.step("a", asyncio.sleep, 600)
            elif kind == "thread":
                step = ctx.step("a", never.wait, 600)
            else:
                step = ctx.transact("a", sleep_in_transaction)
            try:
                await step.timeout("200ms")
            except StepTimeout as error:
                text = str(error)
            fail_once("after the timeout")
            return text

        try:
            job = await run_to_end(app, session, "work")
        finally:
            never.set()
        assert (job.result, job.lease) == ('step "a" took longer than 0.2 s', 2)

    async def test_timeout_error_of_the_function_itself_stays_what_it_is(self, app: App, session: Session) -> None:
        @app.job(max_attempts=1)
        async def work(ctx: Context) -> None:
            await ctx.step("a", raising(Trace(), TimeoutError("of a socket"))).timeout("10s")

        assert (await run_to_end(app, session, "work")).errors[-1]["error"] == "TimeoutError: of a socket"

    async def test_each_try_has_its_own_timeout(self, app: App, session: Session, ran: Trace) -> None:
        async def slow_first() -> int:
            ran.append("called")
            if len(ran) == 1:
                await asyncio.sleep(600)
            return len(ran)

        @app.job
        async def work(ctx: Context) -> int:
            return await ctx.step("a", slow_first).retry(2, base="1ms").timeout("300ms")

        assert (await run_to_end(app, session, "work")).result == 2


class TestOutcomes:
    @pytest.mark.parametrize(
        ("outcome", "state", "lease"),
        [
            (awa.Fail("no"), State.FAILED, 1),
            (awa.Cancel("no"), State.CANCELLED, 1),
            (awa.Retry("again", after="0s"), State.COMPLETED, 2),
            (awa.Snooze("0s"), State.COMPLETED, 2),
        ],
        ids=["fail", "cancel", "retry", "snooze"],
    )
    async def test_outcome_that_a_step_raises_ends_the_attempt(
        self, app: App, session: Session, ran: Trace, outcome: Exception, state: State, lease: int
    ) -> None:
        """It is no error of the step, which would be tried again."""

        async def raise_first() -> None:
            ran.append("called")
            if len(ran) == 1:
                raise outcome

        @app.job
        async def work(ctx: Context) -> None:
            await ctx.step("a", raise_first).retry(5, base="1ms")

        job = await run_to_end(app, session, "work")
        assert (job.state, job.lease, len(ran)) == (state, lease, lease)


class TestAttempts:
    async def test_attempts_that_recorded_something_do_not_count(
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce
    ) -> None:
        async def fail_first(name: str) -> None:
            ran.append(name)
            fail_once(name)

        @app.job(max_attempts=2)
        async def work(ctx: Context) -> None:
            for name in "abcde":
                await ctx.step(name, fail_first, name)

        job = await run_to_end(app, session, "work")
        assert (job.state, job.lease, ran) == (State.COMPLETED, 6, list("aabbccddee"))

    async def test_step_that_always_fails_ends_the_job_after_max_attempts(
        self, app: App, session: Session, ran: Trace
    ) -> None:
        @app.job(max_attempts=2)
        async def work(ctx: Context) -> None:
            await ctx.step("a", ran.step, "a")
            await ctx.step("b", raising(ran, ValueError("x")))

        job: Job[Any] = await run_to_end(app, session, "work")
        assert (job.state, job.attempt, job.lease) == (State.FAILED, 2, 3)
        assert ran == ["a", "ValueError", "ValueError", "ValueError"]

    async def test_caught_error_that_leaves_later_does_not_count_as_a_record(
        self, app: App, session: Session, ran: Trace
    ) -> None:
        @app.job(max_attempts=2)
        async def work(ctx: Context) -> None:
            try:
                await ctx.step("a", raising(ran, ValueError("x")))
            except ValueError:
                await ctx.step("log", ran.step, "log")
                raise

        job = await run_to_end(app, session, "work")
        assert (job.state, ran.count("log"), ran.count("ValueError")) == (State.FAILED, 1, 3)
