"""What the leader reads for its metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from awa_py.store.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMetrics:
    """A queue, without its number of jobs."""

    name: str
    paused: bool
    waiting_s: float
    workers: int
    throttled: bool = False
    max_workers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceLag:
    """How far the leader is behind, and the number of live workers."""

    promotion_lag_s: float
    rescue_lag_s: float
    dead: int  # jobs past their retention
    completed: float  # jobs past their retention; an estimate
    workers: int


async def count_queue_jobs(session: Session, table: str) -> Mapping[tuple[str, str], int]:
    """Return the number of a table's jobs by queue and state. Reads the whole table."""
    return {(row["queue"], row["state"]): row["jobs"] for row in await session.fetch("count_queue_jobs", table)}


async def read_queue_metrics(session: Session, *, staleness: timedelta) -> list[QueueMetrics]:
    """Return every queue that has a row or an available job."""
    return [QueueMetrics(**dict(row)) for row in await session.fetch("read_queue_metrics", staleness)]


async def read_maintenance_lag(
    session: Session,
    *,
    staleness: timedelta,
    failed_retention: timedelta,
    completed_retention: timedelta,
    limit: int,
) -> MaintenanceLag:
    """Return the lag. Dead jobs are counted up to the limit."""
    row = await session.fetchrow("read_maintenance_lag", staleness, failed_retention, completed_retention, limit)
    assert row is not None
    return MaintenanceLag(**dict(row))
