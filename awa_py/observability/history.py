"""Build a job's history from its row and from the events that workers recorded in `awa.events`."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

from awa_py.model.job import NO_TIMER, Job
from awa_py.store.events import EventRow

# The order of events with the same time. All changes of one statement have one time, so a rescued attempt can end at
# the moment at which the next one starts.
ORDER_AT_SAME_TIME = {"enqueued": 0, "due": 2, "started": 3, "completed": 4, "failed": 4, "cancelled": 4}
DEFAULT_ORDER = 1
ENDS_WITH_ERROR = ("retried", "failed", "cancelled")
MIN_STEP = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a job: enqueued, due, started, suspended, retried, released, completed, …"""

    at: datetime
    event: str
    attempt: int | None = None
    worker_id: UUID | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Error:
    at: datetime
    attempt: int
    text: str
    rescued: bool


def history(job: Job, recorded: Sequence[EventRow]) -> list[Event]:
    """Return the job's events in order. A due time in the future comes last."""
    errors = [error for entry in job.errors if (error := _error(entry)) is not None]
    events = [*_from_row(job, errors), *_from_events(job, recorded, errors)]
    events += [
        Event(
            at=error.at,
            event="rescued" if error.rescued else "error",
            attempt=error.attempt or None,
            detail=error.text,
        )
        for error in errors
    ]
    if job.created_at < job.run_at != NO_TIMER and all(job.run_at != event.at for event in events):
        events.append(Event(at=job.run_at, event="due"))
    return sorted(events, key=lambda event: (event.at, ORDER_AT_SAME_TIME.get(event.event, DEFAULT_ORDER)))


def _from_row(job: Job, errors: list[_Error]) -> Iterator[Event]:
    """Yield the enqueueing, the last attempt and the end. Remove the final error from `errors`."""
    yield Event(at=job.created_at, event="enqueued")
    if job.attempted_at is not None:
        yield Event(at=job.attempted_at, event="started", attempt=job.attempt, worker_id=job.worker_id)
    if job.finalized_at is not None:
        # One statement writes the end and its error, so their times are equal.
        last = next((error for error in reversed(errors) if error.at == job.finalized_at), None)
        if last is not None:
            errors.remove(last)
        yield Event(
            at=job.finalized_at,
            event=job.state,
            attempt=job.attempt or None,
            worker_id=job.worker_id,
            detail=None if last is None else last.text,
        )


def _from_events(job: Job, recorded: Sequence[EventRow], errors: list[_Error]) -> Iterator[Event]:
    """Yield the recorded events without duplicates, with their errors. Remove those errors from `errors`.

    Skip the attempt that the row describes: the row is more precise.
    """
    row_lease = None if job.attempted_at is None else job.lease
    by_lease: dict[int, list[EventRow]] = defaultdict(list)
    for row in recorded:
        if row.lease != row_lease:
            by_lease[row.lease].append(row)
    # A worker's clock may differ: an attempt starts no earlier than the previous one ended, and ends after its start.
    earliest = job.created_at
    for _, rows in sorted(by_lease.items()):
        for index, event in enumerate(_attempt(rows, errors)):
            earliest = max(earliest if index == 0 else earliest + MIN_STEP, event.at)
            yield replace(event, at=earliest)


def _attempt(rows: Sequence[EventRow], errors: list[_Error]) -> Iterator[Event]:
    """Yield an attempt's start and its end. An error has the database's time, which corrects the worker's times."""
    unique = {row.event: row for row in rows if row.event != "started"}
    began_at = next((row.began_at for row in rows if row.began_at is not None), None)
    ends = []
    for row in sorted(unique.values(), key=attrgetter("at")):
        error = _pop_nearest(errors, row) if row.event in ENDS_WITH_ERROR else None
        if error is not None and row.began_at is not None:
            began_at = row.began_at - (row.at - error.at)
        ends.append(
            Event(
                at=row.at if error is None else error.at,
                event=row.event,
                attempt=row.attempt or None,
                worker_id=row.worker_id,
                detail=row.detail if error is None else error.text,
            )
        )
    if began_at is not None:
        yield Event(at=began_at, event="started", attempt=rows[0].attempt, worker_id=rows[0].worker_id)
    yield from ends


def _pop_nearest(errors: list[_Error], row: EventRow) -> _Error | None:
    """Remove and return the error that ended the attempt.

    Several errors can have one attempt number, since `awa job retry` restarts the count: the nearest in time is right.
    """
    candidates = [error for error in errors if error.attempt == row.attempt]
    nearest = min(candidates, key=lambda error: abs(error.at - row.at), default=None)
    if nearest is not None:
        errors.remove(nearest)
    return nearest


def _error(entry: dict[str, Any]) -> _Error | None:
    """Return an entry of the job's errors, or None if it has no readable time: awa did not write it."""
    try:
        at = datetime.fromisoformat(entry["at"])
    except (KeyError, TypeError, ValueError):
        return None
    attempt = entry.get("attempt")
    return _Error(
        at=at if at.tzinfo else at.replace(tzinfo=UTC),
        attempt=attempt if isinstance(attempt, int) else 0,
        text=str(entry.get("error", "")),
        rescued=entry.get("rescued") is True,
    )
