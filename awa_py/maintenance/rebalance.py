"""Who may run how many jobs of a queue that has max_workers; and queues that nobody serves."""

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from awa_py.maintenance.task import TaskResult
from awa_py.store import shares
from awa_py.store.heartbeat import SHARE_STALENESS
from awa_py.store.session import Session
from awa_py.store.shares import Share, ShareChange

logger = logging.getLogger("awa.rebalance")

BATCH = 1_000
NO_LIMITS_PAUSE_S = 10.0  # whoever limits a queue says so
FRESH_S = 10.0  # a queue was limited so lately that claims of before may still come in
COUNT_S = 30.0  # between two looks for jobs that are not counted, later: all that run are looked at
LOOK_S = 10.0  # for queues that nobody serves: a worker that is just starting should not cause an alarm


def split(total: int, capacities: Sequence[int]) -> list[int]:
    """Equal parts of the total, the remainder to the first; what one has no room for goes to the others."""
    parts = [0] * len(capacities)
    left = total
    while hungry := [n for n, capacity in enumerate(capacities) if parts[n] < capacity][:left]:
        for n in hungry:
            parts[n] += 1
        left -= len(hungry)
    return parts


@dataclass(slots=True)
class Rebalance:
    """The leader's split of limited queues; it remembers of which queues it has said that nobody serves them."""

    unserved: set[str] = field(default_factory=set)
    warned: set[str] = field(default_factory=set)
    next_look: float = 0.0
    limited: set[str] = field(default_factory=set)
    fresh_until: float = 0.0
    next_count: float = 0.0

    async def run(self, session: Session) -> TaskResult:
        await self._look_for_unserved(session)
        found = await shares.list_shares(session, staleness=SHARE_STALENESS)
        if not found:
            return TaskResult(interval_s=NO_LIMITS_PAUSE_S)
        changes = list(_changes(found))
        written = await shares.assign_slots(session, changes) if changes else 0
        marked = await self._count_jobs(session, {share.queue for share in found if share.max_workers is not None})
        return TaskResult(written + marked, has_more=marked >= BATCH)

    async def _count_jobs(self, session: Session, limited: set[str]) -> int:
        """Counts jobs that were claimed before their queue was limited."""
        now = time.monotonic()
        if limited - self.limited:
            self.fresh_until = now + FRESH_S
        self.limited = limited
        if now >= self.fresh_until and now < self.next_count:
            return 0
        marked = await shares.mark_limited_jobs(session, limit=BATCH)
        self.next_count = now + (0 if marked >= BATCH else COUNT_S)
        return marked

    async def _look_for_unserved(self, session: Session) -> None:
        """Says so where a queue was found twice, once until it changes."""
        if time.monotonic() < self.next_look:
            return
        self.next_look = time.monotonic() + LOOK_S
        found = set(await shares.list_unserved_queues(session, staleness=SHARE_STALENESS))
        for queue in sorted((found & self.unserved) - self.warned):
            logger.warning(
                'jobs wait in queue "%s", and no live worker takes any: start `awa worker APP -q %s`', *[queue] * 2
            )
        for queue in sorted(self.warned - found):
            logger.info('queue "%s" is served again, or empty', queue)
        self.warned = found & (self.unserved | self.warned)
        self.unserved = found


def _changes(found: Iterable[Share]) -> Iterable[ShareChange]:
    """The parts that are not as they should be."""
    for queue, of_queue in groupby(found, key=lambda share: share.queue):
        all_shares = list(of_queue)
        entitled = [share for share in all_shares if share.max_workers is not None]
        total = next((share.max_workers for share in entitled), 0) or 0
        parts = split(total, [share.capacity or 0 for share in entitled])
        wanted: dict[object, int] = {share.worker_id: part for share, part in zip(entitled, parts, strict=True)}
        for share in all_shares:
            if share.slots != wanted.get(share.worker_id):
                yield ShareChange(queue, share.worker_id, wanted.get(share.worker_id))
