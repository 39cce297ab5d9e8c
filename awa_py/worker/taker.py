"""Which claim takes a queue's jobs: the quick one, or the careful one that keeps within limits and keys."""

from collections.abc import Sequence
from uuid import UUID

from awa_py.db import Record
from awa_py.store import claim
from awa_py.store.session import Session
from awa_py.worker.orders import Orders, QueueOrders

WARY_S = 2.0  # a queue that was found to have limits is claimed with care for so long, until there are orders about it
WALK_S = 0.1  # where no key that is next in line has room, all keys are gone through; but not more often than that
PLENTY = 100
SWIFT_CLAIMS = 3
FROM_ZERO = [0] * len(claim.PRIORITIES)
NO_ORDERS = QueueOrders()


class Taker:
    """Takes jobs for a worker, and remembers of each queue how far its careful claims have come."""

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
        self.orders = Orders()
        self._wary_until = dict.fromkeys(queues, 0.0)
        self._after_key = dict.fromkeys(queues, "")
        self._walk_at = dict.fromkeys(queues, 0.0)
        self._swift = dict.fromkeys(queues, 0)  # how many careful claims may begin where the last one ended

    def told(self, queue: str) -> QueueOrders:
        """The orders about the queue."""
        return self.orders.queues.get(queue, NO_ORDERS)

    def is_careful(self, queue: str, now: float) -> bool:
        """Whether its claims have to keep within limits."""
        told = self.told(queue)
        return told.limited or told.keyed or now < self._wary_until[queue]

    def has_more(self, queue: str) -> bool:
        """Whether the last claim has not seen all keys."""
        return bool(self._after_key[queue])

    async def take(self, session: Session, queue: str, above: Sequence[int], limit: int, now: float) -> list[Record]:
        """Jobs of the queue, within its limits where it has some."""
        if not self.is_careful(queue, now):
            rows = await claim.claim_jobs(
                session,
                queue=queue,
                above=above,
                limit=limit,
                kinds=self._kinds,
                shown_kinds=self._shown_kinds,
                worker_id=self._worker_id,
                timed=self._timed,
            )
            if rows is not None:
                return rows
            self._wary_until[queue] = now + WARY_S
        return await self._take_carefully(session, queue, above, limit, now)

    async def _take_carefully(
        self, session: Session, queue: str, above: Sequence[int], limit: int, now: float
    ) -> list[Record]:
        after_key = self._after_key[queue] or ("" if now >= self._walk_at[queue] else None)
        if after_key == "":
            self._walk_at[queue] = now + WALK_S
        # Jobs whose keys are slow stay behind: where there is plenty beyond them, they are looked at every fourth time.
        swift = self._swift[queue] > 0
        rows, self._after_key[queue] = await claim.claim_limited_jobs(
            session,
            queue=queue,
            above=above if swift else FROM_ZERO,
            limit=limit,
            kinds=self._kinds,
            shown_kinds=self._shown_kinds,
            worker_id=self._worker_id,
            timed=self._timed,
            after_key=after_key,
        )
        plenty = len(rows) >= PLENTY
        self._swift[queue] = (self._swift[queue] - 1 if swift else SWIFT_CLAIMS) if plenty else 0
        return rows
