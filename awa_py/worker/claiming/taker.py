"""Which claim takes a queue's jobs: the quick one, or the careful one that keeps within limits and keys."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from awa_py.db.types import Record
from awa_py.store import claim
from awa_py.store.session import Session
from awa_py.worker.claiming.cursor import SLACK, Cursor
from awa_py.worker.claiming.stragglers import Stragglers
from awa_py.worker.directives import Directives, QueueDirectives

WARY_S = 2.0  # a queue that was found to have limits or keys is claimed with care for so long
FEW_KEYS = 200  # a search looks at so many at least, and at twice as many as there are jobs asked for
SEARCH_S = 0.02  # there is as much time between two searches as the last one took; where that was longer than this, …
SEARCH_SHARE = 20  # … so many times more
VAIN_SEARCHES = 5  # after a search of all keys in vain it doubles, so often at the most
NO_ORDERS = QueueDirectives()


@dataclass(slots=True)
class Progress:
    """How far the careful claims of a queue have come."""

    search: bool = False  # whether there may be more in places where the last claim did not look
    short: bool = False  # the last claim took little of what is next in line, and there may be more in a moment
    recovers: bool = True  # whether there was more, the last time
    after_key: str = ""
    waited_s: float = 0.0  # how long the last claim waited for its turn, where it gave little
    wary_until: float = 0.0
    search_at: float = 0.0
    vain: int = 0  # how often in a row all keys were searched in vain
    stragglers: Stragglers = field(default_factory=Stragglers)


class Catch(NamedTuple):
    """What a claim gave."""

    rows: list[Record]
    full: bool  # whether it has looked everywhere
    aside: Collection[int] = ()  # jobs that it was offered, and that did not stand next in line


class Taker:
    """Takes jobs for a worker.

    A careful claim begins where the last one ended, as a quick one does. What it leaves behind, since a key was at its
    limit, is offered to the next claims, and found by a search: that may take long where a key has many jobs that ended
    while somebody held an old snapshot, and nobody else waits for it.
    """

    def __init__(
        self,
        queues: Sequence[str],
        *,
        kinds: Sequence[str],
        shown_kinds: Sequence[str],
        worker_id: UUID,
        timed: bool,
    ) -> None:
        self._kinds = kinds
        self._shown_kinds = shown_kinds
        self._worker_id = worker_id
        self._timed = timed
        self.orders = Directives()
        self._progress = {queue: Progress() for queue in queues}

    def told(self, queue: str) -> QueueDirectives:
        """The orders about the queue."""
        return self.orders.queues.get(queue, NO_ORDERS)

    def is_careful(self, queue: str, now: float) -> bool:
        """Whether its claims have to keep within limits."""
        return self.told(queue).limited or now < self._progress[queue].wary_until

    def waited_s(self, queue: str) -> float:
        """How long the last claim waited for those of others, where it gave little."""
        return self._progress[queue].waited_s

    def is_amid_search(self, queue: str) -> bool:
        """Whether the last search has not seen all keys."""
        return bool(self._progress[queue].after_key)

    def looks_elsewhere(self, queue: str, now: float) -> bool:
        """Whether a claim that came now would look at other jobs than the next in line."""
        progress = self._progress[queue]
        due_at = progress.stragglers.due_at
        return (progress.search and now >= progress.search_at) or (due_at is not None and now >= due_at)

    def looks_again_at(self, queue: str) -> float | None:
        """From when on a claim may be worth it, even if no job ends here."""
        progress = self._progress[queue]
        if progress.short:
            return 0.0
        moments = [progress.search_at if progress.after_key or progress.search else None, progress.stragglers.due_at]
        return min((moment for moment in moments if moment is not None), default=None)

    async def take(self, session: Session, queue: str, cursor: Cursor, limit: int, now: float) -> Catch:
        """Jobs of the queue, within its limits where it has some."""
        above, full = cursor.above(now)
        self._progress[queue].waited_s = 0.0
        rows: list[Record] = []
        if not self.is_careful(queue, now):
            rows, limited = await claim.claim_jobs(
                session,
                queue=queue,
                above=above,
                limit=limit,
                kinds=self._kinds,
                shown_kinds=self._shown_kinds,
                worker_id=self._worker_id,
                timed=self._timed,
            )
            if limited:  # what it saw may lie where a careful claim does not look by itself
                self._progress[queue].wary_until = now + WARY_S
                self._progress[queue].search = True
            if rows or not limited:
                return Catch(rows, full)
        return await self._take_carefully(session, queue, cursor.near, limit, now, full=full)

    async def _take_carefully(
        self, session: Session, queue: str, above: Sequence[int], limit: int, now: float, *, full: bool
    ) -> Catch:
        progress = self._progress[queue]
        searches = (full or progress.search) and now >= progress.search_at
        offered = progress.stragglers.offer(now)
        found = await self._search(session, queue, above, limit) if searches else []
        rows, note = await claim.claim_limited_jobs(
            session,
            queue=queue,
            above=above,
            slack=SLACK,
            limit=limit,
            kinds=self._kinds,
            shown_kinds=self._shown_kinds,
            worker_id=self._worker_id,
            timed=self._timed,
            found=[*offered, *found],
        )
        progress.stragglers.claimed(offered, {row["id"] for row in rows}, note.passed_by, now=time.monotonic())
        progress.waited_s = note.waited_s
        # Where a key is blocked that has many jobs, a search that found others has gone past these, and so do claims.
        aside = {*offered, *found} if progress.recovers else {*offered}
        if searches:
            progress.search = (note.search or note.short) and bool(found or progress.after_key)
            progress.short = False
        else:
            progress.search |= note.search
            self._learn(progress, short=note.short)
        return Catch(rows, searches, aside)

    def _learn(self, progress: Progress, *, short: bool) -> None:
        """What a claim without a search gave. If it came short, there may be more in a moment, where keys are busy that
        soon have room again: then no search is worth it. There may not, where one is blocked that has many jobs."""
        if short and progress.short:
            progress.recovers = False
        elif not short:
            progress.recovers = True
        progress.search |= short and not progress.recovers
        progress.short = short and progress.recovers

    async def _search(self, session: Session, queue: str, above: Sequence[int], limit: int) -> list[int]:
        progress = self._progress[queue]
        began = time.monotonic()
        found, progress.after_key = await claim.find_overlooked_jobs(
            session,
            queue=queue,
            above=above,
            kinds=self._kinds,
            limit=limit,
            most_keys=max(FEW_KEYS, 2 * limit),
            after_key=progress.after_key,
        )
        ended = time.monotonic()
        took_s = ended - began
        pause_s = took_s + SEARCH_SHARE * max(0.0, took_s - SEARCH_S)
        if found:
            progress.vain = 0
        elif not progress.after_key:
            progress.vain = min(progress.vain + 1, VAIN_SEARCHES)
            pause_s *= 2**progress.vain
        progress.search_at = ended + pause_s
        return found
