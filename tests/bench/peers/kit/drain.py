"""The drain rate: from the first handler's start until every job is durably finished."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from tests.bench.peers.kit.contender import Contender
from tests.bench.peers.kit.database import connected, pinned_snapshot, settle, wait_until_finished, wal_position
from tests.bench.peers.kit.statistics import thirds
from tests.bench.peers.kit.worker_process import WorkerProcess

FINISH_TIMEOUT_S = 60.0


class Workers(Protocol):
    """The running workers."""

    async def wait_for_starts(self, connection: Any, timeout_s: float) -> None:
        """Wait until all jobs have started."""

    async def starts_ns(self) -> list[int]:
        """Return the start times of all handlers."""


async def drain(
    contender: Contender, *, jobs: int, processes: int = 0, pinned: bool = False, timeout_s: float = 120.0
) -> dict[str, Any]:
    """Run jobs in this process, or in other processes, which start at the same time."""
    await contender.install()
    await _fill(contender, jobs)
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(connected(contender.url))
        await settle(connection, vacuum=True)
        if pinned:
            await stack.enter_async_context(pinned_snapshot(contender.url))
        before = await wal_position(connection)
        running = _worker_processes(contender, processes) if processes else _own_worker(contender, jobs)
        async with running as workers:
            await workers.wait_for_starts(connection, timeout_s)
            end_ns = await wait_until_finished(connection, contender.UNFINISHED, FINISH_TIMEOUT_S)
            starts_ns = await workers.starts_ns()
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


async def _fill(contender: Contender, jobs: int) -> None:
    size = contender.shape.batch_size()
    async with contender.client(connections=2) as client:
        for first in range(0, jobs, size):
            await client.enqueue_many(range(first, min(first + size, jobs)))


class OwnWorker:
    """A worker in this process."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._starts_ns: list[int] = []
        self._all_started = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def on_start(self, number: int) -> None:
        self._starts_ns.append(time.monotonic_ns())
        if len(self._starts_ns) == self._jobs:
            self._loop.call_soon_threadsafe(self._all_started.set)  # a sync handler runs in a thread

    async def wait_for_starts(self, connection: Any, timeout_s: float) -> None:
        await asyncio.wait_for(self._all_started.wait(), timeout_s)

    async def starts_ns(self) -> list[int]:
        return self._starts_ns


class OtherProcesses:
    """Workers in other processes, which tell their starts at the end."""

    def __init__(self, contender: Contender, processes: list[WorkerProcess]) -> None:
        self._contender = contender
        self._processes = processes

    async def wait_for_starts(self, connection: Any, timeout_s: float) -> None:
        await wait_until_finished(connection, self._contender.UNFINISHED, timeout_s)

    async def starts_ns(self) -> list[int]:
        told = await asyncio.gather(*(process.starts(timeout_s=0) for process in self._processes))
        return sorted(start for starts in told for start in starts.values())


@asynccontextmanager
async def _own_worker(contender: Contender, jobs: int) -> AsyncIterator[Workers]:
    worker = OwnWorker(jobs)
    async with contender.worker(worker.on_start):
        yield worker


@asynccontextmanager
async def _worker_processes(contender: Contender, processes: int) -> AsyncIterator[Workers]:
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(WorkerProcess(contender, {"held": True})) for _ in range(processes)]
        for process in started:
            await process.release()
        yield OtherProcesses(contender, started)
