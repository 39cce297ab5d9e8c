"""The leader's loop: one loop, one table of tasks, one session."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from awa_py.db import LOST, describe
from awa_py.loops import wait_for_any
from awa_py.maintenance.task import Task
from awa_py.metrics import Metrics
from awa_py.store.session import Session

logger = logging.getLogger("awa.maintenance")

SHARE = 20  # a task rests at least this many times as long as it took, unless its batch was full


@dataclass(slots=True)
class _Entry:
    task: Task
    due: float = 0.0


class Daemon:
    """Runs each task when it is due, one batch at a time, so that none keeps the others waiting."""

    def __init__(self, tasks: Sequence[Task], metrics: Metrics, *, batch_timeout_s: float) -> None:
        self._entries = [_Entry(task) for task in tasks]
        self._metrics = metrics
        self._batch_timeout_s = batch_timeout_s
        self._wake = asyncio.Event()

    def heard(self, topic: str) -> None:
        """A notification may make tasks due."""
        for entry in self._entries:
            if topic in entry.task.wakes:
                entry.due = 0.0
                self._wake.set()

    def session_ended(self) -> None:
        """The loop finds out at once."""
        for entry in self._entries:
            entry.due = 0.0
        self._wake.set()

    async def run(self, session: Session) -> None:
        """Runs until it is cancelled or the session is lost, which it raises."""
        while True:
            self._wake.clear()
            entry = min(self._entries, key=lambda entry: entry.due)
            pause_s = entry.due - time.monotonic()
            if pause_s <= 0:
                await self._run_batch(entry, session)
            else:
                await wait_for_any(self._wake, pause_s)

    async def _run_batch(self, entry: _Entry, session: Session) -> None:
        task = entry.task
        began = time.monotonic()
        rest_s = task.interval.total_seconds()
        entry.due = began + rest_s
        try:
            async with asyncio.timeout(self._batch_timeout_s):
                batch = await task.run(session)
        except asyncpg.QueryCanceledError:
            self._metrics.task_errors.labels(task.name).inc()
            logger.warning("%s took longer than its statement may, trying again later", task.name)
        except LOST:
            raise
        except Exception:
            self._metrics.task_errors.labels(task.name).inc()
            logger.exception("%s failed, trying again later", task.name)
        else:
            self._metrics.task_runs.labels(task.name).inc()
            self._metrics.task_rows.labels(task.name).inc(batch.changed)
            ended = time.monotonic()
            if entry.due < ended:  # woken while it ran
                return
            if batch.again:
                entry.due = ended
            elif batch.next_s is not None:
                rest_s = min(rest_s, max(0.0, batch.next_s))
                entry.due = max(ended + rest_s, ended + min(SHARE * (ended - began), task.interval.total_seconds()))
        if session.connection.is_closed():
            raise ConnectionError(f"the session ended while {task.name} ran: {describe(ConnectionError())}")
