"""The parts that workers have of queues with max_workers, as the leader reads and writes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from awa_py.store.session import Session


@dataclass(frozen=True, slots=True)
class Share:
    """A worker's part of a queue: what it was given, and what it may be given."""

    queue: str
    worker_id: UUID
    max_workers: int | None  # None: it is nobody's any more
    capacity: int | None
    slots: int | None


@dataclass(frozen=True, slots=True)
class ShareChange:
    """A part that is to be written; without slots, it is to go."""

    queue: str
    worker_id: UUID
    slots: int | None


async def list_shares(session: Session, *, staleness: timedelta) -> list[Share]:
    """In the order of queues and workers' ids. Workers that have been silent for longer than `live` have no part."""
    return [Share(*row) for row in await session.fetch("list_shares", staleness)]


async def assign_slots(session: Session, changes: Sequence[ShareChange]) -> int:
    """Writes what changes, and tells the workers. How many parts it wrote."""
    queues, workers = [change.queue for change in changes], [change.worker_id for change in changes]
    return int(await session.fetchval("assign_slots", queues, workers, [change.slots for change in changes]))


async def mark_limited_jobs(session: Session, *, queue: str | None = None, limit: int) -> int:
    """Counts running jobs of queues with max_workers that were claimed before. How many there were."""
    return int(await session.fetchval("mark_limited_jobs", queue, limit))


async def list_unserved_queues(session: Session, *, staleness: timedelta) -> list[str]:
    """Queues with ready jobs that no live worker takes."""
    return [row[0] for row in await session.fetch("list_unserved_queues", staleness)]
