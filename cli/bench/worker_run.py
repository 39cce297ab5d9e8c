"""Measure a worker in this process on a full queue, from the first handler's start until all outcomes are durable."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from awa_py.app import App
from awa_py.background import cancel_and_wait
from awa_py.db.database import Database
from awa_py.errors import AwaError
from awa_py.model.job import NewJob

from .cost_recorder import CostRecorder, recording_costs
from .costs import Costs, ServerSettings
from .handler_counter import HandlerCounter
from .temporary_schema import QUEUE, pinned_snapshot, vacuum
from .workload import Bench, batch_size, batches

POLL_INTERVAL_S = 0.001
TIMEOUT_S = 60.0
COUNT_COMPLETED = "SELECT count(*) FROM awa.completed WHERE kind <> 'filler'"
COUNT_LEFT = "SELECT count(*) FROM awa.jobs WHERE kind <> 'filler' AND state <> 'completed'"


class WorkerRun:
    """One measurement of an app whose handlers increment a counter."""

    def __init__(
        self,
        bench: Bench,
        app: App,
        counter: HandlerCounter,
        *,
        jobs: int,
        concurrency: int | None = None,
        queues: Sequence[str] = (QUEUE,),
    ) -> None:
        self._bench = bench
        self._app = app
        self._counter = counter
        self._jobs = jobs
        self._concurrency = concurrency
        self._queues = queues

    async def measure(
        self, label: str, new: Callable[[int], NewJob], *, pinned: bool = False, argument_bytes: int = 0
    ) -> "RunResult":
        """Enqueue and vacuum first, then start the worker."""
        database, counter = self._app.database, self._counter
        await fill_queue(self._bench, self._app, new, jobs=self._jobs, argument_bytes=argument_bytes)
        gc.collect()
        async with recording_costs(database) as recorder:
            async with pinned_if(pinned, database):
                await recorder.start()
                async with self._worker() as running:
                    with self._bench.progress.bar(label, counter.total, lambda: counter.count):
                        await _wait_for_handlers(counter, running)
                    ended = await recorder.wait_until_empty(poll_interval_s=POLL_INTERVAL_S, timeout_s=TIMEOUT_S)
                    await recorder.stop()
            costs = await recorder.costs(self._jobs)
            await check_completed(self._app, recorder, self._jobs)
            return RunResult(counter.seconds(ended), counter.thirds(ended), costs, recorder.server)

    @asynccontextmanager
    async def _worker(self) -> "AsyncIterator[asyncio.Task[None]]":
        """Run the app's worker, which is also the leader."""
        options: dict[str, Any] = {} if self._concurrency is None else {"concurrency": self._concurrency}
        worker = self._app.worker(list(self._queues), **options)
        running = asyncio.create_task(worker.run(), name="awa worker")
        try:
            yield running
        finally:
            worker.stop()
            await running


@dataclass(frozen=True, slots=True)
class RunResult:
    """The times and the costs of a run."""

    seconds: float
    thirds: list[float | None]
    costs: Costs
    server: ServerSettings

    def per_second(self, count: int) -> float:
        return round(count / self.seconds, 1)


async def fill_queue(bench: Bench, app: App, new: Callable[[int], NewJob], *, jobs: int, argument_bytes: int) -> None:
    """Enqueue the jobs of a run, and vacuum."""
    sent = 0
    with bench.progress.bar("enqueue", jobs, lambda: sent):
        async with app:
            for numbers in batches(jobs, batch_size(argument_bytes)):
                await app.enqueue_many([new(n) for n in numbers])
                sent += len(numbers)
    with bench.progress.bar("vacuum"):
        await vacuum(app.database)


async def check_completed(app: App, recorder: CostRecorder, jobs: int) -> None:
    """Raise AwaError unless all jobs were completed: the result would mean nothing."""
    schema = app.database.schema
    left = await recorder.connection.fetchval(schema.qualify(COUNT_LEFT))
    completed = await recorder.connection.fetchval(schema.qualify(COUNT_COMPLETED))
    if left or (app.settings.completed_retention and completed != jobs):
        raise AwaError(f"{completed} of {jobs} jobs completed and {left} did not: this run has no result")


def pinned_if(pinned: bool, database: Database) -> AbstractAsyncContextManager[None]:
    return pinned_snapshot(database) if pinned else nullcontext()


async def _wait_for_handlers(counter: HandlerCounter, running: "asyncio.Task[None]") -> None:
    """Wait until all handlers have started. Raise if the worker ends first."""
    waiting = asyncio.create_task(counter.total_reached.wait())
    try:
        await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            running.result()
            raise AwaError("the worker ended before all of its jobs had started")
    finally:
        await cancel_and_wait(waiting)
