"""The day partitions of completed jobs and of events."""

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Literal

from awa_py.store.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class DayPartition:
    """A day, and the partition that its completed jobs belong to."""

    day: date
    name: str
    attached: bool
    exists: bool


async def create_day_partitions(session: Session, table: Literal["completed", "events"], *, days_ahead: int) -> int:
    """Create the missing partitions from today on. Return the number of partitions created."""
    return int(await session.fetchval("create_day_partitions", table, days_ahead))


async def drop_completed_partitions(session: Session, *, retention: timedelta) -> int:
    """Drop partitions that are older than the retention of every queue. Return the number of partitions dropped.

    The results that a parent may ask for are kept.
    """
    await session.fetch("keep_results", retention)
    return int(await session.fetchval("drop_completed_partitions", retention))


async def drop_event_partitions(session: Session, *, retention: timedelta) -> int:
    """Drop partitions that are older than the retention. Return the number of partitions dropped."""
    return int(await session.fetchval("drop_event_partitions", retention))


async def list_day_partitions(session: Session, *, days_ahead: int) -> list[DayPartition]:
    """Return the partitions of completed jobs that should exist, from today on."""
    return [DayPartition(**dict(row)) for row in await session.fetch("list_day_partitions", days_ahead)]


async def has_default_partition(session: Session) -> bool:
    """Return whether completed jobs of a day without a partition have a place to go."""
    return bool(await session.fetchval("has_default_partition"))


async def find_stray_completed_job(session: Session) -> date | None:
    """Return a day of which jobs are in the default partition."""
    day: date | None = await session.fetchval("find_stray_completed_job")
    return day
