"""The app of the chaos tests. Its handlers append what they do to the file AWA_TEST_LOG."""

import asyncio
import gc
import os
import signal
import time

import awa_py as awa
from awa_py.background import LoopThread

app = awa.App()


def note(word: str, ctx: awa.Context) -> None:
    line = f"{word} {ctx.job.id} {ctx.attempt} {os.getpid()}\n"
    with open(os.environ["AWA_TEST_LOG"], "a", encoding="utf-8") as log:  # one short line: the append is atomic
        log.write(line)


@app.job
async def quick(ctx: awa.Context) -> None:
    note("done", ctx)


@app.job
async def nap(ctx: awa.Context, seconds: float) -> None:
    note("start", ctx)
    await asyncio.sleep(seconds)
    note("done", ctx)


@app.job
async def hold(ctx: awa.Context) -> None:
    """Wait on the first attempt until it is stopped, return on the second."""
    note("start", ctx)
    try:
        if ctx.attempt == 1:
            await asyncio.sleep(3600)
    finally:
        note("end", ctx)


@app.job
async def sleep_once(ctx: awa.Context) -> None:
    """Sleep forever on the first attempt, return on the second."""
    note("start", ctx)
    if ctx.attempt == 1:
        await asyncio.sleep(3600)
    note("done", ctx)


@app.job(max_attempts=3)
async def poison(ctx: awa.Context) -> None:
    note("start", ctx)
    os._exit(1)


@app.job(max_attempts=2)
async def deadly_step(ctx: awa.Context) -> None:
    """Kill the process in the second step."""
    await ctx.step("first", note, "first", ctx)
    await ctx.step("second", kill_this_process, ctx)


async def kill_this_process(ctx: awa.Context) -> None:
    note("second", ctx)
    os.kill(os.getpid(), signal.SIGKILL)


@app.job
async def three_steps(ctx: awa.Context, seconds: float) -> str:
    """Run three steps. The second one takes this time."""
    await ctx.step("first", note, "first", ctx)
    await ctx.step("second", slow_step, ctx, seconds)
    await ctx.step("third", note, "third", ctx)
    return "done"


async def slow_step(ctx: awa.Context, seconds: float) -> None:
    note("second", ctx)
    await asyncio.sleep(seconds)
    note("second-done", ctx)


@app.job
def stubborn(ctx: awa.Context, seconds: float) -> dict[str, int]:
    """Block the thread. Ignore all requests to stop."""
    note("start", ctx)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.05)
    note("done", ctx)
    return {"attempt": ctx.attempt}


@app.job
async def block(seconds: float) -> None:
    """Block the event loop."""
    time.sleep(seconds)


@app.job
async def block_thread(name: str, seconds: float) -> None:
    """Block the event loop of another thread."""
    loops = (gc_object for gc_object in gc.get_objects() if isinstance(gc_object, LoopThread))
    for thread in loops:
        if thread._thread.name == name:
            thread.call(time.sleep, seconds)


@app.job
async def limited(ctx: awa.Context, name: str) -> None:
    await ctx.rate_limit(name)


@app.job
async def tick() -> None:
    await asyncio.sleep(0.005)
