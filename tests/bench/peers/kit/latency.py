"""How soon a job starts after its commit was acknowledged: on an idle queue, and at a steady rate.

The worker is another process. Both clocks are CLOCK_MONOTONIC, which all processes of one Linux machine share.
"""

import asyncio
import random
import time
from typing import Any

from tests.bench.peers.kit.contender import Client, Contender
from tests.bench.peers.kit.database import connected, settle
from tests.bench.peers.kit.roles import WorkerProcess
from tests.bench.peers.kit.statistics import latencies

WARM_UP = 20
PATIENCE_S = 10.0  # who has not started every job by then is far behind; its percentiles are of those that it has
PAUSE_S = (0.015, 0.025)
# A backlog, and no mere hiccup: at the end, the worker is behind by more than both of these.
BEHIND_S = 0.25
BEHIND_SHARE = 0.05


async def latency(contender: Contender, *, jobs: int, seed: int = 1) -> dict[str, Any]:
    """One job at a time, with jitter so that no timer of the contender's can fall in step."""
    chance = random.Random(seed)
    await contender.install()
    async with WorkerProcess(contender, {"expect": jobs}) as worker, contender.client(connections=1) as client:
        await _warm_up(contender, client)
        acknowledged: dict[int, int] = {}
        for number in range(jobs):
            await client.enqueue(number)
            acknowledged[number] = time.monotonic_ns()
            await asyncio.sleep(chance.uniform(*PAUSE_S))
        started = await worker.starts(timeout_s=PATIENCE_S)
    return {"jobs": jobs, **latencies(acknowledged, started)}


async def steady(
    contender: Contender, *, rate: float, seconds: float, connections: int = 10, seed: int = 1
) -> dict[str, Any]:
    """Arrivals at random moments (Poisson, the same in each round), whether or not the last one is through."""
    moments_s = _arrivals(rate, seconds, seed)
    jobs = len(moments_s)
    await contender.install()
    async with WorkerProcess(contender, {"expect": jobs}) as worker, contender.client(connections) as client:
        await _warm_up(contender, client)
        acknowledged: dict[int, int] = {}

        async def produce(number: int) -> None:
            await client.enqueue(number)
            acknowledged[number] = time.monotonic_ns()

        begun_ns = time.monotonic_ns()
        async with asyncio.TaskGroup() as group:
            for number, moment_s in enumerate(moments_s):
                await asyncio.sleep(moment_s - (time.monotonic_ns() - begun_ns) / 1e9)
                group.create_task(produce(number))
        started = await worker.starts(timeout_s=PATIENCE_S)
    took_s = (max(started.values(), default=begun_ns) - begun_ns) / 1e9
    kept_up = len(started) == jobs and took_s - moments_s[-1] <= max(BEHIND_S, BEHIND_SHARE * seconds)
    return {"jobs": jobs, "kept_up": kept_up, **latencies(acknowledged, started)}


def _arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    chance = random.Random(seed)
    moments = [chance.expovariate(rate)]
    while (moment := moments[-1] + chance.expovariate(rate)) < seconds:
        moments.append(moment)
    return moments


async def _warm_up(contender: Contender, client: Client) -> None:
    """A few jobs that are not counted: connections are open, statements prepared, code paths taken once."""
    for number in range(WARM_UP):
        await client.enqueue(-1 - number)
        await asyncio.sleep(0.02)
    async with connected(contender.url) as connection:
        await settle(connection, vacuum=False)
    await asyncio.sleep(0.5)
