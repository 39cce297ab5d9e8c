"""The drain rate: from the first handler's start until every job is durably finished."""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

from tests.bench.peers.kit.contender import Contender
from tests.bench.peers.kit.database import connected, pinned_snapshot, settle, wait_until_finished, wal_position
from tests.bench.peers.kit.statistics import thirds

BATCH = 10_000
FINISH_TIMEOUT_S = 60.0


async def drain(contender: Contender, *, jobs: int, pinned: bool = False, timeout_s: float = 120.0) -> dict[str, Any]:
    await contender.install()
    async with contender.client(connections=2) as client:
        for first in range(0, jobs, BATCH):
            await client.enqueue_many(range(first, min(first + BATCH, jobs)))

    starts_ns: list[int] = []
    all_started = asyncio.Event()

    def on_start(number: int) -> None:
        starts_ns.append(time.monotonic_ns())
        if len(starts_ns) == jobs:
            all_started.set()

    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(connected(contender.url))
        await settle(connection, vacuum=True)
        if pinned:
            await stack.enter_async_context(pinned_snapshot(contender.url))
        before = await wal_position(connection)
        async with contender.worker(on_start):
            await asyncio.wait_for(all_started.wait(), timeout_s)
            end_ns = await wait_until_finished(connection, contender.UNFINISHED, FINISH_TIMEOUT_S)
        written = await wal_position(connection) - before

    seconds = (end_ns - min(starts_ns)) / 1e9
    return {
        "jobs": jobs,
        "seconds": seconds,
        "jobs_per_s": jobs / seconds,
        "thirds": thirds(starts_ns[:jobs]),
        "wal_bytes_per_job": written / jobs,
        "handler_calls": len(starts_ns),
    }
