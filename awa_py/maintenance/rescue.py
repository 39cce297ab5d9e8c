"""Rescue running jobs whose worker died and attempts that overran their deadline.

While the database is away, workers can neither renew leases nor write the outcomes that they hold in memory. So the
leader counts only the silence that it has watched itself.
"""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from awa_py.maintenance.reports import RescueReport
from awa_py.maintenance.task import TaskResult
from awa_py.observability.metrics import Metrics, Reason
from awa_py.store import maintenance
from awa_py.store.maintenance import RescuedJob
from awa_py.store.session import Session
from awa_py.text import count, ordinal

logger = logging.getLogger("awa.rescue")

JOBS_PER_BATCH = 500
MIN_LOOK_INTERVAL = timedelta(seconds=1)
MAX_COMMIT_S = 1.0  # a commit that takes longer waits for something: a synchronous standby, or a frozen server
MAX_GONE_CHECKS = 5  # within the time in which a worker whose session has ended may come back


@dataclass(slots=True)
class Watch:
    """What a leader has seen of the workers, on one session that did not break. It begins with the election."""

    began_at: float = field(default_factory=time.monotonic)
    looked_at: datetime | None = None  # for stale jobs, by the database's clock

    @property
    def duration(self) -> timedelta:
        return timedelta(seconds=time.monotonic() - self.began_at)

    async def sees(self, session: Session) -> bool:
        """Return whether the server commits now. If that takes long, workers could not write either: watch anew."""
        began_at = time.monotonic()
        await maintenance.confirm_leader(session)
        if time.monotonic() - began_at <= MAX_COMMIT_S:
            return True
        self.began_at = time.monotonic()
        self.looked_at = None
        return False

    def record_look(self, at: datetime, interval: timedelta) -> None:
        """Remember a look, unless the one before is recent. If many came at once, none would be long enough ago."""
        if self.looked_at is None or at - self.looked_at >= interval / 2:
            self.looked_at = at


async def rescue_stale(
    session: Session, *, staleness: timedelta, interval: timedelta, metrics: Metrics, watch: Watch | None = None
) -> TaskResult:
    """Move running jobs with a stale heartbeat to retryable or failed. Without a watch, wait for nothing.

    It runs every `interval`, or more often if a queue has a short staleness.
    """
    if watch is not None and not await watch.sees(session):
        return TaskResult()
    stale = await maintenance.rescue_stale_jobs(
        session,
        staleness=staleness,
        limit=JOBS_PER_BATCH,
        watched=watch.duration if watch else None,
        looked_at=watch.looked_at if watch else None,
    )
    if watch is not None:
        watch.record_look(stale.looked_at, stale.look_interval)
    _report(stale.jobs, "its heartbeat is stale: its worker is presumed dead", Reason.LOST, metrics)
    return TaskResult(
        RescueReport(rescued_jobs=tuple(stale.jobs)),
        has_more=len(stale.jobs) == JOBS_PER_BATCH,
        interval_s=min(interval, max(stale.look_interval, MIN_LOOK_INTERVAL)).total_seconds(),
    )


async def rescue_gone(session: Session, *, gone_after: timedelta, metrics: Metrics) -> TaskResult:
    """Move the running jobs of workers whose session has ended to retryable or failed, before they are stale."""
    lost = await maintenance.rescue_lost_jobs(session, silence=gone_after, limit=JOBS_PER_BATCH)
    _report(lost.jobs, "its worker is gone", Reason.LOST, metrics)
    if lost.removed_workers:
        logger.info("%s gone: removed from the list of workers", count(lost.removed_workers, "worker"))
    gone_after_s = gone_after.total_seconds()
    interval_s = gone_after_s if lost.next_s is None else max(gone_after_s / MAX_GONE_CHECKS, lost.next_s)
    has_more = len(lost.jobs) == JOBS_PER_BATCH
    report = RescueReport(rescued_jobs=tuple(lost.jobs), removed_workers=lost.removed_workers)
    return TaskResult(report, has_more=has_more, interval_s=interval_s)


async def rescue_overdue(
    session: Session, *, staleness: timedelta, metrics: Metrics, watch: Watch | None = None
) -> TaskResult:
    """Move running jobs past their deadline to retryable or failed, and jobs that expired before a start to failed.

    A running job may have ended in time, with an outcome that its worker could not write. So the leader must have
    watched for the staleness. The worker itself ends an attempt at its deadline.
    """
    rescued: list[RescuedJob] = []
    if watch is None or (await watch.sees(session) and watch.duration >= staleness):
        rescued = await maintenance.rescue_overdue_jobs(session, limit=JOBS_PER_BATCH)
    _report(rescued, "it overran its deadline", Reason.TIMEOUT, metrics)
    expired = await maintenance.fail_expired_jobs(session, limit=JOBS_PER_BATCH)
    for queue, jobs in expired.items():
        metrics.failed.labels(metrics.queue_label(queue), Reason.EXPIRED).inc(jobs)
    expired_jobs = sum(expired.values())
    has_more = len(rescued) == JOBS_PER_BATCH or expired_jobs >= JOBS_PER_BATCH
    return TaskResult(RescueReport(rescued_jobs=tuple(rescued), expired_jobs=expired_jobs), has_more=has_more)


def _report(rescued: Sequence[RescuedJob], cause: str, reason: Reason, metrics: Metrics) -> None:
    """Count all jobs. Warn of the first job of each kind, with the number of others; log the others as DEBUG."""
    similar = Counter((job.kind, job.failed) for job in rescued)
    for job in rescued:
        counter = metrics.failed if job.failed else metrics.retried
        counter.labels(metrics.queue_label(job.queue), reason).inc()
        jobs = similar.pop((job.kind, job.failed), None)
        logger.log(
            logging.DEBUG if jobs is None else logging.WARNING,
            "job %d (%s) %s at its %s attempt: %s%s",
            job.id,
            job.kind,
            "failed for good" if job.failed else "goes back to its queue",
            ordinal(job.attempt),
            cause,
            f" (and {jobs - 1:,} more like it)" if jobs is not None and jobs > 1 else "",
            extra={"job_id": job.id, "job_kind": job.kind, "attempt": job.attempt},
        )
