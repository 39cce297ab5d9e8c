"""What happened to a job: told by its row, and by what was noted of it meanwhile."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

from awa_py.model.job import Job
from awa_py.store.events import EventRow

# What the database itself says of an attempt whose worker died.
RESCUES = ("heartbeat stale: worker presumed dead", "worker gone: its session ended")
# What one statement does has one time: an attempt that is taken over ends and begins at the same moment.
AT_ONCE = {"enqueued": 0, "due": 2, "started": 3, "completed": 4, "failed": 4, "cancelled": 4}  # the others: 1
ENDS_WITH_ERROR = ("retried", "failed", "cancelled")
MOMENT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a job: enqueued, due, started, retried, snoozed, released, completed, failed, …"""

    at: datetime
    event: str
    attempt: int | None = None
    worker_id: UUID | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class _Error:
    at: datetime
    attempt: int
    text: str


def history(job: Job, noted: Sequence[EventRow]) -> list[Event]:
    """All of it, in its order. What has not come yet, a due time, is the last."""
    errors = list(map(_error, job.errors))
    told = [*_of_the_row(job, errors), *_beside_the_row(job, noted, errors)]
    told += [
        Event(
            at=error.at,
            event="rescued" if error.text in RESCUES else "error",
            attempt=error.attempt or None,
            detail=error.text,
        )
        for error in errors
    ]
    if job.run_at > job.created_at and all(job.run_at != event.at for event in told):
        told.append(Event(at=job.run_at, event="due"))
    return sorted(told, key=lambda event: (event.at, AT_ONCE.get(event.event, 1)))


def _of_the_row(job: Job, errors: list[_Error]) -> Iterator[Event]:
    """The beginning, the last attempt, and the end; its error is taken from the list."""
    yield Event(at=job.created_at, event="enqueued")
    if job.attempted_at is not None:
        yield Event(at=job.attempted_at, event="started", attempt=job.attempt, worker_id=job.worker_id)
    if job.finalized_at is not None:
        # They were written by one statement, which has one time.
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


def _beside_the_row(job: Job, noted: Sequence[EventRow], errors: list[_Error]) -> Iterator[Event]:
    """What was noted, each but once, with the errors that belong to it, which are taken from the list.

    Of an attempt that it knows, the row knows better.
    """
    known = None if job.attempted_at is None else job.lease
    by_lease: dict[int, list[EventRow]] = defaultdict(list)
    for each in noted:
        if each.lease != known:
            by_lease[each.lease].append(each)
    # A worker's time may be a little off: no attempt began before the one before it had ended, …
    floor = job.created_at
    for _, of_lease in sorted(by_lease.items()):
        for n, event in enumerate(_attempt(of_lease, errors)):
            floor = max(floor if n == 0 else floor + MOMENT, event.at)  # … and none ended before it began
            yield replace(event, at=floor)


def _attempt(noted: Sequence[EventRow], errors: list[_Error]) -> Iterator[Event]:
    """Its start, and what became of it. An error's time is the database's own, and sets the worker's right."""
    once = {each.event: each for each in noted if each.event != "started"}
    began_at = next((each.began_at for each in noted if each.began_at is not None), None)
    ends = []
    for each in sorted(once.values(), key=attrgetter("at")):
        error = _nearest(errors, each) if each.event in ENDS_WITH_ERROR else None
        if error is not None and each.began_at is not None:
            began_at = each.began_at - (each.at - error.at)
        ends.append(
            Event(
                at=each.at if error is None else error.at,
                event=each.event,
                attempt=each.attempt or None,
                worker_id=each.worker_id,
                detail=each.detail if error is None else error.text,
            )
        )
    if began_at is not None:
        yield Event(at=began_at, event="started", attempt=noted[0].attempt, worker_id=noted[0].worker_id)
    yield from ends


def _nearest(errors: list[_Error], noted: EventRow) -> _Error | None:
    """The error that ended the attempt, taken from the list: after an operator's retry attempts are counted anew."""
    alike = [error for error in errors if error.attempt == noted.attempt]
    nearest = min(alike, key=lambda error: abs(error.at - noted.at), default=None)
    if nearest is not None:
        errors.remove(nearest)
    return nearest


def _error(entry: dict[str, Any]) -> _Error:
    return _Error(datetime.fromisoformat(entry["at"]), int(entry.get("attempt") or 0), str(entry.get("error", "")))
