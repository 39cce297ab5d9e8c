"""The workloads, the same for each system, and the command line of a contender.

A contender runs with the interpreter of its own virtual environment, so nothing here may import awa, nor anything but
asyncpg and uvloop.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import uvloop

from tests.bench.durable.contender import Contender, Send
from tests.bench.durable.costs import start_measuring
from tests.bench.peers.kit.database import connected, settle, wait_until_finished

SENDERS = 8
TIMEOUT_S = 120.0
POLL_INTERVAL_S = 0.02


async def steps(contender: Contender, *, jobs: int, steps: int) -> dict[str, Any]:
    """Measure many jobs of steps, from the first handler's start until all have durably ended."""
    await contender.install()
    if contender.HAS_QUEUE:
        await contender.enqueue_steps(jobs, steps)
    async with connected(contender.url) as connection:
        await settle(connection, vacuum=True)
        costs = await start_measuring(connection)
        async with contender.worker("steps", jobs):
            if not contender.HAS_QUEUE:
                await contender.enqueue_steps(jobs, steps)
            ended_ns = await wait_until_finished(connection, contender.UNFINISHED, TIMEOUT_S)
            await costs.stop()
        await costs.count_transactions()
    took_s = (ended_ns - contender.stopwatch.started_ns) / 1e9
    return {"jobs": jobs, "steps_per_s": jobs * steps / took_s, **costs.each(jobs * steps)}


async def alone(contender: Contender, *, steps: int) -> dict[str, Any]:
    """Measure the steps of one job, from its handler's start to its end."""
    await contender.install()
    async with connected(contender.url) as connection, contender.worker("alone", 1):
        await contender.enqueue_steps(1, steps // 10)  # opens connections and prepares statements
        await wait_until_finished(connection, contender.UNFINISHED, TIMEOUT_S)
        contender.stopwatch.started_ns = 0
        await settle(connection, vacuum=False)
        await contender.enqueue_steps(1, steps)
        await wait_until_finished(connection, contender.UNFINISHED, TIMEOUT_S)
    took_ns = contender.stopwatch.ended_ns - contender.stopwatch.started_ns
    return {"ms_per_step": took_ns / 1e6 / steps}


async def children(contender: Contender, *, children: int) -> dict[str, Any]:
    """Measure one parent, from its enqueue in front of an idle worker until it has durably ended."""
    await contender.install()
    async with connected(contender.url) as connection, contender.worker("children", children):
        await contender.enqueue_parent(10)
        await wait_until_finished(connection, contender.UNFINISHED, TIMEOUT_S)
        await settle(connection, vacuum=True)
        costs = await start_measuring(connection)
        began_ns = time.monotonic_ns()
        await contender.enqueue_parent(children)
        ended_ns = await wait_until_finished(connection, contender.UNFINISHED, TIMEOUT_S)
        await costs.stop()
    return {"children_per_s": children / ((ended_ns - began_ns) / 1e9), **costs.each(children)}


async def signals(contender: Contender, *, jobs: int) -> dict[str, Any]:
    """Measure signals to jobs that wait for one each, from the first sent until all jobs have durably ended."""
    await contender.install()
    async with connected(contender.url) as connection, contender.worker("signals", jobs), AsyncExitStack() as stack:
        await contender.enqueue_waiting(jobs)
        await _wait_until_waiting(connection, contender, jobs)
        senders = [await stack.enter_async_context(contender.sender()) for _ in range(SENDERS)]
        await settle(connection, vacuum=True)
        costs = await start_measuring(connection)
        began_ns = time.monotonic_ns()
        await asyncio.gather(*(_send(sender, range(first, jobs, SENDERS)) for first, sender in enumerate(senders)))
        sent_ns = time.monotonic_ns()
        ended_ns = await wait_until_finished(connection, contender.UNFINISHED, TIMEOUT_S)
        await costs.stop()
    took_s, sending_s = (ended_ns - began_ns) / 1e9, (sent_ns - began_ns) / 1e9
    return {"signals_per_s": jobs / took_s, "sent_per_s": jobs / sending_s, **costs.each(jobs)}


async def _send(send: Send, numbers: range) -> None:
    for number in numbers:
        await send(number)


async def _wait_until_waiting(connection: Any, contender: Contender, jobs: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while await connection.fetchval(contender.WAITING) < jobs:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the jobs do not wait for their signals after {TIMEOUT_S:.0f} s")
        await asyncio.sleep(POLL_INTERVAL_S)


WORKLOADS: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {
    "steps": steps,
    "alone": alone,
    "children": children,
    "signals": signals,
}


def main(
    contender: type[Contender], more: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] | None = None
) -> None:
    """Run WORKLOAD with its parameters as JSON, and print the result as one line of JSON."""
    workload, params = sys.argv[1], json.loads(sys.argv[2])
    run = (WORKLOADS | (more or {}))[workload]
    result = uvloop.run(run(contender(os.environ["BENCH_DATABASE_URL"]), **params))
    print(json.dumps(result), flush=True)
    os._exit(0)  # some systems leave threads behind
