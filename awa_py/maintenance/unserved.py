"""Warn of due jobs whose kind no live worker has a handler for."""

import logging
from dataclasses import dataclass, field
from datetime import timedelta

from awa_py.maintenance.reports import UnservedReport
from awa_py.maintenance.task import TaskResult
from awa_py.observability.metrics import Metrics
from awa_py.store import maintenance
from awa_py.store.maintenance import ReadyPosition
from awa_py.store.session import Session

logger = logging.getLogger("awa.unserved")

JOBS_PER_BATCH = 500
GRACE = timedelta(seconds=5)  # no warning because a worker is about to start


@dataclass(slots=True, kw_only=True)
class Unserved:
    """Passes over the available jobs, one window per batch, and marks each unserved job once."""

    staleness: timedelta
    metrics: Metrics
    grace: timedelta = GRACE
    position: ReadyPosition = field(default_factory=ReadyPosition)

    async def run(self, session: Session) -> TaskResult:
        marked, position = await maintenance.mark_unserved_jobs(
            session, after=self.position, limit=JOBS_PER_BATCH, staleness=self.staleness, grace=self.grace
        )
        for group in marked:
            self.metrics.unserved.labels(self.metrics.queue_label(group.queue)).inc(group.jobs)
            logger.warning(
                "%d jobs wait in queue %s: no handler registered for kind: %s", group.jobs, group.queue, group.kind
            )
        # Unserved jobs pile up at the head of the queue. If a window has none, the jobs behind it are being claimed.
        self.position = position if position is not None and marked else ReadyPosition()
        report = UnservedReport(unserved_kinds=tuple(marked))
        return TaskResult(report, has_more=position is not None and bool(marked))
