"""Steps run once: a later attempt of the job returns what was recorded."""

import asyncio
import contextvars
import functools
import threading
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from awa_py import App, Context, State
from awa_py.store.session import Session
from tests.durable import FailingOnce, Trace, end_of, folded, retrying_at_once, run_to_end
from tests.proxy import counting_proxy
from tests.support import QUICK, with_settings

pytestmark = pytest.mark.integration


class TestOnce:
    async def test_step_runs_once_over_several_attempts(  # Y2
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce
    ) -> None:
        @app.job
        async def work(ctx: Context) -> list[int]:
            first = await ctx.step("a", ran.step, 1)
            fail_once("after a")
            second = await ctx.step("b", ran.step, 2)
            fail_once("after b")
            return [first, second]

        job = await run_to_end(app, session, "work")
        assert (job.state, job.result, job.lease) == (State.COMPLETED, [1, 2], 3)
        assert ran == [1, 2]

    async def test_synchronous_handler_does_the_same_with_result(
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce
    ) -> None:
        @app.job
        def work(ctx: Context) -> list[int]:
            first = ctx.step("a", ran.sync_step, 1).result()
            fail_once("after a")
            second = ctx.step("b", ran.step, 2).result()
            fail_once("after b")
            return [first, second]

        job = await run_to_end(app, session, "work")
        assert (job.state, job.result, job.lease) == (State.COMPLETED, [1, 2], 3)
        assert ran == [1, 2]

    async def test_only_later_attempts_read_the_checkpoints_and_each_once(
        self, database_url: str, session: Session, ran: Trace, fail_once: FailingOnce
    ) -> None:
        async with counting_proxy(database_url) as (url, proxy):
            app = with_settings(url, QUICK)

            @app.job
            async def work(ctx: Context) -> None:
                await asyncio.gather(ctx.step("a", ran.step, 1), ctx.step("b", ran.step, 2))
                fail_once("after the steps")
                await ctx.step("c", ran.step, 3)
                reads.append(proxy.count("records", "read_checkpoints"))

            reads: list[int] = []
            await run_to_end(app, session, "work")
        assert reads == [1]
        assert proxy.count("records", "record_checkpoints") == 2

    async def test_step_that_is_awaited_again_returns_its_result(self, app: App, session: Session, ran: Trace) -> None:
        @app.job
        async def work(ctx: Context) -> list[int]:
            step = ctx.step("a", ran.step, 1)
            return [await step, await step]

        job = await run_to_end(app, session, "work")
        assert (job.result, ran) == ([1, 1], [1])


class TestNames:
    async def test_steps_of_a_loop_are_numbered(
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce
    ) -> None:
        @app.job
        async def work(ctx: Context) -> list[int]:
            found = []
            for number in range(4):
                found.append(await ctx.step("a", ran.step, number))
                if number == 2:
                    fail_once("after a#3")
            return found

        job = await run_to_end(app, session, "work")
        assert (job.result, ran) == ([0, 1, 2, 3], [0, 1, 2, 3])
        assert await folded(session, job.id) == ["a", "a#2", "a#3", "a#4"]

    @pytest.mark.parametrize("how", ["gather", "group", "helper"])
    async def test_steps_side_by_side_are_numbered_in_the_order_of_the_calls(
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce, how: str
    ) -> None:
        @app.job
        async def work(ctx: Context) -> list[int]:
            async def slow_first(number: int) -> int:
                await asyncio.sleep(0.02 * (3 - number))
                return int(await ran.step(number))

            async def helper(number: int) -> int:
                return await ctx.step("a", slow_first, number)

            if how == "gather":
                found = await asyncio.gather(*(ctx.step("a", slow_first, number) for number in range(3)))
            elif how == "helper":
                found = await asyncio.gather(*(helper(number) for number in range(3)))
            else:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(helper(number)) for number in range(3)]
                found = [task.result() for task in tasks]
            fail_once("at the end")
            return list(found)

        job = await run_to_end(app, session, "work")
        assert (job.result, sorted(ran), len(ran)) == ([0, 1, 2], [0, 1, 2], 3)
        assert await folded(session, job.id) == ["a", "a#2", "a#3"]

    async def test_keyed_steps_may_change_their_order(
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce
    ) -> None:
        @app.job
        async def work(ctx: Context) -> dict[str, str]:
            names = ["x", "y", "z"] if not ran else ["z", "new", "y", "x"]
            found = {name: await ctx.step("a", ran.step, name).key(name) for name in names}
            fail_once("at the end")
            return found

        job = await run_to_end(app, session, "work")
        assert ran == ["x", "y", "z", "new"]
        assert job.result == {name: name for name in ("z", "new", "y", "x")}
        assert sorted(await folded(session, job.id)) == ["a[new]", "a[x]", "a[y]", "a[z]"]

    async def test_steps_may_be_added_removed_and_reordered(
        self, app: App, session: Session, ran: Trace, fail_once: FailingOnce
    ) -> None:
        @app.job
        async def work(ctx: Context) -> None:
            for name in ["a", "b", "c"] if not ran else ["c", "new", "a"]:
                await ctx.step(name, ran.step, name)
            fail_once("at the end")

        job = await run_to_end(app, session, "work")
        assert (job.state, ran) == (State.COMPLETED, ["a", "b", "c", "new"])


class TestFunctions:
    async def test_synchronous_function_runs_in_a_thread_with_the_context_variables(
        self, app: App, session: Session
    ) -> None:
        variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

        def look() -> list[Any]:
            return [variable.get(), threading.current_thread() is threading.main_thread()]

        @app.job
        async def work(ctx: Context) -> list[Any]:
            variable.set("set")
            return await ctx.step("a", look)

        @app.job
        def work_in_thread(ctx: Context) -> list[Any]:
            variable.set("set in a thread")
            return ctx.step("a", look).result()

        assert (await run_to_end(app, session, "work")).result == ["set", False]
        assert (await run_to_end(app, session, "work_in_thread")).result == ["set in a thread", False]

    async def test_any_callable_can_be_a_step(self, app: App, session: Session, ran: Trace) -> None:
        class Doubler:
            async def __call__(self, value: int) -> int:
                return value * 2

        class Adder:
            def __init__(self, value: int) -> None:
                self.value = value

            def add(self, other: int) -> int:
                return self.value + other

        def later(value: int) -> Awaitable[int]:
            return Doubler()(value)

        @app.job
        async def work(ctx: Context) -> list[Any]:
            return [
                await ctx.step("lambda", lambda: 1),
                await ctx.step("lambda with a coroutine", lambda: ran.step(2)),
                await ctx.step("partial", functools.partial(ran.sync_step, 3)),
                await ctx.step("partial of a coroutine function", functools.partial(ran.step, value=4)),
                await ctx.step("object", Doubler(), 5),
                await ctx.step("method", Adder(1).add, 5),
                await ctx.step("function that returns an awaitable", later, value=6),
                await ctx.step("class", int, "7"),
                await ctx.step("built-in function", len, "12345678"),
            ]

        assert (await run_to_end(app, session, "work")).result == [1, 2, 3, 4, 10, 6, 12, 7, 8]

    async def test_side_effect_keeps_its_value(
        self, app: App, session: Session, fail_once: FailingOnce
    ) -> None:  # Y2 Y5
        values = iter(range(100))

        @app.job
        async def work(ctx: Context) -> int:
            value = await ctx.side_effect("value", lambda: next(values))
            fail_once("after the value")
            return value

        assert (await run_to_end(app, session, "work")).result == 0

    async def test_function_that_raises_stop_iteration_fails_the_attempt(self, app: App, session: Session) -> None:
        @app.job(max_attempts=1)
        async def work(ctx: Context) -> None:
            await ctx.step("a", next, iter([]))

        job = await run_to_end(app, session, "work")
        assert (job.state, "raised StopIteration" in job.errors[-1]["error"]) == (State.FAILED, True)


class Color(Enum):
    RED = "red"


@dataclass(frozen=True)
class Charge:
    id: UUID
    amount: Decimal
    at: datetime
    color: Color = Color.RED
    note: str | None = None


CHARGE = Charge(UUID(int=7), Decimal("1.50"), datetime(2026, 1, 2, tzinfo=UTC))


class TestResults:
    async def test_result_is_typed_by_the_return_annotation_in_each_attempt(
        self, app: App, session: Session, fail_once: FailingOnce
    ) -> None:
        seen: list[Any] = []

        async def charge() -> Charge:
            return CHARGE

        def charges() -> dict[UUID, tuple[Charge, ...]]:
            return {CHARGE.id: (CHARGE,)}

        async def nothing() -> Charge | None:
            return None

        @app.job
        async def work(ctx: Context) -> None:
            seen.append(
                [await ctx.step("one", charge), await ctx.step("many", charges), await ctx.step("none", nothing)]
            )
            fail_once("at the end")

        await run_to_end(app, session, "work")
        assert seen == [[CHARGE, {CHARGE.id: (CHARGE,)}, None]] * 2

    async def test_result_without_annotation_is_json_in_the_first_attempt_too(
        self, app: App, session: Session, fail_once: FailingOnce
    ) -> None:
        seen: list[Any] = []

        @app.job
        async def work(ctx: Context) -> None:
            seen.append(await ctx.step("a", lambda: {"pair": (1, 2)}))
            fail_once("at the end")

        await run_to_end(app, session, "work")
        assert seen == [{"pair": [1, 2]}] * 2

    async def test_result_is_a_copy(self, app: App, session: Session) -> None:
        kept: list[int] = [1]

        @app.job
        async def work(ctx: Context) -> list[int]:
            (await ctx.step("a", lambda: kept)).append(2)
            return kept

        assert (await run_to_end(app, session, "work")).result == [1]


class TestIdempotencyKey:
    async def test_key_is_the_same_in_each_attempt_and_differs_by_name_and_job(
        self, app: App, session: Session, fail_once: FailingOnce
    ) -> None:
        seen: list[tuple[int, str, str, str]] = []

        @app.job
        async def work(ctx: Context) -> None:
            keys = ctx.idempotency_key(), ctx.idempotency_key("a"), ctx.idempotency_key("b")
            seen.append((ctx.job.id, *keys))
            fail_once(f"job {ctx.job.id}")

        async with app, retrying_at_once(app, session):
            for _ in range(2):
                await end_of(app, await app.enqueue("work"))
        assert len(seen) == 4
        assert len(set(seen)) == 2
        keys = {key for _, *keys in seen for key in keys}
        assert len(keys) == 6
        assert all(len(key) == 32 for key in keys)
