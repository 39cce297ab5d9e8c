"""Flows and state machines for tests that kill workers. What runs appends a line to the file AWA_TEST_LOG."""

import asyncio
import os

import awa_py as awa
from tests.chaos.durable_jobs import note

app = awa.App()
STATES = 6
PARTS = 5
SHORT_S = 0.2


async def work(*words: object) -> None:
    note("start", os.getpid(), *words)
    await asyncio.sleep(SHORT_S)
    note("end", os.getpid(), *words)


@app.job(max_attempts=10)
async def count_up(ctx: awa.Context, state: int) -> awa.Next | int:
    """Be each state of a machine in turn."""
    await work("state", ctx.job.id, state)
    return state if state == STATES else count_up.next(state + 1)


@app.job(max_attempts=10)
async def begin(flow: int) -> int:
    await work("begin", flow)
    return flow


@app.job(max_attempts=10)
async def part(flow: int, number: int) -> int:
    await work("part", flow, number)
    return flow * 100 + number


@app.job(max_attempts=10)
async def total(parts: list[int]) -> int:
    await work("total", parts[0] // 100)
    return sum(parts)


def new_flow(number: int) -> awa.Flow:
    """Return a chain of a job, a group that takes its result, and a job that takes theirs."""
    return awa.chain(begin.new(number), awa.group(*(part.partial(number=n) for n in range(PARTS))), total)


def expected(number: int) -> int:
    """Return the result of an undisturbed flow."""
    return PARTS * 100 * number + sum(range(PARTS))
