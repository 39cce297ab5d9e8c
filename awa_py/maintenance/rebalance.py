"""Split the slots of queues with max_workers over the live workers, and warn of queues that no worker serves."""

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby
from uuid import UUID

from awa_py.maintenance.reports import RebalanceReport
from awa_py.maintenance.task import TaskResult
from awa_py.store import backlog, shares
from awa_py.store.session import Session
from awa_py.store.shares import Share, ShareChange

logger = logging.getLogger("awa.rebalance")

JOBS_PER_BATCH = 1_000
NO_LIMITS_INTERVAL_S = 10.0  # limiting a queue notifies the leader
NEW_LIMIT_S = 10.0  # for this long after a queue was limited, claims from before the limit may still commit
MARK_INTERVAL_S = 30.0  # afterwards: marking reads all running jobs
UNSERVED_INTERVAL_S = 10.0


def split(total: int, capacities: Sequence[int]) -> list[int]:
    """Split the total evenly, within each capacity. The first parts get the remainder."""
    parts = [0] * len(capacities)
    left = total
    while below_capacity := [n for n, capacity in enumerate(capacities) if parts[n] < capacity][:left]:
        for n in below_capacity:
            parts[n] += 1
        left -= len(below_capacity)
    return parts


@dataclass(slots=True, kw_only=True)
class Rebalance:
    """Assigns shares. Remembers which queues are limited, and which ones it has warned of."""

    share_staleness: timedelta
    unserved: set[str] = field(default_factory=set)
    warned: set[str] = field(default_factory=set)
    next_unserved_check_at: float = 0.0
    limited: set[str] = field(default_factory=set)
    new_limit_until: float = 0.0
    next_mark_at: float = 0.0

    async def run(self, session: Session) -> TaskResult:
        await self._warn_of_unserved(session)
        found = await shares.list_shares(session, staleness=self.share_staleness)
        if not found:
            return TaskResult(RebalanceReport(), interval_s=NO_LIMITS_INTERVAL_S)
        changes = list(_changes(found))
        written = await shares.assign_slots(session, changes) if changes else 0
        marked = await self._mark_jobs(session, {share.queue for share in found if share.max_workers is not None})
        report = RebalanceReport(changed_shares=written, marked_jobs=marked)
        return TaskResult(report, has_more=marked >= JOBS_PER_BATCH)

    async def _mark_jobs(self, session: Session, limited: set[str]) -> int:
        """Make running jobs count towards max_workers if they were claimed before their queue was limited."""
        now = time.monotonic()
        if limited - self.limited:
            self.new_limit_until = now + NEW_LIMIT_S
        self.limited = limited
        if now >= self.new_limit_until and now < self.next_mark_at:
            return 0
        marked = await shares.mark_limited_jobs(session, limit=JOBS_PER_BATCH)
        self.next_mark_at = now + (0 if marked >= JOBS_PER_BATCH else MARK_INTERVAL_S)
        return marked

    async def _warn_of_unserved(self, session: Session) -> None:
        """Warn once of each queue that two consecutive checks found: one check may hit a worker that is starting."""
        if time.monotonic() < self.next_unserved_check_at:
            return
        self.next_unserved_check_at = time.monotonic() + UNSERVED_INTERVAL_S
        found = set(await backlog.list_unserved_queues(session, staleness=self.share_staleness))
        for queue in sorted((found & self.unserved) - self.warned):
            logger.warning(
                'jobs wait in queue "%s", but no live worker serves it: start `awa worker APP -q %s`', queue, queue
            )
        for queue in sorted(self.warned - found):
            logger.info('queue "%s" is served again, or empty', queue)
        self.warned = found & (self.unserved | self.warned)
        self.unserved = found


def _changes(found: Iterable[Share]) -> Iterable[ShareChange]:
    """Yield a change for each share that differs from the split."""
    for queue, group in groupby(found, key=lambda share: share.queue):
        all_shares = list(group)
        entitled = [share for share in all_shares if share.max_workers is not None]
        total = next((share.max_workers for share in entitled), 0) or 0
        parts = split(total, [share.capacity or 0 for share in entitled])
        wanted: dict[UUID, int] = {share.worker_id: part for share, part in zip(entitled, parts, strict=True)}
        for share in all_shares:
            if share.slots != wanted.get(share.worker_id):
                yield ShareChange(queue=queue, worker_id=share.worker_id, slots=wanted.get(share.worker_id))
