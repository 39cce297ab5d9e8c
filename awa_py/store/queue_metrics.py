"""What the leader reads for its metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from awa_py.store.session import Session


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """A queue, but for how many jobs it has."""

    name: str
    paused: bool
    waiting_s: float
    workers: int
    throttled: bool = False
    max_workers: int | None = None


@dataclass(frozen=True, slots=True)
class Arrears:
    """How far the leader is behind, and how many workers are alive."""

    due_lag_s: float
    stale_lag_s: float
    dead: int
    completed: float
    workers: int


async def count_queue_jobs(session: Session, table: str) -> Mapping[tuple[str, str], int]:
    """How many jobs of the table each queue has in each state: all of them are looked at."""
    return {(row[0], row[1]): row[2] for row in await session.fetch("count_queue_jobs", table)}


async def read_queues(session: Session, *, staleness: timedelta) -> list[QueueFigures]:
    """Every queue that has a row or a ready job."""
    return [QueueFigures(*row) for row in await session.fetch("read_queues", staleness)]


async def read_arrears(
    session: Session,
    *,
    staleness: timedelta,
    failed_retention: timedelta,
    completed_retention: timedelta,
    limit: int,
) -> Arrears:
    """Dead jobs are counted up to the limit."""
    row = await session.fetchrow("read_arrears", staleness, failed_retention, completed_retention, limit)
    assert row is not None
    return Arrears(*row)
