"""A maintenance task: a name, an interval, and a function that does one bounded batch."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from awa_py.db.listener import Topic
from awa_py.store.session import Session


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What one batch changed, and when the task should run again."""

    rows_changed: int = 0
    has_more: bool = False  # the batch was full: run the next one immediately
    next_due_s: float | None = None  # run again after this time if it is shorter than the interval
    interval_s: float | None = None  # wait this long instead of the task's interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Run by the leader every interval, or earlier if its last result says so or a notification of its topic comes."""

    name: str
    interval: timedelta
    run: Callable[[Session], Awaitable[TaskResult]]
    wake_topic: Topic | None = None
    only_if_idle: bool = False  # run it only if no other task ran for an interval


async def run_once(task: Task, session: Session) -> int:
    """Run batches of the task until one is not full. Return the number of rows changed."""
    rows_changed = 0
    while True:
        result = await task.run(session)
        rows_changed += result.rows_changed
        if not result.has_more:
            return rows_changed
