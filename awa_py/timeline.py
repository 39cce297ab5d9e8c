"""What happened to a job: told by its row, and by what was noted of it meanwhile."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from awa_py.job import Job
from awa_py.store.events import Noted

# What the database itself says of an attempt whose worker died.
PRESUMED_DEAD = "heartbeat stale: worker presumed dead"
ENDS_WITH_ERROR = ("retried", "failed", "cancelled")


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


def history(job: Job, noted: Sequence[Noted]) -> list[Event]:
    """All of it, in its order. What has not come yet, a due time, is the last."""
    errors = list(map(_error, job.errors))
    told = [*_of_the_row(job, errors), *_beside_the_row(job, noted, errors)]
    told += [
        Event(
            at=error.at,
            event="rescued" if error.text == PRESUMED_DEAD else "error",
            attempt=error.attempt or None,
            detail=error.text,
        )
        for error in errors
    ]
    if job.run_at > job.created_at and all(job.run_at != event.at for event in told):
        told.append(Event(at=job.run_at, event="due"))
    return sorted(told, key=lambda event: event.at)


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


def _beside_the_row(job: Job, noted: Sequence[Noted], errors: list[_Error]) -> Iterator[Event]:
    """What was noted, each but once, with the errors that belong to it, which are taken from the list.

    Of an attempt that it knows, the row knows better.
    """
    known = None if job.attempted_at is None else job.lease
    unknown = [each for each in noted if each.lease != known]
    for begun in {each.lease: each for each in unknown if each.began_at is not None}.values():
        assert begun.began_at is not None
        yield Event(at=begun.began_at, event="started", attempt=begun.attempt, worker_id=begun.worker_id)
    for each in {(each.lease, each.event): each for each in unknown if each.event != "started"}.values():
        alike = [error for error in errors if each.event in ENDS_WITH_ERROR and error.attempt == each.attempt]
        error = min(alike, key=lambda error: abs(error.at - each.at), default=None)
        if error is not None:
            errors.remove(error)
        yield Event(
            at=each.at if error is None else error.at,
            event=each.event,
            attempt=each.attempt or None,
            worker_id=each.worker_id,
            detail=each.detail if error is None else error.text,
        )


def _error(entry: dict[str, Any]) -> _Error:
    return _Error(datetime.fromisoformat(entry["at"]), int(entry.get("attempt") or 0), str(entry.get("error", "")))
