"""What the leader reads for its metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from awa_py.store.session import Session


@dataclass(frozen=True, slots=True)
class QueueMetrics:
    """A queue, but for how many jobs it has."""

    name: str
    paused: bool
    waiting_s: float
    workers: int
    throttled: bool = False
    max_workers: int | None = None


@dataclass(frozen=True, slots=True)
class MaintenanceLag:
    """How far the leader is behind, and how many workers are alive."""

    promotion_lag_s: float
    rescue_lag_s: float
    dead: int
    completed: float
    workers: int


async def count_queue_jobs(session: Session, table: str) -> Mapping[tuple[str, str], int]:
    """How many jobs of the table each queue has in each state: all of them are looked at."""
    return {(row[0], row[1]): row[2] for row in await session.fetch("count_queue_jobs", table)}


async def read_queue_metrics(session: Session, *, staleness: timedelta) -> list[QueueMetrics]:
    """Every queue that has a row or a ready job."""
    return [QueueMetrics(*row) for row in await session.fetch("read_queue_metrics", staleness)]


async def read_maintenance_lag(
    session: Session,
    *,
    staleness: timedelta,
    failed_retention: timedelta,
    completed_retention: timedelta,
    limit: int,
) -> MaintenanceLag:
    """Dead jobs are counted up to the limit."""
    row = await session.fetchrow("read_maintenance_lag", staleness, failed_retention, completed_retention, limit)
    assert row is not None
    return MaintenanceLag(*row)
