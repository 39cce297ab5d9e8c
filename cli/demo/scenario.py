"""The events of the demo: jobs are enqueued, and every 40 seconds a worker is killed."""

import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from awa_py.db.database import Database
from awa_py.model.job import Job, NewJob, State
from awa_py.store.session import Session

from .jobs import app, count_click, long_report, resize_image, send_receipt
from .snapshot import DemoEvent, Severity, Snapshot, name

BURST_JOBS = 2_000
BURST_INTERVAL_S = 4.0
RECEIPTS_PER_S = 5.0
IMAGES_PER_S = 4.0
KILL_INTERVAL_S = 40.0
KILL_AT_PROGRESS = 0.25
FIRST_ORDER = 1000


@dataclass(slots=True)
class Arrivals:
    """Number jobs that arrive at a constant rate."""

    per_s: float
    sent: int = 0

    def due(self, at_s: float) -> range:
        """Return the numbers that became due since the last call."""
        first, self.sent = self.sent, max(self.sent, 1 + int(at_s * self.per_s))
        return range(first, self.sent)


@dataclass(slots=True)
class Scenario:
    """Enqueue jobs, and keep the ids of those that the demo reports on until they end."""

    watched: set[int] = field(default_factory=set)
    receipts: Arrivals = field(default_factory=lambda: Arrivals(RECEIPTS_PER_S))
    images: Arrivals = field(default_factory=lambda: Arrivals(IMAGES_PER_S))
    bursts: Arrivals = field(default_factory=lambda: Arrivals(1 / BURST_INTERVAL_S))
    next_kill_s: float = 0.0
    report_id: int | None = None  # the report whose worker will be killed
    first_kill_s: float | None = None

    @asynccontextmanager
    async def open(self, database: Database) -> AsyncIterator[Session]:
        """Connect the app to the database, and yield a session for snapshots."""
        app.connect_to(database)
        async with app, app.session() as session:
            yield session

    async def enqueue(self, at_s: float) -> list[DemoEvent]:
        """Enqueue the jobs that are due."""
        new: list[NewJob] = [send_receipt.new(order=FIRST_ORDER + n) for n in self.receipts.due(at_s)]
        new += [resize_image.new(path=f"photo-{n}.jpg", width=640) for n in self.images.due(at_s)]
        if self.report_id is None and at_s >= self.next_kill_s:
            new.append(long_report.new(month="2025-11"))
        self._watch(await app.enqueue_many(new))
        return [await self._enqueue_burst(at_s) for _ in self.bursts.due(at_s)]

    def act(self, snapshot: Snapshot) -> list[DemoEvent]:
        """Kill the worker of the report if the report has made some progress; forget jobs that have ended."""
        events = []
        report = snapshot.jobs.get(self.report_id or 0)
        if report is not None and report.state is State.RUNNING and _progress(report) >= KILL_AT_PROGRESS:
            events += self._kill_worker(snapshot, report)
        for job in snapshot.jobs.values():
            if job.state.final:
                self.watched.discard(job.id)
                if job.id == self.report_id:  # it ended before its worker could be killed
                    self.report_id = None
        return events

    async def _enqueue_burst(self, at_s: float) -> DemoEvent:
        started = time.perf_counter()
        await app.enqueue_many([count_click.new(page=n) for n in range(BURST_JOBS)])
        took_ms = (time.perf_counter() - started) * 1000
        text = f"{BURST_JOBS:,} {count_click.kind} jobs enqueued in one call, in {took_ms:.0f} ms"
        return DemoEvent(at_s, Severity.NEUTRAL, text)

    def _watch(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.watched.add(job.id)
            if job.kind == long_report.kind:
                self.report_id = job.id

    def _kill_worker(self, snapshot: Snapshot, report: Job) -> list[DemoEvent]:
        worker = next((each for each in snapshot.workers if each.id == report.worker_id), None)
        if worker is None or worker.hostname != socket.gethostname() or report.attempt > 1:
            return []
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
        self.report_id = None
        self.next_kill_s = snapshot.at_s + KILL_INTERVAL_S
        if self.first_kill_s is None:
            self.first_kill_s = snapshot.at_s
        was_leader = snapshot.leader is not None and snapshot.leader.pid == worker.pid
        who = f"worker pid {worker.pid}{', the leader,' if was_leader else ''}"
        return [DemoEvent(snapshot.at_s, Severity.BAD, f"killed {who} with kill -9 while it ran {name(report)}")]


def _progress(job: Job) -> float:
    return float((job.progress or {}).get("fraction", 0.0))
