"""The claims of one queue: when to claim, how many jobs, from where, and with which statement.

A plain claim takes the first jobs behind the cursor. A limited claim, for queues with limits and jobs with concurrency
keys, does the same under a lock and leaves jobs whose key is full. Later claims start behind these, so a search finds
them again: it walks from key to key, without the lock, and takes the place of the full scan.
"""

import math
import time
from collections.abc import Sequence

from awa_py.connections import Record
from awa_py.store import claim as store
from awa_py.store.claim import PRIORITIES, Claim, Claimant
from awa_py.store.full_scan import FullScanSchedule
from awa_py.store.session import Session
from awa_py.worker.claiming.prefetch import Prefetch
from awa_py.worker.directives import QueueDirectives
from awa_py.worker.in_flight import InFlightJobs

MAX_BATCH = 500
POSITION_SLACK = 1_000  # a claim starts this far before the last claimed position: concurrent commits come out of order
FULL_SCAN_INTERVAL_S = 1.0
LIMITED_FOR_S = 2.0  # how long claims are limited ones after limits or keys were seen
RETRY_S = 0.02  # the shortest pause after a limited claim that got too few jobs
RATE_RETRY_S = 0.1  # the pause after a claim that used up the rate
EXCEED_SHARE_AFTER_S = 1.0


class QueueClaimer:
    """Claims jobs of one queue for one worker, and owns all state that its claims need."""

    def __init__(self, queue: str, claimant: Claimant, in_flight: InFlightJobs, *, poll_s: float) -> None:
        self.queue = queue
        self.due_at = 0.0  # the next claim is worthwhile from then on; infinity: after a wake-up or a poll
        self.last_claim_at = 0.0
        self._claimant = claimant
        self._in_flight = in_flight
        self._slots = in_flight.slots(queue)
        self._poll_s = poll_s
        self._directives = QueueDirectives()
        self._prefetch = Prefetch(self._slots)
        self._claimed_up_to = [0] * len(PRIORITIES)
        self._full_scan = FullScanSchedule(FULL_SCAN_INTERVAL_S)
        self._limited_until = 0.0
        self._after_key = ""  # where the search continues
        self._search_began = 0.0
        self._slot_was_freed = False  # since the last claim began
        self._retry_when_freed_at = math.inf
        self._exceed_share_at = math.inf

    def wake(self) -> None:
        """Claim as soon as there is a free slot: the queue may have jobs."""
        self.due_at = 0.0

    def apply(self, directives: QueueDirectives) -> None:
        """Follow these directives from now on. Running jobs go on."""
        self._directives = directives
        self.wake()

    def slot_freed(self) -> None:
        """A job ended: its key or its queue may have room again."""
        self._slot_was_freed = True
        self.due_at = min(self.due_at, self._retry_when_freed_at)

    @property
    def wanted_jobs(self) -> int:
        """The number of jobs to claim now, 0 if it is not worth a statement."""
        jobs = min(self._room, MAX_BATCH)
        smallest = 1 if self._share_binds or self._slots.is_idle else self._prefetch.smallest_claim
        if jobs >= smallest:
            return jobs
        return 1 if self._may_exceed_share() else 0

    async def claim(self, session: Session, limit: int) -> list[Record]:
        """Claim up to `limit` jobs, and plan the next claim."""
        began = time.monotonic()
        # A wake-up during the statement may be about a job that the statement does not see.
        self.due_at = self._retry_when_freed_at = math.inf
        self._slot_was_freed = False
        if self._is_limited(began):
            claim = await self._claim_limited(session, limit)
        else:
            claim = await self._claim_plain(session, limit)
            if claim.limited:
                self._limited_until = began + LIMITED_FOR_S
                if not claim.rows:
                    claim = await self._claim_limited(session, limit)
        self.last_claim_at = time.monotonic()
        self._plan_next(len(claim.rows), limit)
        return claim.rows

    async def _claim_plain(self, session: Session, limit: int) -> Claim:
        while True:
            began = time.monotonic()
            full = self._full_scan.is_due(began)
            positions = [0] * len(PRIORITIES) if full else self._scan_start
            claim = await store.claim_jobs(session, self._claimant, queue=self.queue, positions=positions, limit=limit)
            self._advance(claim.rows)
            ended = time.monotonic()
            self._full_scan.record(
                full=full, found_too_little=not claim.rows or claim.limited, began=began, ended=ended
            )
            if claim.rows or claim.limited or full or not self._full_scan.is_due(ended):
                return claim

    async def _claim_limited(self, session: Session, limit: int) -> Claim:
        began = time.monotonic()
        search = self._full_scan.is_due(began)
        if search and not self._after_key:
            self._search_began = began
        found = await self._search(session, limit) if search else []
        claim = await store.claim_limited_jobs(
            session, self._claimant, queue=self.queue, positions=self._scan_start, limit=limit, found=found
        )
        in_line = [row for row in claim.rows if row["id"] not in set(found)] if found else claim.rows
        # If only the search found jobs, full keys fill the line. The next scan starts at the first job that it found.
        self._advance(in_line or claim.rows[:1])
        too_little = bool(self._after_key) or (claim.search and (bool(found) or not search))
        is_complete = search and not self._after_key  # a search of many keys takes several claims
        self._full_scan.record(
            full=is_complete, found_too_little=too_little, began=self._search_began, ended=time.monotonic()
        )
        return claim

    async def _search(self, session: Session, limit: int) -> list[int]:
        found, self._after_key = await store.find_skipped_jobs(
            session,
            self._claimant,
            queue=self.queue,
            positions=self._scan_start,
            limit=limit,
            max_keys=MAX_BATCH,
            after_key=self._after_key,
        )
        return found

    def _is_limited(self, now: float) -> bool:
        return self._directives.limited or now < self._limited_until

    @property
    def _scan_start(self) -> list[int]:
        return [max(0, position - POSITION_SLACK) for position in self._claimed_up_to]

    def _advance(self, rows: Sequence[Record]) -> None:
        # Rows are in order of priority and position: with one priority, the last row is the furthest.
        one_priority = rows and rows[0]["priority"] == rows[-1]["priority"]
        for row in rows[-1:] if one_priority else rows:
            level = row["priority"] - 1
            self._claimed_up_to[level] = max(self._claimed_up_to[level], row["pos"])

    def _plan_next(self, jobs: int, limit: int) -> None:
        """Plan the next claim: at once if there may be more jobs, later if the limits have no room."""
        now = time.monotonic()
        if jobs == limit:
            self.wake()
        elif not self._is_limited(now):
            return
        elif self._directives.rate:
            self._retry_at(now + (RATE_RETRY_S if jobs else self._poll_s))
        else:
            self._retry_when_freed_at = now + RETRY_S
            if self._slot_was_freed:
                self._retry_at(self._retry_when_freed_at)
            if self._full_scan.found_too_little:
                self._retry_at(max(self._retry_when_freed_at, self._full_scan.allowed_at))

    def _retry_at(self, moment: float) -> None:
        self.due_at = min(self.due_at, moment)

    @property
    def _room(self) -> int:
        """The number of jobs that may be claimed: for free slots, ahead by the recent rate, or to fill a batch.

        Jobs that are collected for a batch hold no slot: their batch may take long to fill. If jobs are slow, a slot is
        filled again only after the last outcome is durable.
        """
        slots = self._slots
        free = self._in_flight.free_slots(self.queue)
        if self._share_binds:
            return max(0, min(free, (self._directives.slots or 0) - slots.in_flight))
        ahead = self._prefetch.jobs - slots.waiting_jobs
        for_batch = slots.batch_size - slots.waiting_jobs - slots.collecting
        return max(0, free + max(ahead, for_batch) - max(0, slots.unwritten - self._prefetch.unwritten))

    @property
    def _share_binds(self) -> bool:
        """Whether the worker's share of max_workers is smaller than its slots. If not, the claim's count is enough."""
        return self._directives.slots is not None and self._directives.slots < self._slots.capacity

    def _may_exceed_share(self) -> bool:
        """Whether to claim one job beyond the share.

        The workers that hold the other shares may not know the job's kind, or may have no free slot. The claim itself
        keeps max_workers exactly.
        """
        if not self._share_binds or self._in_flight.free_slots(self.queue) < 1:
            self._exceed_share_at = math.inf
            return False
        now = time.monotonic()
        if self._exceed_share_at == math.inf:
            self._exceed_share_at = now + EXCEED_SHARE_AFTER_S
        if now < self._exceed_share_at:
            return False
        self._exceed_share_at = math.inf
        return True
