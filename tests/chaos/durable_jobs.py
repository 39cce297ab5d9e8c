"""A durable job with every sort of call. Its steps append a line to the file AWA_TEST_LOG each time they run."""

import asyncio
import os
import time

import awa_py as awa
from awa_py.connections import Connection

app = awa.App()
STEP_S = 0.1


def note(*words: object) -> None:
    with open(os.environ["AWA_TEST_LOG"], "a", encoding="utf-8") as log:  # one short line: the append is atomic
        log.write(" ".join(map(str, words)) + "\n")


async def add(name: str, number: int, value: int) -> int:
    note("step", number, name, value)
    await asyncio.sleep(STEP_S)
    return number + value


def add_in_a_thread(name: str, number: int, value: int) -> int:
    note("step", number, name, value)
    time.sleep(STEP_S)
    return number + value


async def book(connection: Connection, number: int, value: int) -> int:
    await connection.execute("INSERT INTO public.booked VALUES ($1, $2)", number, value)
    await asyncio.sleep(STEP_S)
    return number + value


@app.job
async def child(value: int) -> int:
    await asyncio.sleep(STEP_S)
    return value


@app.job
async def marathon(ctx: awa.Context, number: int) -> int:
    """50 steps, a timer, a signal and 20 children."""
    total = 0
    for value in range(15):
        total += await ctx.step("loop", add, "loop", number, value)
    total += sum(await asyncio.gather(*[ctx.step("part", add, "part", number, value) for value in range(10)]))
    for value in range(10):
        total += await ctx.transact("book", book, number, value)
    await ctx.sleep("1.5s")
    total += sum(await ctx.map(child, range(20)))
    signal = await ctx.wait_signal("go", int)
    assert signal is not None
    total += signal.data
    for value in range(15):
        total += await ctx.step("thread", add_in_a_thread, "thread", number, value)
    return total


def expected(number: int, data: int) -> int:
    """Return the result of an undisturbed run."""
    return sum(50 * [number]) + sum(range(15)) * 2 + sum(range(10)) * 2 + sum(range(20)) + data
