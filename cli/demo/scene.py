"""What can be seen of the demo's queue at one moment, and what is notable about the change since the last one."""

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
from awa_py.store.queues import QueueRow, WorkerRow
from awa_py.store.schedules import ScheduleRow
from awa_py.store.session import Session
from awa_py.text import ordinal

RATE_WINDOW = timedelta(seconds=5)


class Tone(StrEnum):
    """How an event is to be read."""

    GOOD = "good"
    BAD = "bad"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Event:
    """Something notable, as a sentence."""

    at_s: float
    tone: Tone
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The queue at one moment."""

    at_s: float
    counts: JobCounts
    queues: Sequence[QueueRow]
    workers: Sequence[WorkerRow]
    leader: Leader | None
    schedules: Sequence[ScheduleRow]
    jobs: Mapping[int, Job]

    @property
    def living(self) -> list[WorkerRow]:
        return [worker for worker in self.workers if worker.alive]

    @property
    def rate(self) -> float:
        """Jobs that completed per second, lately."""
        return self.counts.completed / min(RATE_WINDOW.total_seconds(), max(self.at_s, 1.0))

    def total(self, *states: State) -> int:
        return sum(self.counts.by_state.get(state, 0) for state in states)

    def pid_of(self, job: Job) -> int | None:
        """The pid of the worker that has, or had, the job."""
        return next((worker.pid for worker in self.workers if worker.id == job.worker_id), None)


async def look(session: Session, at_s: float, job_ids: Sequence[int], *, staleness: timedelta) -> Scene:
    """Everything that is shown, as the database has it at one moment."""
    async with session.connection.transaction(isolation="repeatable_read", readonly=True):
        return Scene(
            at_s=at_s,
            counts=await jobs.count_jobs(session, window=RATE_WINDOW),
            queues=await queues.list_queues(session, staleness=staleness),
            workers=await queues.list_workers(session, staleness=staleness),
            leader=await election.get_leader(session),
            schedules=await schedules.list_schedules(session),
            jobs=await jobs.get_jobs(session, job_ids),
        )


@dataclass(slots=True)
class Chronicle:
    """Compares each scene with what it knows, and tells what is new."""

    tally: Counter[str] = field(default_factory=Counter)
    _pids: dict[UUID, int] = field(default_factory=dict)
    _errors: dict[int, int] = field(default_factory=dict)
    _fired: dict[str, datetime] = field(default_factory=dict)
    _epoch: int = 0

    def tell(self, scene: Scene) -> list[Event]:
        """What happened since the last scene."""
        told = [*self._of_workers(scene), *self._of_leader(scene), *self._of_schedules(scene)]
        for job in scene.jobs.values():
            told += self._of_job(job)
        return [Event(scene.at_s, tone, text) for tone, text in told]

    def _of_workers(self, scene: Scene) -> list[tuple[Tone, str]]:
        new = [worker for worker in scene.workers if worker.id not in self._pids]
        self._pids |= {worker.id: worker.pid for worker in new}
        return [(Tone.PLAIN, f"worker pid {worker.pid} joined") for worker in new]

    def _of_leader(self, scene: Scene) -> list[tuple[Tone, str]]:
        if scene.leader is None or scene.leader.epoch == self._epoch:
            return []
        self._epoch = scene.leader.epoch
        return [(Tone.PLAIN, f"worker pid {scene.leader.pid} was elected leader, epoch {self._epoch}")]

    def _of_schedules(self, scene: Scene) -> list[tuple[Tone, str]]:
        told = []
        for schedule in scene.schedules:
            fired = schedule.last_enqueued_at
            if fired is not None and fired != self._fired.get(schedule.name):
                self._fired[schedule.name] = fired
                self.tally["fired"] += 1
                told.append((Tone.PLAIN, f"schedule {schedule.name} fired: {schedule.kind} enqueued"))
        return told

    def _of_job(self, job: Job) -> list[tuple[Tone, str]]:
        known = self._errors.get(job.id, 0)
        self._errors[job.id] = len(job.errors)
        told = [self._of_error(job, error) for error in job.errors[known:]]
        if job.state is State.COMPLETED and job.attempt > 1:
            where = f" on worker pid {self._pids[job.worker_id]}" if job.worker_id in self._pids else ""
            told.append((Tone.GOOD, f"{name(job)} completed{where} at its {ordinal(job.attempt)} attempt"))
        if job.state.final:
            del self._errors[job.id]
        return told

    def _of_error(self, job: Job, error: Mapping[str, Any]) -> tuple[Tone, str]:
        text = str(error["error"])
        if text.startswith("heartbeat stale"):
            self.tally["rescued"] += 1
            return Tone.GOOD, f"{name(job)} was rescued: {text}"
        if job.state is State.FAILED:
            return Tone.BAD, f"{name(job)} failed for good: {text}"
        self.tally["retried"] += 1
        return Tone.BAD, f"{name(job)} failed: {text}; {_retry(job, error)}"


def _retry(job: Job, error: Mapping[str, Any]) -> str:
    if job.state is not State.RETRYABLE:
        return "it was retried"
    pause = job.run_at - datetime.fromisoformat(error["at"])
    return f"retry in {pause.total_seconds():.3g} s"


def name(job: Job) -> str:
    return f"{job.kind} #{job.id}"
