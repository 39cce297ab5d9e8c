"""The leader's loop: one loop, one table of tasks, one session."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from awa_py.background import wait_for_event
from awa_py.db.connections import CONNECTION_LOST, describe
from awa_py.maintenance.task import Batch, Task
from awa_py.observability.logs import LogThrottle
from awa_py.observability.metrics import Metrics
from awa_py.store.session import Session
from awa_py.text import format_frames

logger = logging.getLogger("awa.maintenance")

REST = 5  # a task rests at least this many times as long as it took, unless its batch was full
LONGEST_REST_S = 60.0


@dataclass(slots=True)
class _Entry:
    task: Task
    due: float = 0.0
    rest_until: float = 0.0
    woken: bool = False


class MaintenanceLoop:
    """Runs each task when it is due, one batch at a time, so that none keeps the others waiting."""

    def __init__(self, tasks: Sequence[Task], metrics: Metrics, *, batch_timeout_s: float) -> None:
        self._entries = [_Entry(task) for task in tasks]
        self._metrics = metrics
        self._batch_timeout_s = batch_timeout_s
        self._wake = asyncio.Event()
        self._log_throttle = LogThrottle(logger)

    def heard(self, topic: str) -> None:
        """A notification may make tasks due."""
        for entry in self._entries:
            if topic in entry.task.wakes:
                entry.woken = True
                entry.due = min(entry.due, entry.rest_until)
                self._wake.set()

    def session_ended(self) -> None:
        """The loop finds out at once, instead of at the next check."""
        for entry in self._entries:
            entry.due = 0.0
        self._wake.set()

    async def run(self, session: Session) -> None:
        """Runs until it is cancelled or the session is lost, which it raises."""
        while True:
            self._wake.clear()
            entry = min(self._entries, key=lambda entry: entry.due)
            pause_s = entry.due - time.monotonic()
            if pause_s > 0:
                await wait_for_event(self._wake, pause_s)
            else:
                await self._run_batch(entry, session)

    async def _run_batch(self, entry: _Entry, session: Session) -> None:
        entry.woken = False
        began = time.monotonic()
        batch = await self._try(entry.task, session)
        ended = time.monotonic()
        self._metrics.task_seconds.labels(entry.task.name).observe(ended - began)
        for other in self._entries:
            if other.task.when_silent:
                other.due = ended + other.task.interval.total_seconds()
        entry.rest_until = ended + min(REST * (ended - began), LONGEST_REST_S)
        if entry.task.when_silent:
            return
        if batch.again:
            entry.due = ended
        elif entry.woken:
            entry.due = entry.rest_until
        else:
            pause_s = entry.task.interval.total_seconds() if batch.pause_s is None else batch.pause_s
            if batch.next_s is not None:
                pause_s = min(pause_s, max(0.0, batch.next_s))
            entry.due = max(ended + pause_s, entry.rest_until)

    async def _try(self, task: Task, session: Session) -> Batch:
        """One batch. What goes wrong with it is logged and counted; only a lost session ends the loop."""
        try:
            async with asyncio.timeout(self._batch_timeout_s):
                batch = await task.run(session)
        except CONNECTION_LOST:
            raise
        except asyncpg.QueryCanceledError:
            self._metrics.task_errors.labels(task.name).inc()
            sentence = "%s took longer than a statement may, trying again later"
            self._log_throttle.log(logging.WARNING, ("slow", task.name), sentence, task.name)
            return Batch()
        except Exception as error:
            self._metrics.task_errors.labels(task.name).inc()
            words = (task.name, describe(error), format_frames(error))
            self._log_throttle.log(
                logging.ERROR, ("failed", task.name), "%s failed, trying again later: %s\n%s", *words
            )
            return Batch()
        self._metrics.task_runs.labels(task.name).inc()
        self._metrics.task_rows.labels(task.name).inc(batch.changed)
        return batch
