"""The demo's database at one moment, and the events between two such moments."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from awa_py.model.job import Job, State
from awa_py.store import election, jobs, queues, schedules
from awa_py.store.election import Leader
from awa_py.store.jobs import JobCounts
from awa_py.store.queues import QueueRow
from awa_py.store.schedules import ScheduleRow
from awa_py.store.session import Session
from awa_py.store.workers import WorkerRow, list_workers
from awa_py.text import ordinal

RATE_WINDOW = timedelta(seconds=5)


class Severity(StrEnum):
    """The colour of an event."""

    GOOD = "good"
    BAD = "bad"
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """Something worth telling the user."""

    at_s: float
    severity: Severity
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that the demo shows, at one moment."""

    at_s: float
    counts: JobCounts
    queues: Sequence[QueueRow]
    workers: Sequence[WorkerRow]
    leader: Leader | None
    schedules: Sequence[ScheduleRow]
    jobs: Mapping[int, Job]

    @property
    def live_workers(self) -> list[WorkerRow]:
        return [worker for worker in self.workers if worker.alive]

    @property
    def completed_per_s(self) -> float:
        return self.counts.completed / min(RATE_WINDOW.total_seconds(), max(self.at_s, 1.0))

    def total(self, *states: State) -> int:
        return sum(self.counts.by_state.get(state, 0) for state in states)

    def find_pid(self, job: Job) -> int | None:
        """Return the pid of the worker that last claimed the job."""
        return next((worker.pid for worker in self.workers if worker.id == job.worker_id), None)


async def take_snapshot(session: Session, at_s: float, job_ids: Sequence[int], *, staleness: timedelta) -> Snapshot:
    """Read everything in one transaction, so that the numbers are consistent."""
    async with session.connection.transaction(isolation="repeatable_read", readonly=True):
        return Snapshot(
            at_s=at_s,
            counts=await jobs.count_jobs(session, window=RATE_WINDOW),
            queues=await queues.list_queues(session, staleness=staleness),
            workers=await list_workers(session, staleness=staleness),
            leader=await election.get_leader(session),
            schedules=await schedules.list_schedules(session),
            jobs=await jobs.get_jobs(session, job_ids),
        )


@dataclass(slots=True)
class ChangeDetector:
    """Compare each snapshot with the ones before, and count what happened."""

    counts: Counter[str] = field(default_factory=Counter)
    _pids: dict[UUID, int] = field(default_factory=dict)
    _errors: dict[int, int] = field(default_factory=dict)
    _fired: dict[str, datetime] = field(default_factory=dict)
    _epoch: int = 0

    def detect(self, snapshot: Snapshot) -> list[DemoEvent]:
        """Return what happened since the last snapshot."""
        changes = [*self._new_workers(snapshot), *self._new_leader(snapshot), *self._fired_schedules(snapshot)]
        for job in snapshot.jobs.values():
            changes += self._job_changes(job)
        return [DemoEvent(snapshot.at_s, severity, text) for severity, text in changes]

    def _new_workers(self, snapshot: Snapshot) -> list[tuple[Severity, str]]:
        new = [worker for worker in snapshot.workers if worker.id not in self._pids]
        self._pids |= {worker.id: worker.pid for worker in new}
        return [(Severity.NEUTRAL, f"worker pid {worker.pid} joined") for worker in new]

    def _new_leader(self, snapshot: Snapshot) -> list[tuple[Severity, str]]:
        if snapshot.leader is None or snapshot.leader.epoch == self._epoch:
            return []
        self._epoch = snapshot.leader.epoch
        return [(Severity.NEUTRAL, f"worker pid {snapshot.leader.pid} was elected leader, epoch {self._epoch}")]

    def _fired_schedules(self, snapshot: Snapshot) -> list[tuple[Severity, str]]:
        changes = []
        for schedule in snapshot.schedules:
            fired = schedule.last_enqueued_at
            if fired is not None and fired != self._fired.get(schedule.name):
                self._fired[schedule.name] = fired
                self.counts["fired"] += 1
                changes.append((Severity.NEUTRAL, f"schedule {schedule.name} fired: {schedule.kind} enqueued"))
        return changes

    def _job_changes(self, job: Job) -> list[tuple[Severity, str]]:
        known_errors = self._errors.get(job.id, 0)
        self._errors[job.id] = len(job.errors)
        changes = [self._error(job, error) for error in job.errors[known_errors:]]
        if job.state is State.COMPLETED and job.attempt > 1:
            worker = f" on worker pid {self._pids[job.worker_id]}" if job.worker_id in self._pids else ""
            changes.append((Severity.GOOD, f"{name(job)} completed{worker} on its {ordinal(job.attempt)} attempt"))
        if job.state.final:
            del self._errors[job.id]
        return changes

    def _error(self, job: Job, error: Mapping[str, Any]) -> tuple[Severity, str]:
        text = str(error["error"])
        if error.get("rescued"):
            self.counts["rescued"] += 1
            return Severity.GOOD, f"{name(job)} was rescued: {text}"
        if job.state is State.FAILED:
            return Severity.BAD, f"{name(job)} failed permanently: {text}"
        self.counts["retried"] += 1
        return Severity.BAD, f"{name(job)} failed: {text}; {_retry(job, error)}"


def name(job: Job) -> str:
    return f"{job.kind} #{job.id}"


def _retry(job: Job, error: Mapping[str, Any]) -> str:
    if job.state is not State.RETRYABLE:
        return "it was retried"
    delay = job.run_at - datetime.fromisoformat(error["at"])
    return f"retry in {delay.total_seconds():.3g} s"
