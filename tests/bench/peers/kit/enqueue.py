"""The enqueue rate: one by one, in bulk, and with concurrent producers."""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

from tests.bench.peers.kit.contender import Client, Contender
from tests.bench.peers.kit.database import connected, settle
from tests.bench.peers.kit.worker_process import WorkerProcess

WARM_UP_JOBS = 50
WARM_UP_PER_PRODUCER = 5


async def enqueue(
    contender: Contender,
    *,
    mode: str,
    jobs: int,
    per_call: int = 10_000,
    producers: int = 32,
    connections: int = 10,
    worker: bool = False,
) -> dict[str, Any]:
    """Enqueue jobs. With `worker`, a worker process, idle before, runs them as they arrive."""
    await contender.install()
    async with AsyncExitStack() as stack:
        if worker:
            await stack.enter_async_context(WorkerProcess(contender, {}))
        client = await stack.enter_async_context(contender.client(connections if mode == "producers" else 1))
        for number in range(WARM_UP_JOBS):
            await client.enqueue(-1 - number)  # a number that no other job has: it may be the job's unique key
        if mode == "producers":
            await _produce(
                client, WARM_UP_PER_PRODUCER * producers, producers
            )  # so that every connection has prepared its statement
        connection = await stack.enter_async_context(connected(contender.url))
        await settle(connection, vacuum=False)
        started = time.perf_counter()
        if mode == "one":
            for number in range(jobs):
                await client.enqueue(number)
        elif mode == "bulk":
            for first in range(0, jobs, per_call):
                await client.enqueue_many(range(first, min(first + per_call, jobs)))
        else:
            await _produce(client, jobs, producers)
        seconds = time.perf_counter() - started
    return {"jobs": jobs, "seconds": seconds, "jobs_per_s": jobs / seconds}


async def _produce(client: Client, jobs: int, producers: int) -> None:
    async def produce(share: range) -> None:
        for number in share:
            await client.enqueue(number)

    await asyncio.gather(*(produce(range(first, jobs, producers)) for first in range(producers)))
