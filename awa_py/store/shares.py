"""The workers' shares of queues with max_workers, as the leader reads and writes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from awa_py.store.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A worker's share of a queue: the slots that it has, and what it may get."""

    queue: str
    worker_id: UUID
    max_workers: int | None  # None: the worker may not have a share any more
    capacity: int | None
    slots: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareChange:
    """A share to write. Without slots, it is deleted."""

    queue: str
    worker_id: UUID
    slots: int | None


async def list_shares(session: Session, *, staleness: timedelta) -> list[Share]:
    """Return the shares, by queue and worker id. Workers that were silent for longer than `staleness` have none."""
    return [Share(**dict(row)) for row in await session.fetch("list_shares", staleness)]


async def assign_slots(session: Session, changes: Sequence[ShareChange]) -> int:
    """Write the changes and notify the workers. Return the number of shares written."""
    queues, workers = [change.queue for change in changes], [change.worker_id for change in changes]
    return int(await session.fetchval("assign_slots", queues, workers, [change.slots for change in changes]))


async def mark_limited_jobs(session: Session, *, queue: str | None = None, limit: int) -> int:
    """Mark running jobs that were claimed before their queue had max_workers, so that they count. Return how many."""
    return int(await session.fetchval("mark_limited_jobs", queue, limit))
