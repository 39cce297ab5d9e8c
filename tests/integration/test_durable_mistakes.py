"""Mistakes in durable jobs: the job fails at once with a clear sentence, and nothing is done again."""

import asyncio
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from awa_py import App, Context, Job, State
from awa_py.errors import InvalidStep, ReplayMismatch
from awa_py.store.session import Session
from awa_py.worker.durable import memory
from tests.durable import FailingOnce, Trace, checkpoints, end_of, retrying_at_once, run_to_end
from tests.support import QUICK, eventually, with_settings

pytestmark = pytest.mark.integration


def error_of(job: Job[Any]) -> str:
    assert (job.state, job.lease - len(job.errors)) == (State.FAILED, 0), job
    return str(job.errors[-1]["error"])


class TestMismatch:
    async def test_other_arguments_fail_the_job(  # Y3
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce
    ) -> None:
        @app.job
        async def work(ctx: Context) -> None:
            await ctx.step("a", ran.step, len(ran))
            fail_once("after a")

        job = await run_to_end(app, session, "work")
        assert 'step "a" of job 1 (work) was recorded with other arguments' in error_of(job)
        assert (ran, job.lease) == ([0], 2)

    async def test_another_sort_of_call_fails_the_job(  # Y3
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce
    ) -> None:
        @app.job
        async def work(ctx: Context) -> None:
            if not ran:
                await ctx.step("a", ran.step, 1)
            else:
                await ctx.wait_signal("a")
            fail_once("after a")

        job = await run_to_end(app, session, "work")
        assert '"a" of job 1 (work) was recorded as a step, and is a signal now' in error_of(job)

    @pytest.mark.parametrize("kind", ["in_loop", "in_thread", "in_gather"])
    async def test_handler_cannot_catch_it(
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce, kind: str
    ) -> None:
        @app.job
        async def in_loop(ctx: Context) -> str:
            try:
                await ctx.step("a", ran.step, len(ran))
            except ReplayMismatch:
                with pytest.raises(ReplayMismatch):
                    await ctx.step("b", ran.step, "b")
                return "fine"
            raise RuntimeError

        @app.job
        def in_thread(ctx: Context) -> str:
            try:
                ctx.step("a", ran.sync_step, len(ran)).result()
            except ReplayMismatch:
                with pytest.raises(ReplayMismatch):
                    ctx.step("b", ran.sync_step, "b").result()
                return "fine"
            raise RuntimeError

        @app.job
        async def in_gather(ctx: Context) -> None:
            await asyncio.gather(ctx.step("a", ran.step, len(ran)), return_exceptions=True)
            if len(ran) == 1 and ctx.job.lease == 1:
                raise RuntimeError
            await asyncio.gather(ctx.step("c", ran.step, "c"), ctx.sleep("1h"), return_exceptions=True)

        job = await run_to_end(app, session, kind)
        assert "was recorded with other arguments" in error_of(job)
        assert ran == [0]

    async def test_operator_can_retry_the_job_after_a_fix(
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce
    ) -> None:
        values = [1, 2, 1]

        @app.job
        async def work(ctx: Context) -> int:
            value = await ctx.step("a", ran.step, values.pop(0))
            fail_once("after a")
            return int(value)

        async with app, retrying_at_once(app, session):
            job = await app.enqueue("work")
            assert (await end_of(app, job)).state is State.FAILED
            await app.retry(job.id)
            await eventually(lambda: _is_completed(app, job.id))
        assert ran == [1]


async def _is_completed(app: App, job_id: int) -> bool:
    return (await app.get(job_id)).state is State.COMPLETED


NESTED: list[Any] = []
NESTED.append(NESTED)


class TestResults:
    @pytest.mark.parametrize(
        ("result", "problem"),
        [
            (object(), "an object is not JSON-serializable"),
            ({1: 2}, "has a key of type int"),
            ("a\0b", r"\u0000 cannot be stored"),
            ("\ud800", "lone surrogate"),
            (math.nan, "NaN is not JSON"),
            ("x" * 101, "103 bytes of result, the limit is 100 bytes"),
            (NESTED, "cannot be converted to JSON: RecursionError"),
        ],
        ids=["object", "key", "nul", "surrogate", "nan", "large", "endless"],
    )
    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    async def test_result_that_cannot_be_recorded_fails_the_job_and_is_not_repeated(
        self, database_url: str, session: Session, ran: Trace, result: object, problem: str, kind: str
    ) -> None:
        app = with_settings(database_url, replace(QUICK, max_step_bytes=100))

        def step() -> Any:
            ran.append("called")
            return result

        @app.job
        async def in_loop(ctx: Context) -> None:
            await ctx.step("a", step).retry(3, base="1ms")

        @app.job
        def in_thread(ctx: Context) -> None:
            ctx.step("a", step).retry(3, base="1ms").result()

        job = await run_to_end(app, session, kind)
        error = error_of(job)
        assert 'step "a": result' in error or 'step "a": 103 bytes' in error
        assert problem in error
        assert (ran, job.lease) == (["called"], 1)

    async def test_result_that_does_not_fit_the_annotation_fails_the_job(
        self, app: App, session: Session, ran: Trace
    ) -> None:
        def step() -> int:
            ran.append("called")
            return "seven"  # type: ignore[return-value]

        @app.job
        async def work(ctx: Context) -> None:
            await ctx.step("a", step)

        job = await run_to_end(app, session, "work")
        assert ('step "a": result' in error_of(job), ran) == (True, ["called"])

    async def test_results_of_a_job_have_a_limit_together(
        self, app: App, session: Session, ran: Trace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(memory, "MAX_JOB_BYTES", 2**20)

        @app.job
        async def work(ctx: Context) -> None:
            for number in range(3):
                await ctx.step("a", ran.step, f"{number}" * 400_000)

        job = await run_to_end(app, session, "work")
        assert 'step "a#3": with its result' in error_of(job)

    async def test_record_that_was_edited_fails_the_job(self, app: App, session: Session) -> None:
        def step() -> int:
            return 1

        @app.job
        async def work(ctx: Context) -> None:
            await ctx.step("a", step)
            query = """UPDATE awa.checkpoints SET result = '"x"'"""
            await session.connection.execute(query)
            raise RuntimeError

        job = await run_to_end(app, session, "work")
        assert 'step "a": the recorded result cannot be read' in error_of(job)


class TestCalls:
    @pytest.mark.parametrize(
        ("call", "problem"),
        [
            (lambda ctx: ctx.step("", len, "x"), "cannot be empty"),
            (lambda ctx: ctx.step("x" * 201, len, "x"), "at most 200 characters"),
            (lambda ctx: ctx.step("a\nb", len, "x"), "control characters"),
            (lambda ctx: ctx.step(7, len, "x"), "a step's name is a string"),
            (lambda ctx: ctx.step("a", 7), "a function was expected, not an int"),
            (lambda ctx: ctx.step("a", len, "x").key(""), "cannot be empty"),
            (lambda ctx: ctx.step("a", len, "x").retry(0), "from 1 to 1000, not 0"),
            (lambda ctx: ctx.step("a", len, "x").retry(2, base="-1s"), "is not a duration"),
            (lambda ctx: ctx.step("a", len, "x").retry(2, base=-1), "is negative"),
            (lambda ctx: ctx.step("a", len, "x").timeout(math.nan), "is not a duration"),
            (lambda ctx: ctx.step("a", len, "x").timeout(0), "must be longer than 0"),
            (lambda ctx: ctx.sleep(-1), "is negative"),
            (lambda ctx: ctx.sleep(math.nan), "is not a duration"),
            (lambda ctx: ctx.step("a", len, "x").result(), "use await"),
        ],
    )
    @pytest.mark.parametrize("in_group", [False, True], ids=["plain", "group"])
    async def test_invalid_call_fails_the_job(
        self, app: App, session: Session, call: Callable[[Context], Any], problem: str, in_group: bool
    ) -> None:
        @app.job
        async def work(ctx: Context) -> None:
            async def make_call() -> None:
                await call(ctx)

            if in_group:
                async with asyncio.TaskGroup() as group:
                    group.create_task(make_call())
            else:
                await make_call()

        job = await run_to_end(app, session, "work")
        assert problem in error_of(job)
        assert job.lease == 1

    @pytest.mark.parametrize("how", ["loop", "gather"])
    async def test_too_many_steps_fail_the_job(self, database_url: str, session: Session, ran: Trace, how: str) -> None:
        app = with_settings(database_url, replace(QUICK, max_steps=3))

        @app.job
        async def work(ctx: Context) -> None:
            if how == "gather":
                await asyncio.gather(*(ctx.step("a", ran.step, number) for number in range(10)))
            for number in range(10):
                await ctx.step("a", ran.step, number)

        job = await run_to_end(app, session, "work")
        assert "has 3 checkpoints, which is the limit (AWA_MAX_STEPS)" in error_of(job)
        assert ran == [0, 1, 2]
        assert list(await checkpoints(session, job.id)) == ["a", "a#2", "a#3"]

    async def test_step_that_is_awaited_twice_at_once_fails_the_job(self, app: App, session: Session) -> None:
        @app.job
        async def work(ctx: Context) -> None:
            async def wait() -> None:
                await step

            step = ctx.step("a", asyncio.sleep, 0.1)
            await asyncio.gather(wait(), wait())

        assert 'step "a" is awaited twice at the same time' in error_of(await run_to_end(app, session, "work"))

    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    async def test_step_inside_a_step_fails_the_job(self, app: App, session: Session, ran: Trace, kind: str) -> None:
        @app.job
        async def in_loop(ctx: Context) -> None:
            async def outer() -> None:
                await ctx.step("inner", ran.step, 1)

            await ctx.step("outer", outer)

        @app.job
        def in_thread(ctx: Context) -> None:
            def outer() -> None:
                ctx.step("inner", ran.sync_step, 1).result()

            ctx.step("outer", outer).result()

        error = error_of(await run_to_end(app, session, kind))
        assert ('"inner" was called inside step "outer"' in error, ran) == (True, [])

    @pytest.mark.parametrize(("kind", "cure"), [("in_loop", "await it"), ("in_thread", "call its result()")])
    async def test_call_that_nothing_waits_for_fails_the_job(
        self, app: App, session: Session, ran: Trace, kind: str, cure: str
    ) -> None:
        @app.job
        async def in_loop(ctx: Context) -> None:
            await ctx.step("a", ran.step, 1)
            ctx.step("b", ran.step, 2)

        @app.job
        def in_thread(ctx: Context) -> None:
            ctx.step("a", ran.step, 1).result()
            ctx.step("b", ran.step, 2)

        job = await run_to_end(app, session, kind)
        assert error_of(job).endswith(f'"b" was called, but nothing waited for it: {cure}')
        assert ran == [1]


class TestThreads:
    async def test_call_after_the_end_of_the_handler_is_refused(self, app: App, session: Session, ran: Trace) -> None:
        kept: list[Any] = []

        @app.job
        async def work(ctx: Context) -> None:
            kept.append(ctx)
            kept.append(ctx.step("a", ran.step, 1))

        @app.job
        async def plain(ctx: Context) -> None:
            kept.append(ctx)

        await run_to_end(app, session, "work")
        ctx, step = kept
        with pytest.raises(InvalidStep, match="after the end of its handler"):
            await step
        with pytest.raises(InvalidStep, match="after the end of its handler"):
            await ctx.step("b", ran.step, 1)
        kept.clear()
        await run_to_end(app, session, "plain")
        with pytest.raises(InvalidStep, match="after the end of its handler"):
            kept[0].step("a", ran.step, 1)
        assert ran == []

    @pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    async def test_call_in_a_foreign_thread_fails_the_job(
        self, app: App, session: Session, ran: Trace, kind: str, is_first: bool
    ) -> None:
        def call(ctx: Context) -> None:
            errors: list[Exception] = []

            def run() -> None:
                try:
                    ctx.step("b", ran.sync_step, 1).result()
                except Exception as error:
                    errors.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
            raise errors[0]

        @app.job
        async def in_loop(ctx: Context) -> None:
            if not is_first:
                await ctx.step("a", len, "x")
            await asyncio.to_thread(call, ctx)

        @app.job
        def in_thread(ctx: Context) -> None:
            if not is_first:
                ctx.step("a", len, "x").result()
            call(ctx)

        error = error_of(await run_to_end(app, session, kind))
        assert ("foreign thread" in error, ran) == (True, [])

    async def test_call_that_is_awaited_in_another_event_loop_fails_the_job(
        self, app: App, session: Session, ran: Trace
    ) -> None:
        @app.job
        async def work(ctx: Context) -> None:
            step = ctx.step("a", ran.step, 1)

            async def wait() -> None:
                await step

            await asyncio.to_thread(asyncio.run, wait())

        error = error_of(await run_to_end(app, session, "work"))
        assert ("another event loop" in error, ran) == (True, [])

    async def test_worker_goes_on_after_a_mistake(self, app: App, session: Session, ran: Trace) -> None:
        @app.job
        async def wrong(ctx: Context) -> None:
            await ctx.step("", ran.step, 1)

        @app.job
        async def right(ctx: Context) -> int:
            return int(await ctx.step("a", ran.step, 1))

        async with app, retrying_at_once(app, session):
            jobs = [await app.enqueue(kind) for kind in ("wrong", "right", "wrong", "right")]
            states = [(await end_of(app, job)).state for job in jobs]
        assert states == [State.FAILED, State.COMPLETED] * 2
