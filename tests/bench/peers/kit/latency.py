"""The time from the acknowledgement of the commit to the job's start: on an idle queue, and at a steady rate.

The worker is another process. Both clocks are CLOCK_MONOTONIC, which all processes of one Linux machine share.
"""

import asyncio
import random
import time
from typing import Any

from tests.bench.peers.kit.contender import Client, Contender
from tests.bench.peers.kit.database import connected, settle
from tests.bench.peers.kit.statistics import latencies
from tests.bench.peers.kit.worker_process import WorkerProcess

WARM_UP_JOBS = 20
START_TIMEOUT_S = 10.0  # after this, percentiles are of the jobs that have started
PAUSE_S = (0.015, 0.025)
# The worker has a backlog, not only a short delay, if it finishes later than both of these.
BACKLOG_S = 0.25
BACKLOG_SHARE = 0.05


async def latency(contender: Contender, *, jobs: int, seed: int = 1) -> dict[str, Any]:
    """Enqueue one job at a time, with jitter, so that the contender's timers cannot be in step."""
    rng = random.Random(seed)
    await contender.install()
    async with WorkerProcess(contender, {"expect": jobs}) as worker, contender.client(connections=1) as client:
        await _warm_up(contender, client)
        acknowledged: dict[int, int] = {}
        for number in range(jobs):
            await client.enqueue(number)
            acknowledged[number] = time.monotonic_ns()
            await asyncio.sleep(rng.uniform(*PAUSE_S))
        started = await worker.starts(timeout_s=START_TIMEOUT_S)
    return {"jobs": jobs, **latencies(acknowledged, started)}


async def steady(
    contender: Contender, *, rate: float, seconds: float, connections: int = 10, seed: int = 1
) -> dict[str, Any]:
    """Enqueue at random times (Poisson, the same in each round), without waiting for earlier jobs."""
    arrivals_s = _arrivals(rate, seconds, seed)
    jobs = len(arrivals_s)
    await contender.install()
    async with WorkerProcess(contender, {"expect": jobs}) as worker, contender.client(connections) as client:
        await _warm_up(contender, client)
        acknowledged: dict[int, int] = {}

        async def produce(number: int) -> None:
            await client.enqueue(number)
            acknowledged[number] = time.monotonic_ns()

        started_at_ns = time.monotonic_ns()
        async with asyncio.TaskGroup() as group:
            for number, arrival_s in enumerate(arrivals_s):
                await asyncio.sleep(arrival_s - (time.monotonic_ns() - started_at_ns) / 1e9)
                group.create_task(produce(number))
        started = await worker.starts(timeout_s=START_TIMEOUT_S)
    took_s = (max(started.values(), default=started_at_ns) - started_at_ns) / 1e9
    kept_up = len(started) == jobs and took_s - arrivals_s[-1] <= max(BACKLOG_S, BACKLOG_SHARE * seconds)
    return {"jobs": jobs, "kept_up": kept_up, **latencies(acknowledged, started)}


def _arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    rng = random.Random(seed)
    times = [rng.expovariate(rate)]
    while (time_s := times[-1] + rng.expovariate(rate)) < seconds:
        times.append(time_s)
    return times


async def _warm_up(contender: Contender, client: Client) -> None:
    """Run a few jobs that are not counted, to open connections and prepare statements."""
    for number in range(WARM_UP_JOBS):
        await client.enqueue(-1 - number)
        await asyncio.sleep(0.02)
    async with connected(contender.url) as connection:
        await settle(connection, vacuum=False)
    await asyncio.sleep(0.5)
