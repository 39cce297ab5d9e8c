"""Jobs in flight: claimed by this worker, and not yet durably ended."""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from awa_py.context import Context
from awa_py.db import Record
from awa_py.job import Job, State

logger = logging.getLogger("awa.worker")


class Stop(StrEnum):
    """Why a handler is told to stop."""

    CANCELLED = "cancelled by user"
    LOST = "its lease was lost"
    FENCED = "its lease ran out: the database could not be reached"
    SHUTDOWN = "the worker shuts down"


class Flight:
    """One claimed job on its way."""

    __slots__ = (
        "attempt",
        "context",
        "id",
        "kind",
        "lease",
        "progress",
        "queue",
        "renewed_at",
        "row",
        "started",
        "stop",
        "task",
    )

    def __init__(self, row: Record, renewed_at: float) -> None:
        self.row = row
        self.id: int = row["id"]
        self.lease: int = row["lease"]
        self.kind: str = row["kind"]
        self.queue: str = row["queue"]
        self.attempt: int = row["attempt"]
        self.renewed_at = renewed_at  # on this process's monotonic clock, and never later than on the database's
        self.context: Context | None = None
        self.progress: str | None = None
        self.started = False
        self.stop: Stop | None = None
        self.task: asyncio.Task[None] | None = None

    def tell(self, reason: Stop) -> None:
        """Tells the handler to stop, once: an asynchronous one is interrupted, a synchronous one has to look."""
        if self.stop is not None and reason is not Stop.SHUTDOWN:
            return
        self.stop = self.stop or reason
        if self.context is not None:
            self.context.tell_cancelled(reason)
        if self.task is not None and self.started:  # one that has not begun looks at `stop` first
            self.task.cancel()

    def job(self) -> Job:
        """The job as it was claimed."""
        row = self.row
        return Job(
            id=self.id,
            kind=self.kind,
            queue=self.queue,
            state=State.RUNNING,
            priority=row["priority"],
            attempt=self.attempt,
            max_attempts=row["max_attempts"],
            args=json.loads(row["args"]),
            run_at=row["run_at"],
            created_at=row["created_at"],
            attempted_at=row["attempted_at"],
            deadline_at=row["deadline_at"],
            lease=self.lease,
            errors=json.loads(row["errors"] or "[]"),
            tags=row["tags"] or [],
            metadata=json.loads(row["metadata"] or "{}"),
            unique_key=row["unique_key"],
            parent_id=row["parent_id"],
            timeout=row["timeout"],
            rescues=row["rescues"],
        )

    def __str__(self) -> str:
        return f"job {self.id} ({self.kind})"


class Flights:
    """All jobs in flight, and the slots that they hold.

    A slot is free again once the job's outcome is durable, and, for a synchronous handler that overran its time,
    once its thread has really ended.
    """

    def __init__(self, queues: Mapping[str, int], concurrency: int, freed: Callable[[], None]) -> None:
        self._limits = dict(queues)
        self._concurrency = concurrency
        self._freed = freed
        self._flights: dict[int, Flight] = {}
        self._held: Counter[str] = Counter()
        self.abandoned = 0

    def free(self, queue: str) -> int:
        """How many more jobs of the queue may be claimed."""
        return max(0, min(self._limits[queue] - self._held[queue], self._concurrency - self._held.total()))

    def held(self, queue: str) -> int:
        """How many slots the queue's jobs hold."""
        return self._held[queue]

    def add(self, flight: Flight) -> None:
        self._flights[flight.id] = flight
        self._held[flight.queue] += 1

    def remove(self, flight: Flight) -> None:
        """The outcome is durable, or of no interest any more."""
        if self._flights.pop(flight.id, None) is not None:
            self._held[flight.queue] -= 1
            self._freed()

    def hold_until(self, flight: Flight, thread: "asyncio.Future[Any]") -> None:
        """Keeps one more slot until a thread that cannot be stopped ends by itself."""
        self._held[flight.queue] += 1
        self.abandoned += 1

        def ended(thread: "asyncio.Future[Any]") -> None:
            if not thread.cancelled() and thread.exception() is not None:
                logger.info("%s: its thread ended at last, with %r", flight, thread.exception())
            self._held[flight.queue] -= 1
            self.abandoned -= 1
            self._freed()

        thread.add_done_callback(ended)

    def get(self, job_id: int) -> Flight | None:
        return self._flights.get(job_id)

    def __iter__(self) -> Iterator[Flight]:
        return iter(list(self._flights.values()))

    def __len__(self) -> int:
        return len(self._flights)
