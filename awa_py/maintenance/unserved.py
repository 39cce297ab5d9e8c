"""Due jobs whose kind no live worker knows: somebody should hear of them."""

import logging
from dataclasses import dataclass, field
from datetime import timedelta

from awa_py.maintenance.task import TaskResult
from awa_py.observability.metrics import Metrics
from awa_py.store import maintenance
from awa_py.store.maintenance import ReadyPosition
from awa_py.store.session import Session

logger = logging.getLogger("awa.unserved")

WINDOW = 500
GRACE = timedelta(seconds=5)  # a worker that is just starting should not cause an alarm


@dataclass(slots=True, kw_only=True)
class Unserved:
    """Walks over the ready jobs, a window at a time, and says once of each what it lacks."""

    staleness: timedelta
    metrics: Metrics
    grace: timedelta = GRACE
    place: ReadyPosition = field(default_factory=ReadyPosition)

    async def run(self, session: Session) -> TaskResult:
        marked, place = await maintenance.mark_unserved_jobs(
            session, after=self.place, limit=WINDOW, staleness=self.staleness, grace=self.grace
        )
        for found in marked:
            self.metrics.unserved.labels(self.metrics.queue_label(found.queue)).inc(found.jobs)
            logger.warning(
                "%d jobs wait in queue %s: no handler registered for kind: %s", found.jobs, found.queue, found.kind
            )
        # Unserved jobs pile up at the head. Where a window has none, what lies behind it flows.
        self.place = place if place is not None and marked else ReadyPosition()
        return TaskResult(sum(found.jobs for found in marked), has_more=place is not None and bool(marked))
