"""What happened to jobs that their rows do not keep."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from awa_py.store.finish import array
from awa_py.store.session import Session


class JobEvent(NamedTuple):
    """Something that a worker saw; its times are of the worker's own monotonic clock."""

    event: str
    job_id: int
    lease: int
    attempt: int
    at: float
    began: float  # when the attempt did
    detail: str | None


@dataclass(frozen=True, slots=True)
class EventRow:
    """A row of `awa.events`."""

    at: datetime
    event: str
    lease: int
    attempt: int
    began_at: datetime | None = None
    worker_id: UUID | None = None
    detail: str | None = None


async def write_events(session: Session, worker_id: UUID, happenings: Sequence[JobEvent], *, now: float) -> None:
    """Notes them. `now`, on the clock that they were seen by, is how their times become the database's."""
    names, job_ids, leases, attempts, moments, beginnings, details = zip(*happenings, strict=True)
    await session.fetch(
        "write_events",
        worker_id,
        array(list(job_ids)),
        array(list(leases)),
        array(list(attempts)),
        array([round((now - moment) * 1_000_000) for moment in moments]),
        array([round((now - moment) * 1_000_000) for moment in beginnings]),
        names,
        details,
    )


async def list_events(session: Session, job_id: int, *, limit: int) -> list[EventRow]:
    """The latest that were noted of a job, in their order."""
    return [EventRow(*row) for row in reversed(await session.fetch("list_events", job_id, limit))]


async def delete_stray_events(session: Session, *, retention: timedelta, limit: int) -> int:
    return int(await session.fetchval("delete_stray_events", retention, limit))
