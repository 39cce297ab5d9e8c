"""A maintenance task: a name, an interval, and a function that does one bounded batch."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from logging import DEBUG

from awa_py.db.listener import Topic
from awa_py.maintenance.reports import TaskReport
from awa_py.store.session import Session


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What one batch changed, and when the task should run again."""

    report: TaskReport = field(default_factory=TaskReport)
    has_more: bool = False  # the batch was full: run the next one immediately
    next_due_s: float | None = None  # run again after this time if it is shorter than the interval
    interval_s: float | None = None  # wait this long instead of the task's interval

    @property
    def rows_changed(self) -> int:
        return self.report.rows_changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Run by the leader every interval, or earlier if its last result says so or a notification of its topic comes."""

    name: str
    interval: timedelta
    run: Callable[[Session], Awaitable[TaskResult]]
    wake_topic: Topic | None = None
    only_if_idle: bool = False  # run it only if no other task ran for an interval
    only_after_invalid_data: bool = False  # run it only after a task failed because of a row
    log_level: int = DEBUG  # of a line with the counts of what a batch changed


async def run_once(task: Task, session: Session) -> TaskReport:
    """Run batches of the task until one is not full. Return what they changed."""
    result = await task.run(session)
    report = result.report
    while result.has_more:
        result = await task.run(session)
        report += result.report
    return report
