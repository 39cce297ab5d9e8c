"""The output of `awa job show`: one job with its history, and its steps if it is durable."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from rich.text import Text

from awa_py import durations
from awa_py.model.job import NO_TIMER, Job, State
from awa_py.observability.history import Event
from awa_py.text import escape

from .output import STATE_STYLES, Fields, Row, approximate, compact_json, state_text, timestamp

EVENT_STYLES = {**STATE_STYLES, "retried": "yellow", "rescued": "yellow", "error": "yellow"}


def as_columns(job: Job) -> dict[str, Any]:
    """Return a job with the columns of the view `awa.jobs`."""
    return {name: getattr(job, name) for name in Job.__slots__ if name != "is_new"}


def with_intervals(history: Sequence[Event]) -> list[tuple[Event, float | None]]:
    """Return each event with the seconds since the previous one."""
    intervals_s = [(event.at - before.at).total_seconds() for before, event in pairwise(history)]
    return list(zip(history, [None, *intervals_s], strict=True))


def event_object(event: Event, after_s: float | None) -> dict[str, Any]:
    return {**{name: getattr(event, name) for name in Event.__slots__}, "after_s": after_s}


def event_row(event: Event, after_s: float | None, now: datetime) -> Row:
    """Return a row that fits 80 columns."""
    return {
        "when (UTC)": Text(f"{event.at.astimezone(UTC):%m-%d %H:%M:%S.%f}"[:-3]),
        "event": Text(escape(event.event), style="dim" if event.at > now else EVENT_STYLES.get(event.event, "")),
        "after": Text("" if after_s is None else approximate(after_s), justify="right"),
        "attempt": event.attempt,
        "worker": Text("" if event.worker_id is None else str(event.worker_id)[:8]),
        "detail": (event.detail or "").partition("\n")[0],
    }


def job_fields(job: Job, now: datetime) -> Fields:
    return {
        "id": job.id,
        "kind": job.kind,
        "state": state_text(job.state),
        "queue": job.queue,
        "priority": job.priority,
        "attempt": f"{job.attempt} of {job.max_attempts}",
        "rescues": job.rescues or None,
        "args": compact_json(job.args),
        "created": timestamp(job.created_at, now),
        "due": None if job.run_at == NO_TIMER else timestamp(job.run_at, now),
        "started": timestamp(job.attempted_at, now),
        "heartbeat": timestamp(job.heartbeat_at, now),
        "ended": timestamp(job.finalized_at, now),
        "timeout": None if job.timeout is None else durations.text(job.timeout),
        "deadline": timestamp(job.deadline_at, now),
        "cancel requested": timestamp(job.cancel_requested_at, now),
        "worker": None if job.worker_id is None else str(job.worker_id),
        "lease": job.lease,
        "progress": _progress(job.progress),
        "result": compact_json(job.result) if job.state is State.COMPLETED else None,
        "tags": ", ".join(map(str, job.tags)),
        "metadata": compact_json(job.metadata) if job.metadata else None,
        "unique key": job.unique_key,
        "concurrency key": job.concurrency_key,
        "concurrency limit": job.concurrency_limit,
        "ordered": "yes" if job.ordered else None,
        "parent": job.parent_id,
        "errors": [_error_line(error) for error in job.errors],
        "traceback": _traceback_lines(job.errors[-1]) if job.errors else None,
    }


def _progress(progress: Any) -> str | None:
    """Return the progress as a percentage with its message, or as it is if awa did not write it."""
    match progress:
        case None:
            return None
        case {"fraction": int() | float() as fraction}:
            return f"{fraction:.0%} {progress.get('message', '')}"
        case _:
            return compact_json(progress)


def _error_line(error: Mapping[str, Any]) -> str:
    worker = f" on {error['worker']}" if "worker" in error else ""
    return f"{error.get('at', '')} attempt {error.get('attempt')}{worker}: {error.get('error')}"


def _traceback_lines(error: Mapping[str, Any]) -> list[str]:
    """Return the lines of an error's traceback, and of those of its parts."""
    lines = str(error.get("traceback", "")).splitlines()
    found = error.get("parts")
    parts = [part for part in found if isinstance(part, dict)] if isinstance(found, list) else []
    for number, part in enumerate(parts, start=1):
        lines.append(f"part {number} of {len(parts)}:")
        lines += (f"  {line}" for line in str(part.get("traceback", "")).splitlines())
    return lines
