"""How soon a job begins after its enqueue has returned: on an idle queue, and at a steady rate."""

import asyncio
import random
import time

from awa_py.background import cancel_and_wait

from .delivery import Sender, deliver
from .report import Report, percentiles
from .workload import Bench

SEED = 20
PAUSE_S = (0.015, 0.025)
# A backlog, and no mere hiccup: at the end, the worker is behind by more than both of these.
BEHIND_S = 0.25
BEHIND_SHARE = 0.05


async def latency(bench: Bench, *, jobs: int) -> Report:
    """One job at a time, with a pause after it: each of them wakes the worker up."""
    chance = random.Random(SEED)

    async def produce(sender: Sender) -> None:
        for n in range(jobs):
            await sender.send(n)
            await asyncio.sleep(chance.uniform(*PAUSE_S))

    delivery = await deliver(bench, "latency", jobs, produce)
    return Report(
        workload="latency",
        jobs=jobs,
        figures=percentiles(delivery.latencies_ms()),
        costs=delivery.costs,
        server=delivery.server,
    )


async def steady(bench: Bench, *, rate: float, seconds: float) -> Report:
    """Arrivals at random moments, whether the earlier ones are done or not: users do not wait for each other."""
    moments_s = arrivals(rate, seconds)
    began_ns = 0

    async def produce(sender: Sender) -> None:
        nonlocal began_ns
        sending: list[asyncio.Task[None]] = []
        began_ns = time.monotonic_ns()
        try:
            for n, moment_s in enumerate(moments_s):
                await asyncio.sleep(moment_s - (time.monotonic_ns() - began_ns) / 1e9)
                sending.append(asyncio.create_task(sender.send(n)))
            await asyncio.gather(*sending)
        finally:
            await cancel_and_wait(*sending)

    delivery = await deliver(bench, "steady", len(moments_s), produce)
    took_s = (max(delivery.began_ns.values()) - began_ns) / 1e9
    return Report(
        workload="steady",
        options={"rate": rate, "seconds": seconds},
        jobs=len(moments_s),
        figures={
            "rate": round(len(moments_s) / max(took_s, moments_s[-1]), 1),
            "kept_up": took_s - moments_s[-1] <= max(BEHIND_S, BEHIND_SHARE * seconds),
            **percentiles(delivery.latencies_ms()),
        },
        costs=delivery.costs,
        server=delivery.server,
    )


def arrivals(rate: float, seconds: float) -> list[float]:
    """The same random moments each time, `rate` a second on average; at least one."""
    chance = random.Random(SEED)
    moments = [chance.expovariate(rate)]
    while (moment := moments[-1] + chance.expovariate(rate)) < seconds:
        moments.append(moment)
    return moments
