"""Tables and fields that show queues."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from rich.text import Text

from awa_py.model.job import State
from awa_py.store.queues import QueueRow
from awa_py.store.workers import QueueWorker
from awa_py.text import count, short_duration

from .output import Fields, Row, duration_text, timestamp
from .parsing import OFF

HEADERS = {  # short, to fit 80 columns
    State.AVAILABLE: "ready",
    State.RUNNING: "run",
    State.SCHEDULED: "later",
    State.RETRYABLE: "retry",
    State.WAITING: "wait",
    State.FAILED: "fail",
    State.COMPLETED: "done",
}
LIMITS: dict[str, Callable[[QueueRow], str]] = {
    "max": lambda queue: str(queue.max_workers or ""),
    "rate": lambda queue: str(queue.rate or ""),
    "aging": lambda queue: "" if queue.aging is None else _aging(queue),
}


def queue_rows(queues: Sequence[QueueRow], now: datetime) -> list[Row]:
    """Return the table of queues. A limit, and waiting jobs, have a column only if a queue has them."""
    shown = {header: text for header, text in LIMITS.items() if any(text(queue) for queue in queues)}
    headers = {
        state: header
        for state, header in HEADERS.items()
        if state is not State.WAITING or any(queue.counts.get(state) for queue in queues)
    }
    return [
        {
            "queue": queue.name,
            **{header: queue.counts.get(state, 0) for state, header in headers.items()},
            "workers": queue.workers,
            **{header: Text(text(queue)) for header, text in shown.items()},
            "oldest": Text(_age(queue.oldest_available_s)),
            "status": _status(queue, now),
        }
        for queue in queues
    ]


def queue_fields(queue: QueueRow, now: datetime) -> Fields:
    return {
        "queue": queue.name,
        "status": _status(queue, now),
        **{state: queue.counts[state] for state in State if state in queue.counts},
        "oldest available": _age(queue.oldest_available_s),
        "workers": queue.workers,
        "max workers": "unlimited" if queue.max_workers is None else queue.max_workers,
        "rate": str(queue.rate or "unlimited"),
        "throttled": _throttled(queue, now),
        "aging": _aging(queue),
        "fair": "on" if queue.fair else "off",
        "durable claims": "on" if queue.durable_claims else "off",
        "backoff": "on" if queue.backoff_enabled else "off",
        "backoff base": duration_text(queue.backoff_base),
        "backoff max": duration_text(queue.backoff_max),
        "retention completed": duration_text(queue.completed_retention),
        "retention failed": duration_text(queue.failed_retention),
        "timeout": duration_text(queue.timeout),
        "staleness": duration_text(queue.staleness),
        "changed": timestamp(queue.updated_at, now),
    }


def worker_row(worker: QueueWorker) -> Row:
    return {
        "worker": worker.label or str(worker.id)[:8],
        "host": f"{worker.hostname}:{worker.pid}",
        "slots": Text("" if worker.slots is None else str(worker.slots)),
        "running": worker.running,
        "id": Text(str(worker.id)),
    }


def _aging(queue: QueueRow) -> str:
    return duration_text(queue.aging) if queue.aging is None or queue.aging else OFF


def _throttled(queue: QueueRow, now: datetime) -> str | None:
    """Return the end, the number in a row and the reason of the throttling, or None if it was reset."""
    if not queue.throttled and not queue.throttles:
        return None
    ends = "until" if queue.throttled else "ended"
    text = f"{ends} {timestamp(queue.throttled_until, now)}, {count(queue.throttles, 'time')} in a row"
    return f"{text}: {queue.throttle_reason}" if queue.throttle_reason else text


def _status(queue: QueueRow, now: datetime) -> Text:
    if queue.throttled and not queue.paused and queue.throttled_until is not None:
        return Text(f"throttled{_time_left(queue.throttled_until, now)}", style="yellow")
    if not queue.paused:
        return Text("active", style="green")
    return Text(f"paused{_time_left(queue.paused_until, now)}", style="yellow")


def _time_left(until: datetime | None, now: datetime) -> str:
    return "" if until is None else f", {short_duration(max(timedelta(0), until - now))} left"


def _age(seconds: float | None) -> str:
    return "" if seconds is None else short_duration(timedelta(seconds=max(0.0, seconds)))
