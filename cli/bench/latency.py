"""The time from the enqueue's return to the handler's start: on an idle queue, and at a steady rate."""

import asyncio
import random
import time

from awa_py.background import cancel_and_wait

from .delivery import Sender, deliver
from .report import Report, percentiles
from .workload import Bench

SEED = 20
PAUSE_S = (0.015, 0.025)
# The worker has a backlog, not only a short delay, if it finishes later than both of these.
BACKLOG_S = 0.25
BACKLOG_SHARE = 0.05


async def latency(bench: Bench, *, jobs: int) -> Report:
    """Enqueue one job at a time with a pause after it, so that each job must wake the worker."""
    rng = random.Random(SEED)

    async def produce(sender: Sender) -> None:
        for n in range(jobs):
            await sender.send(n)
            await asyncio.sleep(rng.uniform(*PAUSE_S))

    delivery = await deliver(bench, "latency", jobs, produce)
    return Report(
        workload="latency",
        jobs=jobs,
        figures=percentiles(delivery.latencies_ms()),
        costs=delivery.costs,
        server=delivery.server,
    )


async def steady(bench: Bench, *, rate: float, seconds: float) -> Report:
    """Enqueue at random times without waiting for earlier jobs, as independent users do."""
    arrival_times_s = arrivals(rate, seconds)
    started_ns = 0

    async def produce(sender: Sender) -> None:
        nonlocal started_ns
        sending: list[asyncio.Task[None]] = []
        started_ns = time.monotonic_ns()
        try:
            for n, arrival_s in enumerate(arrival_times_s):
                await asyncio.sleep(arrival_s - (time.monotonic_ns() - started_ns) / 1e9)
                sending.append(asyncio.create_task(sender.send(n)))
            await asyncio.gather(*sending)
        finally:
            await cancel_and_wait(*sending)

    delivery = await deliver(bench, "steady", len(arrival_times_s), produce)
    took_s = (max(delivery.started_ns.values()) - started_ns) / 1e9
    return Report(
        workload="steady",
        options={"rate": rate, "seconds": seconds},
        jobs=len(arrival_times_s),
        figures={
            "rate": round(len(arrival_times_s) / max(took_s, arrival_times_s[-1]), 1),
            "kept_up": took_s - arrival_times_s[-1] <= max(BACKLOG_S, BACKLOG_SHARE * seconds),
            **percentiles(delivery.latencies_ms()),
        },
        costs=delivery.costs,
        server=delivery.server,
    )


def arrivals(rate: float, seconds: float) -> list[float]:
    """Return random arrival times, `rate` per second on average and at least one. They are the same in each run."""
    rng = random.Random(SEED)
    times = [rng.expovariate(rate)]
    while (time_s := times[-1] + rng.expovariate(rate)) < seconds:
        times.append(time_s)
    return times
