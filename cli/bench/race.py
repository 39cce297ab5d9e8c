"""A worker inside this process against a full queue: from the first handler's start until all is durably finished."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from awa_py.app import App
from awa_py.background import cancel_and_wait
from awa_py.db.database import Database
from awa_py.errors import AwaError
from awa_py.model.job import NewJob

from .costs import Costs, Server
from .meter import Meter, metered
from .scratch import QUEUE, pinned_snapshot, tidy
from .stopwatch import Stopwatch
from .workload import Bench, calls

LOOK_EVERY_S = 0.001
PATIENCE_S = 60.0
COUNT_COMPLETED = "SELECT count(*) FROM awa.completed WHERE kind <> 'filler'"
COUNT_LEFT = "SELECT count(*) FROM awa.jobs WHERE kind <> 'filler' AND state <> 'completed'"


class Race:
    """An app whose handlers run a stopwatch, and how its worker is set up."""

    def __init__(
        self, bench: Bench, app: App, stopwatch: Stopwatch, *, jobs: int, concurrency: int | None = None
    ) -> None:
        self._bench = bench
        self._app = app
        self._stopwatch = stopwatch
        self._jobs = jobs
        self._concurrency = concurrency

    async def run(self, label: str, new: Callable[[int], NewJob], *, pinned: bool = False) -> "Finish":
        """Enqueues, tidies up, and only then lets the worker start."""
        database, stopwatch = self._app.database, self._stopwatch
        await self._enqueue(new)
        with self._bench.progress.bar("vacuum"):
            await tidy(database)
        gc.collect()
        async with metered(database) as meter:
            async with _holding(database, pinned=pinned):
                await meter.start()
                async with self._working() as running:
                    with self._bench.progress.bar(label, stopwatch.total, lambda: stopwatch.count):
                        await _either(stopwatch.reached, running)
                    ended = await meter.drained(every_s=LOOK_EVERY_S, patience_s=PATIENCE_S)
                    await meter.stop()
            costs = await meter.costs(self._jobs)
            await self._check(meter)
            return Finish(stopwatch, ended, costs, meter.server)

    async def _enqueue(self, new: Callable[[int], NewJob]) -> None:
        sent = 0
        with self._bench.progress.bar("enqueue", self._jobs, lambda: sent):
            async with self._app as app:
                for numbers in calls(self._jobs):
                    await app.enqueue_many([new(n) for n in numbers])
                    sent += len(numbers)

    @asynccontextmanager
    async def _working(self) -> "AsyncIterator[asyncio.Task[None]]":
        """The worker as an app gives it, with its leader."""
        chosen: dict[str, Any] = {} if self._concurrency is None else {"concurrency": self._concurrency}
        worker = self._app.worker([QUEUE], **chosen)
        running = asyncio.create_task(worker.run(), name="awa worker")
        try:
            yield running
        finally:
            worker.stop()
            await running

    async def _check(self, meter: Meter) -> None:
        """No figure without the proof that the work was done."""
        schema = self._app.database.schema
        left = await meter.connection.fetchval(schema.qualify(COUNT_LEFT))
        kept = await meter.connection.fetchval(schema.qualify(COUNT_COMPLETED))
        if left or (self._app.settings.completed_retention and kept != self._jobs):
            raise AwaError(f"of {self._jobs} jobs {kept} completed and {left} did not: this run has no figure")


class Finish:
    """How it ended."""

    def __init__(self, stopwatch: Stopwatch, ended: float, costs: Costs, server: Server) -> None:
        self.seconds = stopwatch.seconds(ended)
        self.thirds = stopwatch.thirds(ended)
        self.costs = costs
        self.server = server

    def per_second(self, count: int) -> float:
        return round(count / self.seconds, 1)


def _holding(database: Database, *, pinned: bool) -> AbstractAsyncContextManager[None]:
    return pinned_snapshot(database) if pinned else nullcontext()


async def _either(reached: asyncio.Event, running: "asyncio.Task[None]") -> None:
    """Waits for the event, and not for ever where the worker ends."""
    waiting = asyncio.create_task(reached.wait())
    try:
        await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            running.result()
            raise AwaError("the worker ended before its jobs did")
    finally:
        await cancel_and_wait(waiting)
