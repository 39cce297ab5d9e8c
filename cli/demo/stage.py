"""What happens in the demo: jobs arrive, and now and then a worker is killed."""

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
from .scene import Event, Scene, Tone, name

BURST = 2_000
BURST_EVERY_S = 4.0
RECEIPTS_PER_S = 5.0
IMAGES_PER_S = 4.0
KILL_EVERY_S = 40.0
KILL_AT = 0.25  # of the report's way
FIRST_ORDER = 1000


@dataclass(slots=True)
class Flow:
    """So many jobs a second, however often it is asked."""

    per_s: float
    sent: int = 0

    def due(self, at_s: float) -> range:
        """The numbers of those that are due and were not sent yet."""
        begin, self.sent = self.sent, max(self.sent, 1 + int(at_s * self.per_s))
        return range(begin, self.sent)


@dataclass(slots=True)
class Stage:
    """Enqueues jobs, and remembers those that are worth watching until they have ended."""

    watched: set[int] = field(default_factory=set)
    receipts: Flow = field(default_factory=lambda: Flow(RECEIPTS_PER_S))
    images: Flow = field(default_factory=lambda: Flow(IMAGES_PER_S))
    bursts: Flow = field(default_factory=lambda: Flow(1 / BURST_EVERY_S))
    next_kill_s: float = 0.0
    victim: int | None = None  # the report that is to lose its worker
    killed_at_s: float | None = None  # the first time

    @asynccontextmanager
    async def open(self, database: Database) -> AsyncIterator[Session]:
        """Points the app to the database; yields a session to look through."""
        app.connect_to(database)
        async with app, app.pool.acquire() as connection:
            yield app.session(connection)

    async def send(self, at_s: float) -> list[Event]:
        """Enqueues what is due."""
        new: list[NewJob] = [send_receipt.new(order=FIRST_ORDER + n) for n in self.receipts.due(at_s)]
        new += [resize_image.new(path=f"photo-{n}.jpg", width=640) for n in self.images.due(at_s)]
        if self.victim is None and at_s >= self.next_kill_s:
            new.append(long_report.new(month="2025-11"))
        self._watch(await app.enqueue_many(new))
        return [await self._burst(at_s) for _ in self.bursts.due(at_s)]

    def act(self, scene: Scene) -> list[Event]:
        """Kills the worker of the report, once it has come some way; forgets jobs that have ended."""
        told = []
        report = scene.jobs.get(self.victim or 0)
        if report is not None and report.state is State.RUNNING and _fraction(report) >= KILL_AT:
            told += self._kill(scene, report)
        for job in scene.jobs.values():
            if job.state.final:
                self.watched.discard(job.id)
                if job.id == self.victim:  # it was faster than the executioner
                    self.victim = None
        return told

    async def _burst(self, at_s: float) -> Event:
        began = time.perf_counter()
        await app.enqueue_many([count_click.new(page=n) for n in range(BURST)])
        took_ms = (time.perf_counter() - began) * 1000
        return Event(at_s, Tone.PLAIN, f"{BURST:,} {count_click.kind} jobs enqueued in one call, in {took_ms:.0f} ms")

    def _watch(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.watched.add(job.id)
            if job.kind == long_report.kind:
                self.victim = job.id

    def _kill(self, scene: Scene, report: Job) -> list[Event]:
        worker = next((each for each in scene.workers if each.id == report.worker_id), None)
        if worker is None or worker.hostname != socket.gethostname() or report.attempt > 1:
            return []
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
        self.victim = None
        self.next_kill_s = scene.at_s + KILL_EVERY_S
        if self.killed_at_s is None:
            self.killed_at_s = scene.at_s
        led = ", and led" if scene.leader is not None and scene.leader.pid == worker.pid else ""
        text = f"killed worker pid {worker.pid} (kill -9) while it ran {name(report)}{led}"
        return [Event(scene.at_s, Tone.BAD, text)]


def _fraction(job: Job) -> float:
    return float((job.progress or {}).get("fraction", 0.0))
