"""How late scheduled jobs begin: from run_at to the start of the attempt, both by the database's clock."""

import asyncio
import random
import time

from .delivery import Sender, deliver
from .jobs import app, stamp
from .report import Report, percentiles
from .workload import Bench

SEED = 20
PER_S = 20  # due on average: the machine is to be idle
AHEAD_S = 1.0


async def punctuality(bench: Bench, *, jobs: int) -> Report:
    """Jobs that are due at random moments, all enqueued beforehand."""
    chance = random.Random(SEED)
    due_s = sorted(AHEAD_S + chance.random() * jobs / PER_S for _ in range(jobs))

    async def produce(sender: Sender) -> None:
        await app.enqueue_many([stamp.options(delay=moment_s).new(n=n) for n, moment_s in enumerate(due_s)])
        began = time.monotonic()
        for moment_s in due_s:  # nobody asks the database before the last one is due
            await asyncio.sleep(began + moment_s - time.monotonic())
            sender.count += 1

    delivery = await deliver(bench, "punctuality", jobs, produce)
    return Report(
        workload="punctuality",
        jobs=jobs,
        figures=percentiles(delivery.late_ms),
        costs=delivery.costs,
        server=delivery.server,
    )
