"""The delay of scheduled jobs: from run_at to the start of the attempt, both on the database's clock."""

import asyncio
import random
import time

from .delivery import Sender, deliver
from .jobs import app, timestamp
from .report import Report, percentiles
from .workload import Bench

SEED = 20
DUE_PER_S = 20  # low enough to keep the machine idle
LEAD_TIME_S = 1.0


async def punctuality(bench: Bench, *, jobs: int) -> Report:
    """Enqueue jobs that become due at random times."""
    rng = random.Random(SEED)
    delays_s = sorted(LEAD_TIME_S + rng.random() * jobs / DUE_PER_S for _ in range(jobs))

    async def produce(sender: Sender) -> None:
        await app.enqueue_many([timestamp.options(delay=delay_s).new(n=n) for n, delay_s in enumerate(delays_s)])
        started = time.monotonic()
        for delay_s in delays_s:  # do not query the database before the last job is due
            await asyncio.sleep(started + delay_s - time.monotonic())
            sender.count += 1

    delivery = await deliver(bench, "punctuality", jobs, produce)
    return Report(
        workload="punctuality",
        jobs=jobs,
        figures=percentiles(delivery.late_ms),
        costs=delivery.costs,
        server=delivery.server,
    )
