"""Ready jobs that have waited for long move up, priority by priority: a stream of urgent jobs starves nobody."""

import time
from dataclasses import dataclass
from datetime import timedelta

from awa_py.maintenance.task import TaskResult
from awa_py.store import maintenance
from awa_py.store.session import Session

EVERY = timedelta(seconds=5)
QUEUES = 500
JOBS = 100  # of a queue and priority, each time: what has waited comes in between the others, not before them all
REST = 20  # a round over all queues rests so many times as long as it took


@dataclass(slots=True, kw_only=True)
class Aging:
    """Walks over the queues that have something ready, some at a time."""

    age: timedelta
    place: str = ""
    spent_s: float = 0.0

    async def run(self, session: Session) -> TaskResult:
        began = time.monotonic()
        moved, place = await maintenance.age_jobs(session, after=self.place, queues=QUEUES, age=self.age, limit=JOBS)
        self.place = place or ""
        self.spent_s += time.monotonic() - began
        if place is not None:
            return TaskResult(moved, has_more=True)
        pause_s = max(EVERY.total_seconds(), REST * self.spent_s)
        self.spent_s = 0.0
        return TaskResult(moved, interval_s=pause_s)
