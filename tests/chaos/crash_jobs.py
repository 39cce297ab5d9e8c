"""Durable jobs that pass every crash point. Their steps append a line to the file AWA_TEST_LOG each time they run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import awa_py as awa
from awa_py.connections import Connection
from tests.chaos.crash_point import CrashPoint
from tests.chaos.durable_jobs import note

app = awa.App()
crash = CrashPoint()


async def second() -> str:
    note("second")
    crash.reach("in the step")
    return "done"


@app.job
async def two_steps(ctx: awa.Context) -> str:
    await ctx.step("first", note, "first")
    crash.reach("between the steps")
    crash.arm()
    return await ctx.step("second", second)


async def fail() -> None:
    note("failed")
    raise ValueError("as planned")


@app.job
async def caught_error(ctx: awa.Context) -> str:
    """Catch the error of a step, which is recorded at the next call."""
    try:
        await ctx.step("failing", fail)
    except ValueError:
        crash.arm()
    await ctx.step("next", note, "next")
    return "done"


async def book(connection: Connection) -> str:
    note("booked")
    await connection.execute("INSERT INTO public.booked VALUES (1, 1)")
    crash.reach("in the step")
    return "done"


@app.job
async def transact(ctx: awa.Context) -> str:
    crash.arm()
    result = await ctx.transact("book", book)
    crash.reach("after the commit")
    return result


@app.job
async def complete_in_transaction(ctx: awa.Context) -> None:
    crash.arm()
    async with ctx.transaction() as connection:
        ctx.complete(await book(connection))
    crash.reach("after the commit")


@app.job
async def nap(ctx: awa.Context, seconds: float) -> str:
    crash.arm()
    await ctx.sleep(seconds)
    return "done"


@app.job
async def take_signals(ctx: awa.Context, number: int) -> list[str]:
    """Return what the signals say."""
    crash.arm()
    signals = [await ctx.wait_signal("go", str) for _ in range(number)]
    return [signal.data for signal in signals if signal is not None]


@app.job
async def signal_to_itself(ctx: awa.Context) -> str | None:
    """Send the signal at the last moment before the job is suspended."""
    crash.arm()
    crash.before("suspend_jobs", lambda: app.signal(ctx.job.id, "go", "in time"))
    signal = await ctx.wait_signal("go", str)
    return signal and signal.data


@app.job
async def timer_or_signal(ctx: awa.Context) -> int:
    """Return which one was first. The timer fires while the job is rescued."""
    crash.arm()
    return (await ctx.first(ctx.sleep("1.5s"), ctx.wait_signal("go"))).index


@asynccontextmanager
async def transaction() -> AsyncIterator[Connection]:
    """Open a transaction of the application. Its COMMIT is a point."""
    async with app.pool.acquire() as connection, connection.transaction():
        yield connection
        crash.reach("before the commit")


@app.job
async def send_signal(ctx: awa.Context, job_id: int) -> None:
    async with transaction() as connection:
        await app.signal(job_id, "go", f"attempt {ctx.attempt}", connection=connection)


@app.job
async def double(number: int) -> int:
    note("child")
    return 2 * number


@app.job
async def parent(ctx: awa.Context) -> int:
    crash.arm()
    child = await ctx.spawn(double, 21)
    crash.reach("after the commit")
    return await child


@app.job
async def last_child() -> int:
    """End after the parent was suspended, and its worker has looked if it must be woken."""
    while crash.name is not None and not crash.reached["after wake_parents"]:
        await asyncio.sleep(0.01)
    crash.arm()
    return 42


@app.job
async def parent_of_the_last_child(ctx: awa.Context) -> int:
    return await (await ctx.spawn(last_child))


@app.job
async def late_parent(ctx: awa.Context) -> int:
    """Ask for the result of a child after a signal."""
    child = await ctx.spawn(double, 21)
    await ctx.wait_signal("go")
    return await child


@app.job
async def first_state() -> awa.Next:
    note("first")
    crash.arm()
    return second_state.next()


@app.job
async def second_state() -> str:
    note("second")
    return "done"


@app.job
async def first_node(number: int) -> int:
    note("first")
    crash.arm()
    return number


@app.job
async def second_node(number: int) -> int:
    note("second")
    return number + 1


@app.job
async def start_flow() -> None:
    async with transaction() as connection:
        await app.start(awa.chain(first_node.new(1), second_node), connection=connection)
