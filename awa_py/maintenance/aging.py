"""Raise the priority of jobs that have waited too long, so that a stream of urgent jobs starves no other."""

import time
from dataclasses import dataclass
from datetime import timedelta

from awa_py.maintenance.reports import AgingReport
from awa_py.maintenance.task import TaskResult
from awa_py.store import maintenance
from awa_py.store.session import Session

QUEUES_PER_BATCH = 500
MAX_JOBS = 100  # per queue and priority in each pass: old jobs mix with urgent ones instead of preceding all of them
PAUSE_FACTOR = 20  # after a pass over all queues, pause this many times its duration


@dataclass(slots=True, kw_only=True)
class Aging:
    """Passes over the queues with available jobs, some queues per batch."""

    age: timedelta
    check_interval: timedelta
    last_queue: str = ""
    pass_duration_s: float = 0.0

    async def run(self, session: Session) -> TaskResult:
        began_at = time.monotonic()
        moved, last_queue = await maintenance.age_jobs(
            session, after=self.last_queue, queues=QUEUES_PER_BATCH, age=self.age, limit=MAX_JOBS
        )
        self.last_queue = last_queue or ""
        self.pass_duration_s += time.monotonic() - began_at
        report = AgingReport(raised_jobs=moved)
        if last_queue is not None:
            return TaskResult(report, has_more=True)
        pause_s = max(self.check_interval.total_seconds(), PAUSE_FACTOR * self.pass_duration_s)
        self.pass_duration_s = 0.0
        return TaskResult(report, interval_s=pause_s)
