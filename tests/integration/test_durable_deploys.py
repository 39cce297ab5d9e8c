"""A deploy changes the code of jobs that wait: steps are added, removed and reordered."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import awa_py as awa
from awa_py import App, Context, State
from tests.durable import Trace
from tests.support import drain

pytestmark = pytest.mark.integration

Handler = Callable[[Context], Awaitable[Any]]


async def deploy(database_url: str, before: Handler, after: Handler) -> awa.Job[Any]:
    """Run a job with the old code until it waits, and with the new code to its end."""
    old = App(database_url)
    old.job(kind="work")(before)
    async with old:
        job = await old.enqueue("work")
        await drain(old)
        assert (await old.get(job.id)).state is State.WAITING
    new = App(database_url)
    new.job(kind="work")(after)
    async with new:
        await new.signal(job.id, "go")
        await drain(new)
        return await new.get(job.id)


@pytest.fixture
def trace() -> Trace:
    return Trace()


async def test_steps_are_inserted_removed_and_reordered(database_url: str, trace: Trace) -> None:
    async def before(ctx: Context) -> None:
        for name in ("a", "b", "c"):
            await ctx.step(name, trace.step, name)
        await ctx.wait_signal("go")

    async def after(ctx: Context) -> list[str]:
        done = [await ctx.step(name, trace.step, name) for name in ("c", "new", "a")]
        await ctx.wait_signal("go")
        return [*done, await ctx.step("last", trace.step, "last")]

    job = await deploy(database_url, before, after)
    assert job.result == ["c", "new", "a", "last"]
    assert trace == ["a", "b", "c", "new", "last"]


async def test_wait_that_the_new_code_no_longer_has_is_skipped(database_url: str, trace: Trace) -> None:
    async def before(ctx: Context) -> None:
        await ctx.step("a", trace.step, 1)
        await ctx.wait_signal("go")

    async def after(ctx: Context) -> int:
        return int(await ctx.step("a", trace.step, 1))

    job = await deploy(database_url, before, after)
    assert job.result == 1
    assert trace == [1]


async def test_removed_caller_of_a_loop_is_a_mismatch_that_says_what_to_do(database_url: str, trace: Trace) -> None:
    async def before(ctx: Context) -> None:
        for value in (1, 2, 3):
            await ctx.step("each", trace.step, value)
        await ctx.wait_signal("go")

    async def after(ctx: Context) -> None:
        for value in (2, 3):
            await ctx.step("each", trace.step, value)

    job = await deploy(database_url, before, after)
    assert job.state is State.FAILED
    assert job.errors[-1]["error"].startswith('ReplayMismatch: step "each" of job')
    assert ".key(" in job.errors[-1]["error"]
    assert trace == [1, 2, 3]


async def test_keys_let_a_loop_change(database_url: str, trace: Trace) -> None:
    async def before(ctx: Context) -> None:
        for value in (1, 2, 3):
            await ctx.step("each", trace.step, value).key(value)
        await ctx.wait_signal("go")

    async def after(ctx: Context) -> int:
        return sum([await ctx.step("each", trace.step, value).key(value) for value in (4, 3, 2)])

    job = await deploy(database_url, before, after)
    assert job.result == 9
    assert trace == [1, 2, 3, 4]


async def test_step_becomes_a_timer_under_the_same_name(database_url: str, trace: Trace) -> None:
    async def before(ctx: Context) -> None:
        await ctx.step("sleep", trace.step, 1)
        await ctx.wait_signal("go")

    async def after(ctx: Context) -> None:
        await ctx.sleep("1h")

    job = await deploy(database_url, before, after)
    assert job.state is State.FAILED
    assert "was recorded as a step, and is a timer now" in job.errors[-1]["error"]
