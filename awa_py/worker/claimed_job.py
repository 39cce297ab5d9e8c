"""One claimed job on its way, until its outcome is durable."""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from awa_py.db.types import Record
from awa_py.model.context import Context
from awa_py.model.job import Job
from awa_py.model.registry import Handler
from awa_py.store.claim import claimed_job
from awa_py.worker.outcomes import AttemptOutcome

OVERRAN = "it overran its time"


class StopReason(StrEnum):
    """Why a handler is told to stop."""

    CANCELLED = "cancelled by user"
    LEASE_LOST = "its lease was lost"
    LEASE_EXPIRED = "its lease ran out: the database could not be reached"
    SHUTDOWN = "the worker shuts down"


class ClaimedJob:
    """One claimed job on its way."""

    __slots__ = (
        "args",
        "attempt",
        "context",
        "handler",
        "id",
        "kind",
        "lease",
        "limit_s",
        "outcome",
        "progress",
        "queue",
        "renewed_at",
        "row",
        "stop",
        "task",
        "told",
        "waiting_since",
    )
    size = 1  # as a call of a handler: a Batch has more

    def __init__(self, row: Record, queue: str, handler: Handler | None, claimed_at: float) -> None:
        self.id: int = row["id"]
        self.lease: int = row["lease"]
        self.kind: str = row["kind"]
        self.attempt: int = row["attempt"]
        self.args: str = row["args"]  # as JSON
        self.limit_s: float | None = row["deadline_s"]  # how long the attempt may take, from the claim on
        self.queue = queue
        self.row = row
        self.handler = handler
        # On this process's monotonic clock, and never later than on the database's.
        self.waiting_since = self.renewed_at = claimed_at
        self.context: Context | None = None
        self.outcome: AttemptOutcome | None = None  # once it is settled
        self.progress: str | None = None
        self.stop: StopReason | None = None
        self.task: asyncio.Task[None] | None = None  # while its handler runs, and nothing else runs in that task
        self.told: Callable[[ClaimedJob, StopReason], None] | None = None  # what its batch does about it

    def open_jobs(self) -> "list[ClaimedJob]":
        """The jobs of this call whose outcome is open: itself."""
        return [self]

    def request_stop(self, reason: StopReason) -> None:
        """Tells the handler to stop, once: an asynchronous one is interrupted, a synchronous one has to look."""
        if self.stop is not None and reason is not StopReason.SHUTDOWN:
            return
        self.stop = self.stop or reason
        if self.told is not None:
            self.told(self, reason)
        if self.context is not None:
            self.context.request_stop(reason)
        if self.task is not None:  # one that has not begun looks at `stop` first
            self.task.cancel()

    @property
    def limit(self) -> tuple[float, float] | None:
        """When the attempt must have ended, on this process's clock, and how long it may take; where there is a limit.

        It begins with the claim, not with the handler: that is when the database takes the job for overdue.
        """
        return None if self.limit_s is None else (self.waiting_since + self.limit_s, self.limit_s)

    def is_abandoned(self) -> None:
        """Its thread cannot be interrupted: whoever looks there sees that its work is not wanted any more."""
        if self.context is not None:
            self.context.request_stop(self.stop or OVERRAN)

    def job(self) -> Job:
        """The job as it was claimed; for the kinds whose details the claim asked for."""
        return claimed_job(self.row)

    def fields(self) -> dict[str, Any]:
        """What log lines about it say."""
        return {"job_id": self.id, "job_kind": self.kind, "queue": self.queue, "attempt": self.attempt}

    def __str__(self) -> str:
        return f"job {self.id} ({self.kind})"
