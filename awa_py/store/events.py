"""The events of jobs: what happened to a job and is not in its row."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from awa_py.store.finish import array_literal
from awa_py.store.session import Session


class JobEvent(NamedTuple):
    """An event that a worker observed. Its times are from the worker's monotonic clock."""

    event: str
    job_id: int
    lease: int
    attempt: int
    at: float
    began: float  # the start of the attempt
    detail: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """A row of `awa.events`."""

    at: datetime
    event: str
    lease: int
    attempt: int
    began_at: datetime | None = None
    worker_id: UUID | None = None
    detail: str | None = None


async def write_events(session: Session, worker_id: UUID, events: Sequence[JobEvent], *, now: float) -> None:
    """Write events. `now` is the current time of the events' clock, used to convert their times to the database's."""
    names, job_ids, leases, attempts, times, starts, details = zip(*events, strict=True)
    await session.fetch(
        "write_events",
        worker_id,
        array_literal(list(job_ids)),
        array_literal(list(leases)),
        array_literal(list(attempts)),
        array_literal([round((now - time) * 1_000_000) for time in times]),
        array_literal([round((now - time) * 1_000_000) for time in starts]),
        names,
        details,
    )


async def list_events(session: Session, job_id: int, *, limit: int) -> list[EventRow]:
    """Return the latest events of a job, in order of time."""
    return [EventRow(**dict(row)) for row in reversed(await session.fetch("list_events", job_id, limit))]


async def delete_stray_events(session: Session, *, retention: timedelta, limit: int) -> int:
    """Delete old events from the default partition. Return how many."""
    return int(await session.fetchval("delete_stray_events", retention, limit))
