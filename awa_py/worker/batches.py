"""Batches: the jobs of one call of a batch handler, and which of them have no outcome yet."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from awa_py.model.context import BatchJob
from awa_py.model.registry import Handler
from awa_py.worker.claimed_job import TIMED_OUT, ClaimedJob
from awa_py.worker.outcomes import StopReason


class Batch:
    """The jobs of one call of a batch handler. The call holds one slot, whatever its size."""

    __slots__ = (
        "_abandoned",
        "_by_id",
        "_on_settled",
        "_open",
        "_wanted",
        "handler",
        "jobs",
        "kind",
        "queue",
        "size",
        "stop",
        "task",
        "waiting_since",
    )

    def __init__(self, handler: Handler, jobs: Sequence[ClaimedJob]) -> None:
        self.handler = handler
        self.kind = handler.kind
        self.jobs = jobs
        self.queue = jobs[0].queue
        self.waiting_since = time.monotonic()
        self.size = len(jobs)
        self._by_id = {job.id: job for job in jobs}
        self._open = dict(self._by_id)  # without an outcome
        self._wanted = set(self._open)  # open, and not asked to stop
        self._on_settled: Callable[[Batch, int, object], None] | None = None
        self.stop: StopReason | None = None
        self.task: asyncio.Task[None] | None = None
        self._abandoned = False
        for job in jobs:
            job.on_stop = self._stop_job
            if job.stop is not None:
                self._stop_job(job, job.stop)

    def request_stop(self, reason: StopReason) -> None:
        """Ask the handler to stop, whatever its jobs were asked. An asynchronous one is interrupted."""
        if self.stop not in (reason, StopReason.SHUTDOWN):  # once for each reason: it may be cleaning up
            self.stop = reason
            if self.task is not None:
                self.task.cancel()

    def _stop_job(self, job: ClaimedJob, reason: StopReason) -> None:
        """Interrupt the call if all of its open jobs were asked to stop."""
        self._wanted.discard(job.id)
        if self._open and not self._wanted:
            self.request_stop(reason)

    @property
    def limit(self) -> tuple[float, float] | None:
        """Return the earliest limit of its jobs."""
        limited = [job for job in self.jobs if job.limit_s is not None]
        return min((limit for job in limited if (limit := job.limit) is not None), default=None)

    def close_job(self, job_id: int) -> ClaimedJob | None:
        """Return the job that the handler has settled, or None if the call had ended before."""
        self._wanted.discard(job_id)
        return self._open.pop(job_id, None)

    def open_jobs(self) -> list[ClaimedJob]:
        """Return the jobs that have no outcome yet, and forget them."""
        jobs, self._open = list(self._open.values()), {}
        return jobs

    @property
    def is_settled(self) -> bool:
        return not self._open

    @property
    def renewed_at(self) -> float:
        """Return when the oldest of its leases was renewed."""
        return min((job.renewed_at for job in list(self._open.values())), default=math.inf)

    def remove_unstartable(self, has_expired: Callable[[ClaimedJob], bool]) -> list[ClaimedJob]:
        """Remove the jobs that were asked to stop, or whose lease ran out, before the handler gets them."""
        removed = [job for job in self.jobs if job.stop is not None or has_expired(job)]
        for job in removed:
            self._wanted.discard(job.id)
            del self._open[job.id]
        return removed

    def batch_jobs(self, on_settled: Callable[["Batch", int, object], None]) -> list[BatchJob]:
        """Return the jobs for the handler. `on_settled` is called when it settles one of them."""
        self._on_settled = on_settled
        return [BatchJob(job, self) for job in self._open.values()]

    def settle_job(self, job_id: int, end: object) -> None:
        """Take what a job was settled with, from the loop or from the handler's thread."""
        assert self._on_settled is not None
        self._on_settled(self, job_id, end)

    def stop_reason(self, job_id: int) -> str | None:
        """Return why the handler should stop working on the job, or None if it should not."""
        return self._by_id[job_id].stop or (TIMED_OUT if self._abandoned else None)

    def mark_abandoned(self) -> None:
        """Show the handler that its results are not wanted: its thread cannot be interrupted, but it can check."""
        self._abandoned = True

    def fields(self) -> dict[str, Any]:
        """Return the fields of log lines about this call."""
        return {"jobs": self.size, "job_kind": self.handler.kind, "queue": self.queue}

    def __str__(self) -> str:
        return f"{self.size} jobs ({self.handler.kind})"
