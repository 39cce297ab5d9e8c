"""scheduled, retryable → available, when due: the leader sleeps until the next due time, and not longer."""

import time
from dataclasses import dataclass, field
from datetime import datetime

from awa_py.maintenance.task import TaskResult
from awa_py.store import maintenance
from awa_py.store.maintenance import Promoted
from awa_py.store.session import Session

BATCH = 1_000
FULL_SCAN_INTERVAL_S = 2.0
FULL_SCAN_SHARE = 20


class Floor:
    """The due time from which the next promotion looks, as a worker's claims have their cursor.

    Promoted rows stay in the index while anybody holds an old snapshot, and a scan from the beginning walks over all
    of them. What becomes visible late, below the floor (a long enqueue transaction), is found by such a scan: when
    the short one finds nothing, and at least every two seconds, but never for more than a twentieth of the time.
    """

    def __init__(self) -> None:
        self._due_time: datetime | None = None
        self._rest_until = 0.0
        self._full_due = 0.0
        self._hungry = False

    def since(self, now: float) -> datetime | None:
        """The due time from which to look; None: from the beginning."""
        if now >= self._full_due or (self._hungry and now >= self._rest_until):
            return None
        return self._due_time

    def saw(self, promoted: Promoted, *, full: bool, began: float, ended: float) -> float | None:
        """Notes what a promotion found. In how many seconds to look again; None: it need not be soon."""
        self._due_time = promoted.settled_until  # after a full scan it may lie lower: there may be more late ones
        self._hungry = not promoted.jobs
        if full:
            rest = FULL_SCAN_SHARE * (ended - began)
            self._rest_until = ended + rest
            self._full_due = ended + max(FULL_SCAN_INTERVAL_S, rest)
        elif self._hungry:
            return max(0.0, self._rest_until - ended)
        return None


@dataclass(slots=True)
class Promotion:
    """The leader's promotion; it remembers up to which due time it has come."""

    floor: Floor = field(default_factory=Floor)

    async def run(self, session: Session) -> TaskResult:
        began = time.monotonic()
        since = self.floor.since(began)
        promoted = await maintenance.promote_jobs_since(session, since, limit=BATCH)
        again_s = self.floor.saw(promoted, full=since is None, began=began, ended=time.monotonic())
        soonest_s = min((s for s in (again_s, promoted.next_s) if s is not None), default=None)
        return TaskResult(promoted.jobs, has_more=promoted.jobs == BATCH, next_due_s=soonest_s)
