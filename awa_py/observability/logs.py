"""Job fields on log records, and a throttle for lines that repeat."""

import contextvars
import logging
import math
import threading
import time
from collections.abc import Hashable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from awa_py.text import loggable, short_duration

FIELDS = ("job_id", "job_kind", "queue", "attempt", "jobs", "worker")
FIRST_PAUSE_S = 10.0
MAX_PAUSE_S = 600.0
MIN_LATENESS = timedelta(seconds=1)  # a line that is written later than this says how long ago its event was
_WORKER_ID_CHARACTERS = 8  # in log lines for people


class Call(Protocol):
    """A handler call, with one job or with a batch of jobs."""

    def fields(self) -> dict[str, Any]: ...


# Each handler runs in its own context; its tasks and threads inherit these.
current_call: ContextVar[Call | None] = ContextVar("awa_call", default=None)
current_worker: ContextVar[str | None] = ContextVar("awa_worker", default=None)


class JobFilter(logging.Filter):
    """Adds the current job's fields to each record and drops none. Attach it to a logging.Handler.

    A record gets `job_id`, `job_kind`, `queue`, `attempt`, `jobs` (the size of a batch) and `worker`, each None if it
    does not apply, and `job`: all of them as text, empty outside of handlers.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        call = current_call.get()
        found = {"worker": current_worker.get(), "job": ""}
        if call is not None:
            found |= call.fields()
            found["job"] = _job_text(found)
            record.__dict__.update(found)
        for name in (*FIELDS, "job"):
            record.__dict__.setdefault(name, found.get(name))
        return True


def _job_text(fields: Mapping[str, Any]) -> str:
    job = f"job {fields['job_id']}" if "job_id" in fields else f"{fields['jobs']} jobs"
    words = [f"{job} {fields['job_kind']}", f"queue {fields['queue']}"]
    if "attempt" in fields:
        words.append(f"attempt {fields['attempt']}")
    if fields["worker"] is not None:
        words.append(f"worker {fields['worker'][:_WORKER_ID_CHARACTERS]}")
    return f"[{', '.join(words)}]"


@dataclass(frozen=True, slots=True)
class _Line:
    level: int
    message: str
    values: tuple[object, ...]
    exc_info: BaseException | None
    extra: Mapping[str, Any] | None
    logged_at: float = field(default_factory=time.monotonic)
    context: contextvars.Context = field(default_factory=contextvars.copy_context)


class _Pause:
    """A period in which lines with one key are held back, and the latest of them."""

    __slots__ = ("ends_at", "held", "latest", "length_s", "timer")

    def __init__(self, length_s: float) -> None:
        self.length_s = length_s
        self.ends_at = time.monotonic() + length_s
        self.held = 0
        self.latest: _Line | None = None
        self.timer: threading.Timer | None = None


class LogThrottle:
    """Collects lines that repeat: writes the first with a key at once, then one line for all that followed.

    While lines keep coming, the collected line is written after 10 s, 20 s, 40 s, … and at most every 10 minutes.
    It is the latest one, and says how long ago that was.
    At level DEBUG every line is written.
    """

    def __init__(self, logger: logging.Logger, *, pause_s: float = FIRST_PAUSE_S) -> None:
        self._logger = logger
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._pauses: dict[Hashable, _Pause] = {}

    def log(
        self,
        level: int,
        key: Hashable,
        message: str,
        *values: object,
        exc_info: BaseException | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the line, or hold it back if a line with this key was written recently."""
        line = _Line(level, message, values, exc_info, extra)
        if self._is_due(key, line):
            self._logger.log(level, message, *values, exc_info=loggable(exc_info), extra=extra, stacklevel=2)
        elif self._logger.isEnabledFor(logging.DEBUG):
            self._logger.debug(message, *values, exc_info=loggable(exc_info), extra=extra, stacklevel=2)

    def close(self) -> None:
        """Write all lines that are held back."""
        for key in list(self._pauses):
            self._end_pause(key)

    def _is_due(self, key: Hashable, line: _Line) -> bool:
        with self._lock:
            pause = self._pauses.get(key)
            if pause is None or (pause.timer is None and time.monotonic() >= pause.ends_at):
                self._pauses[key] = _Pause(self._pause_s)
                return True
            pause.held += 1
            pause.latest = line
            if pause.timer is None:
                left_s = max(0.0, pause.ends_at - time.monotonic())
                pause.timer = threading.Timer(left_s, self._end_pause, (key,))
                pause.timer.daemon = True
                pause.timer.start()
            return False

    def _end_pause(self, key: Hashable) -> None:
        with self._lock:
            pause = self._pauses.pop(key, None)
            if pause is None or pause.latest is None:
                return
            if pause.timer is not None:
                pause.timer.cancel()
            self._pauses[key] = _Pause(min(2 * pause.length_s, MAX_PAUSE_S))
        pause.latest.context.run(self._write_latest, pause)

    def _write_latest(self, pause: _Pause) -> None:
        line = pause.latest
        assert line is not None
        now = time.monotonic()
        notes: list[str] = []
        late = timedelta(seconds=now - line.logged_at)
        if late >= MIN_LATENESS:
            notes.append(f"{short_duration(late)} ago")
        if pause.held > 1:
            since = timedelta(seconds=math.ceil(pause.length_s - max(0.0, pause.ends_at - now)))
            notes.append(f"and {pause.held - 1:,} more like it in {short_duration(since)}")
        message, values = line.message, line.values
        if notes:
            message, values = f"{message} (%s)", (*values, ", ".join(notes))
        self._logger.log(line.level, message, *values, exc_info=loggable(line.exc_info), extra=line.extra)
