"""Isolate jobs with values that awa cannot work with, so that they stop neither a queue nor the leader.

A statement that changes many jobs fails because of one such row, each time. The worker or the leader that meets the
error then passes over the unfinished jobs, and fails the invalid ones with their reason.
"""

import logging
from collections import Counter
from datetime import timedelta

from awa_py.observability.checks import HealthCheck
from awa_py.observability.metrics import Metrics, Reason
from awa_py.store import invalid_jobs
from awa_py.store.invalid_jobs import InvalidJob, JobTable
from awa_py.store.session import Session
from awa_py.text import count

logger = logging.getLogger("awa.invalid")

JOBS_PER_BATCH = 2_000
TABLES: tuple[JobTable, ...] = ("ready", "scheduled", "running")


class InvalidJobs:
    """Passes over the unfinished jobs, one window per batch, and discards the invalid ones."""

    def __init__(self, metrics: Metrics, *, silence: timedelta) -> None:
        """`silence`: discard a running job only if its heartbeat is older than this."""
        self._metrics = metrics
        self._silence = silence
        self._table = 0
        self._after_id = 0
        self._discarded = 0

    async def discard_batch(self, session: Session) -> tuple[list[InvalidJob], bool]:
        """Discard the invalid jobs of the next window. Return them, and whether there is another window."""
        discarded, continue_after = await invalid_jobs.discard_invalid_jobs(
            session, TABLES[self._table], after_id=self._after_id, limit=JOBS_PER_BATCH, silence=self._silence
        )
        if continue_after is None:
            self._table = (self._table + 1) % len(TABLES)
        self._after_id = continue_after or 0
        self._report(discarded)
        return discarded, continue_after is not None or self._table > 0

    async def discard_all(self, session: Session) -> list[InvalidJob]:
        """Discard the invalid jobs of all windows."""
        self._table = self._after_id = 0
        discarded, has_more = await self.discard_batch(session)
        while has_more:
            batch, has_more = await self.discard_batch(session)
            discarded += batch
        return discarded

    def check(self) -> HealthCheck:
        """Return a warning if jobs were discarded since this process started."""
        problem = None
        if self._discarded:
            jobs = count(self._discarded, "job")
            problem = f"{jobs} had values that awa cannot work with, and failed: `awa job list --state failed`"
        return HealthCheck("invalid_jobs", problem, {"discarded": self._discarded}, required=False)

    def _report(self, discarded: list[InvalidJob]) -> None:
        """Count all jobs. Log the first job of each kind and rule, with the number of others."""
        self._discarded += len(discarded)
        similar = Counter((job.kind, job.rules) for job in discarded)
        for job in discarded:
            self._metrics.failed.labels(self._metrics.queue_label(job.queue), Reason.INVALID).inc()
            jobs = similar.pop((job.kind, job.rules), None)
            if jobs is not None:
                logger.error(
                    "job %d (%s) failed: its row has values that awa cannot work with: %s%s",
                    job.id,
                    job.kind,
                    job.rules,
                    f" (and {jobs - 1:,} more like it)" if jobs > 1 else "",
                    extra={"job_id": job.id, "job_kind": job.kind, "queue": job.queue},
                )
