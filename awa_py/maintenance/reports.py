"""What maintenance tasks changed: one type of report for each task."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Self

from awa_py.store.backlog import UnservedKind
from awa_py.store.invalid_jobs import InvalidJob
from awa_py.store.maintenance import RescuedJob
from awa_py.text import count


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """What a task changed. Each field is a number of rows, or a tuple with one entry per row."""

    @property
    def rows_changed(self) -> int:
        """Return the number of rows that were inserted, changed or deleted."""
        return sum(self._counts().values())

    def __add__(self, other: Self) -> Self:
        """Return the report of two batches."""
        names = [field.name for field in fields(self)]
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def __str__(self) -> str:
        """Return the counts as words: `3 completed jobs, 1 worker`."""
        counts = self._counts().items()
        words = [count(number, name.replace("_", " ").removesuffix("s")) for name, number in counts if number]
        return ", ".join(words) or "nothing to do"

    def _counts(self) -> dict[str, int]:
        return dict(self._each_count())

    def _each_count(self) -> Iterator[tuple[str, int]]:
        for field in fields(self):
            value: Any = getattr(self, field.name)
            yield field.name, value if isinstance(value, int) else len(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteReport(TaskReport):
    """Due jobs that became available."""

    promoted_jobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RescueReport(TaskReport):
    """Running jobs that were taken from their workers."""

    rescued_jobs: tuple[RescuedJob, ...] = ()
    expired_jobs: int = 0  # waiting jobs that failed because their deadline passed
    removed_workers: int = 0  # rows of dead workers


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentsReport(TaskReport):
    """Jobs whose children have ended, and that became available."""

    woken_jobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CronSyncReport(TaskReport):
    """Schedules that were inserted or changed, by name."""

    changed_schedules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fire:
    """A schedule that fired, and the job that it enqueued."""

    schedule: str
    job_id: int
    fire_time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CronReport(TaskReport):
    """Schedules that fired, and names of schedules that were disabled because they cannot fire."""

    fires: tuple[Fire, ...] = ()
    disabled_schedules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupReport(TaskReport):
    """What was deleted because its retention is over, and the partitions that were created for the coming days."""

    completed_jobs: int = 0
    dead_jobs: int = 0  # failed and cancelled
    dropped_partitions: int = 0  # of completed jobs and of events, one for each day
    created_partitions: int = 0
    unique_keys: int = 0
    signals: int = 0  # of jobs that have ended
    payloads: int = 0  # of jobs that were deleted by hand
    workers: int = 0
    metric_buckets: int = 0
    events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgingReport(TaskReport):
    """Jobs that waited too long and got a higher priority."""

    raised_jobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnservedReport(TaskReport):
    """Due jobs that got an error because no live worker has a handler for their kind."""

    unserved_kinds: tuple[UnservedKind, ...] = ()

    def _each_count(self) -> Iterator[tuple[str, int]]:
        yield "unserved_jobs", sum(kind.jobs for kind in self.unserved_kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidReport(TaskReport):
    """Jobs that failed because their row has values that awa cannot work with."""

    invalid_jobs: tuple[InvalidJob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceReport(TaskReport):
    """Shares of `max_workers` that were written, and running jobs that now count towards it."""

    changed_shares: int = 0
    marked_jobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RollUpReport(TaskReport):
    """Per-minute counts that were written."""

    metric_buckets: int = 0
