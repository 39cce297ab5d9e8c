"""The leader's loop: run the maintenance tasks, one batch at a time, on the session that holds the lock."""

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from awa_py.background import wait_for_event
from awa_py.db.errors import CONNECTION_LOST, INVALID_DATA
from awa_py.maintenance.task import Task, TaskResult
from awa_py.observability.checks import HealthCheck
from awa_py.observability.logs import LogThrottle
from awa_py.observability.metrics import Metrics
from awa_py.observability.tracing import task_span
from awa_py.store.session import Session
from awa_py.text import describe, format_frames

logger = logging.getLogger("awa.maintenance")

MIN_PAUSE_FACTOR = 5  # after a batch that was not full, a task pauses at least this many times the batch's duration
MAX_MIN_PAUSE_S = 60.0


@dataclass(slots=True)
class _Entry:
    task: Task
    due_at: float = 0.0
    earliest_at: float = 0.0  # the end of the minimum pause
    woken: bool = False  # by a notification during its batch


class MaintenanceLoop:
    """Runs each task when it is due. Tasks take turns batch by batch, so that none delays the others for long."""

    def __init__(self, tasks: Sequence[Task], metrics: Metrics, *, batch_timeout_s: float) -> None:
        self._entries = [_Entry(task, math.inf if task.only_after_invalid_data else 0.0) for task in tasks]
        self._problems: dict[str, str] = {}  # by task: why its last batch failed
        self._metrics = metrics
        self._batch_timeout_s = batch_timeout_s
        self._wake = asyncio.Event()
        self._log_throttle = LogThrottle(logger)

    def checks(self) -> list[HealthCheck]:
        """Return whether the tasks work. Thread-safe."""
        problems = [f"{task} fails: {error}" for task, error in list(self._problems.items())]
        return [HealthCheck("maintenance", "; ".join(problems) or None, required=False)]

    def handle_notification(self, topic: str) -> None:
        """Make the tasks due that wait for this topic."""
        for entry in self._entries:
            if topic == entry.task.wake_topic:
                entry.woken = True
                entry.due_at = min(entry.due_at, entry.earliest_at)
                self._wake.set()

    def handle_session_end(self) -> None:
        """Run a task immediately, so that the loop notices the lost session now and not at the next check."""
        for entry in self._entries:
            entry.due_at = 0.0
        self._wake.set()

    async def run(self, session: Session) -> None:
        """Run until cancelled. Raise the error if the session is lost."""
        while True:
            self._wake.clear()
            entry = min(self._entries, key=lambda entry: entry.due_at)
            pause_s = entry.due_at - time.monotonic()
            if pause_s > 0:
                await wait_for_event(self._wake, pause_s)
            else:
                await self._run_batch(entry, session)

    async def _run_batch(self, entry: _Entry, session: Session) -> None:
        entry.woken = False
        began_at = time.monotonic()
        result = await self._try_batch(entry.task, session)
        ended_at = time.monotonic()
        self._metrics.task_seconds.labels(entry.task.name).observe(ended_at - began_at)
        for other in self._entries:
            if other.task.only_if_idle:
                other.due_at = ended_at + other.task.interval.total_seconds()
        entry.earliest_at = ended_at + min(MIN_PAUSE_FACTOR * (ended_at - began_at), MAX_MIN_PAUSE_S)
        if entry.task.only_if_idle:
            return
        if result.has_more:
            entry.due_at = ended_at
        elif entry.task.only_after_invalid_data:
            entry.due_at = math.inf
        elif entry.woken:
            entry.due_at = entry.earliest_at
        else:
            pause_s = entry.task.interval.total_seconds() if result.interval_s is None else result.interval_s
            if result.next_due_s is not None:
                pause_s = min(pause_s, max(0.0, result.next_due_s))
            entry.due_at = max(ended_at + pause_s, entry.earliest_at)

    def _isolate_rows(self, failed: Task) -> None:
        """Run the tasks that discard invalid rows, unless one of them failed itself."""
        for entry in self._entries:
            if entry.task.only_after_invalid_data and entry.task is not failed:
                entry.due_at = 0.0

    async def _try_batch(self, task: Task, session: Session) -> TaskResult:
        """Run one batch. Log and count its error; raise only if the session is lost."""
        try:
            async with asyncio.timeout(self._batch_timeout_s):
                result = await _run_in_span(task, session)
        except CONNECTION_LOST:
            raise
        except asyncpg.QueryCanceledError:
            self._metrics.task_errors.labels(task.name).inc()
            message = "%s took longer than a statement may, trying again later"
            self._log_throttle.log(logging.WARNING, ("slow", task.name), message, task.name)
            self._problems[task.name] = "it took longer than a statement may"
            return TaskResult()
        except Exception as error:
            self._metrics.task_errors.labels(task.name).inc()
            message = "%s failed, trying again later: %s\n%s"
            values = (task.name, describe(error), format_frames(error))
            self._log_throttle.log(logging.ERROR, ("failed", task.name), message, *values)
            self._problems[task.name] = describe(error)
            if isinstance(error, INVALID_DATA):
                self._isolate_rows(task)
            return TaskResult()
        self._problems.pop(task.name, None)
        self._metrics.task_runs.labels(task.name).inc()
        self._metrics.task_rows.labels(task.name).inc(result.rows_changed)
        if result.rows_changed:
            logger.log(task.log_level, "%s: %s", task.name, result.report)
        return result


async def _run_in_span(task: Task, session: Session) -> TaskResult:
    with task_span(task.name) as span:
        result = await task.run(session)
        if span is not None:
            span.set_attribute("awa.task.rows_changed", result.rows_changed)
        return result
