"""scheduled, retryable → available, when due: the leader sleeps until the next due time."""

import time
from datetime import datetime

from awa_py.maintenance.reports import PromoteReport
from awa_py.maintenance.task import TaskResult
from awa_py.store import maintenance
from awa_py.store.full_scan import FullScanSchedule
from awa_py.store.session import Session

BATCH = 1_000
FULL_SCAN_INTERVAL_S = 2.0


class Promotion:
    """Promotes due jobs, and remembers up to which due time none is left."""

    def __init__(self) -> None:
        self._promoted_until: datetime | None = None
        self._full_scan = FullScanSchedule(FULL_SCAN_INTERVAL_S)

    async def run(self, session: Session) -> TaskResult:
        began = time.monotonic()
        full = self._full_scan.is_due(began)
        promoted = await maintenance.promote_jobs_since(session, None if full else self._promoted_until, limit=BATCH)
        ended = time.monotonic()
        self._full_scan.record(full=full, found_too_little=not promoted.jobs, began=began, ended=ended)
        self._promoted_until = promoted.settled_until  # a full scan may move it back: there may be more late jobs
        next_s = promoted.next_s
        if not promoted.jobs and not full:
            full_scan_s = max(0.0, self._full_scan.allowed_at - ended)
            next_s = full_scan_s if next_s is None else min(next_s, full_scan_s)
        report = PromoteReport(promoted_jobs=promoted.jobs)
        return TaskResult(report, has_more=promoted.jobs == BATCH, next_due_s=next_s)
