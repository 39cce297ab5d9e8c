"""Jobs whose worker died, and jobs that overran their deadline."""

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from awa_py.maintenance.task import TaskResult
from awa_py.observability.metrics import Metrics, Reason
from awa_py.store import maintenance
from awa_py.store.maintenance import RescuedJob
from awa_py.store.session import Session
from awa_py.text import count, ordinal

logger = logging.getLogger("awa.rescue")

BATCH = 500
GONE = timedelta(seconds=10)  # how long a worker whose session has ended may take to come back
GONE_LOOK_S = 2.0


async def rescue_stale(session: Session, *, staleness: timedelta, metrics: Metrics) -> TaskResult:
    """running → retryable or failed, where no heartbeat came for too long."""
    rescued = await maintenance.rescue_stale_jobs(session, staleness=staleness, limit=BATCH)
    _report(rescued, "its heartbeat is stale: its worker is presumed dead", Reason.LOST, metrics)
    return TaskResult(len(rescued), has_more=len(rescued) == BATCH)


async def rescue_gone(session: Session, *, metrics: Metrics) -> TaskResult:
    """running → retryable or failed, where the worker is gone; sooner than its jobs would be stale."""
    lost = await maintenance.rescue_lost_jobs(session, silence=GONE, limit=BATCH)
    _report(lost.jobs, "its worker is gone", Reason.LOST, metrics)
    if lost.workers:
        logger.info("%s gone: taken out of the registry", count(lost.workers, "worker"))
    next_s = GONE.total_seconds() if lost.next_s is None else max(GONE_LOOK_S, lost.next_s)
    return TaskResult(len(lost.jobs) + lost.workers, has_more=len(lost.jobs) == BATCH, interval_s=next_s)


async def rescue_overdue(session: Session, *, metrics: Metrics) -> TaskResult:
    """running → retryable or failed past its deadline; what could not even start by its absolute one → failed."""
    rescued = await maintenance.rescue_overdue_jobs(session, limit=BATCH)
    _report(rescued, "it overran its deadline", Reason.TIMEOUT, metrics)
    expired = await maintenance.fail_expired_jobs(session, limit=BATCH)
    for queue, jobs in expired.items():
        metrics.failed.labels(metrics.queue_label(queue), Reason.EXPIRED).inc(jobs)
    gone = sum(expired.values())
    return TaskResult(len(rescued) + gone, has_more=len(rescued) == BATCH or gone >= BATCH)


def _report(rescued: Sequence[RescuedJob], why: str, reason: Reason, metrics: Metrics) -> None:
    """A line for the first job of each kind, and how many others there are; all of them at the level DEBUG."""
    alike = Counter((job.kind, job.failed) for job in rescued)
    for job in rescued:
        ends = metrics.failed if job.failed else metrics.retried
        ends.labels(metrics.queue_label(job.queue), reason).inc()
        others = alike.pop((job.kind, job.failed), None)
        end = "failed for good" if job.failed else "goes back to its queue"
        more = f" (and {others - 1:,} more like it)" if others is not None and others > 1 else ""
        logger.log(
            logging.DEBUG if others is None else logging.WARNING,
            "job %d (%s) %s at its %s attempt: %s%s",
            job.id,
            job.kind,
            end,
            ordinal(job.attempt),
            why,
            more,
            extra={"job_id": job.id, "job_kind": job.kind, "attempt": job.attempt},
        )
