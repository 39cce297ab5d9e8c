"""A claimed job, from its claim until its outcome is durable."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from awa_py.connections import Record
from awa_py.model.context import Context
from awa_py.model.job import Job
from awa_py.model.registry import Handler
from awa_py.store.claim import claimed_job
from awa_py.worker.outcomes import AttemptOutcome, StopReason

TIMED_OUT = "the attempt timed out"


class DurableAttempt(Protocol):
    """The durable run of an attempt, as its job uses it."""

    def request_stop(self) -> None: ...
    async def close(self, end: object) -> None: ...
    def outcome(self, outcome: AttemptOutcome) -> AttemptOutcome: ...


class ClaimedJob:
    """A claimed job: what the claim returned, and the state of its attempt."""

    __slots__ = (
        "args",
        "attempt",
        "context",
        "durable",
        "handler",
        "id",
        "kind",
        "lease",
        "limit_s",
        "on_stop",
        "outcome",
        "parent_id",
        "progress",
        "queue",
        "remembers",
        "renewed_at",
        "row",
        "stop",
        "task",
        "waiting_since",
    )
    size = 1  # jobs in this call of a handler: a Batch has more

    def __init__(self, row: Record, queue: str, handler: Handler | None, claimed_at: float) -> None:
        self.id: int = row["id"]
        self.parent_id: int | None = row["parent_id"]
        self.lease: int = row["lease"]
        self.kind: str = row["kind"]
        self.attempt: int = row["attempt"]
        self.args: str = row["args"]  # JSON, if the row has_arguments
        self.limit_s: float | None = row["deadline_s"]  # how long the attempt may take, counted from the claim
        self.queue = queue
        self.row = row
        self.handler = handler
        # By the monotonic clock, and taken before the claim: never later than the database's own time of the claim.
        self.waiting_since = self.renewed_at = claimed_at
        self.context: Context | None = None
        self.durable: DurableAttempt | None = None  # its handler has made a durable call
        self.remembers = False  # it may have checkpoints
        self.outcome: AttemptOutcome | None = None  # set when the attempt has ended
        self.progress: str | None = None
        self.stop: StopReason | None = None
        self.task: asyncio.Task[None] | None = None  # runs its handler, and meanwhile nothing else
        self.on_stop: Callable[[ClaimedJob, StopReason], None] | None = None  # set by its batch

    def open_jobs(self) -> "list[ClaimedJob]":
        """Return the jobs of this call that have no outcome yet: itself."""
        return [self]

    def request_stop(self, reason: StopReason) -> None:
        """Ask the handler to stop, once. An asynchronous one is interrupted, a synchronous one has to check."""
        if self.stop is not None and reason is not StopReason.SHUTDOWN:
            return
        self.stop = self.stop or reason
        if self.on_stop is not None:
            self.on_stop(self, reason)
        if self.context is not None:
            self.context.request_stop(reason)
        if self.durable is not None:
            self.durable.request_stop()
        if self.task is not None:  # a handler that has not started checks `stop` first
            self.task.cancel()

    @property
    def limit(self) -> tuple[float, float] | None:
        """Return the monotonic time at which the attempt times out and its duration in seconds, or None without limit.

        It starts with the claim, not with the handler: the database counts from there too.
        """
        return None if self.limit_s is None else (self.waiting_since + self.limit_s, self.limit_s)

    def mark_abandoned(self) -> None:
        """Show the handler that its result is no longer wanted: its thread cannot be interrupted, but it can check."""
        if self.context is not None:
            self.context.request_stop(self.stop or TIMED_OUT)

    def job(self) -> Job:
        """Return the job as it was claimed. Needs the details, which a claim returns only for some kinds."""
        return claimed_job(self.row)

    def fields(self) -> dict[str, Any]:
        """Return the fields of log lines about this job."""
        return {"job_id": self.id, "job_kind": self.kind, "queue": self.queue, "attempt": self.attempt}

    def __str__(self) -> str:
        return f"job {self.id} ({self.kind})"
