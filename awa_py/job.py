"""A job as people see it, and a job that is about to be enqueued."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from awa_py.errors import InvalidJob

MAX_NAME_CHARACTERS = 200
MAX_ATTEMPTS = 32767
# PostgreSQL's calendar goes on after the year 9999, Python's does not: a later time could be written, but never read.
LAST_YEAR = 9000
LONGEST = timedelta(days=365_000)


class State(StrEnum):
    """Where a job is. The first four are waiting or at work, the last three are final."""

    SCHEDULED = "scheduled"
    RETRYABLE = "retryable"
    WAITING = "waiting"
    AVAILABLE = "available"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in FINAL


FINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
UNFINISHED = tuple(state for state in State if state not in FINAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One row of the view `awa.jobs`."""

    id: int
    kind: str
    queue: str
    state: State
    priority: int
    attempt: int
    max_attempts: int
    args: dict[str, Any]
    run_at: datetime
    created_at: datetime
    attempted_at: datetime | None = None
    finalized_at: datetime | None = None
    heartbeat_at: datetime | None = None
    deadline_at: datetime | None = None
    worker_id: UUID | None = None
    lease: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)
    progress: dict[str, Any] | None = None
    result: Any = None
    tags: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    unique_key: str | None = None
    parent_id: int | None = None
    timeout: timedelta | None = None
    rescues: int = 0
    cancel_requested_at: datetime | None = None
    is_new: bool = True
    """False where an enqueue met a unique key that this job holds: nothing was added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueKey:
    """A claim to be the only job under `key`, while it is in one of `states` and `period` has not passed."""

    key: str
    period: timedelta | None = None
    states: tuple[State, ...] = UNFINISHED

    def __post_init__(self) -> None:
        if not self.key or "\x00" in self.key or len(self.key) > 1000:
            raise InvalidJob("a unique key has 1 to 1000 characters, and no NUL among them")
        if not self.states:
            raise InvalidJob(f"unique key {self.key!r}: name at least one state in which it holds")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job before it has an id. What is wrong with it, it says when it is made."""

    kind: str
    args_json: str = "{}"
    queue: str = "default"
    priority: int = 2
    run_at: datetime | None = None
    delay: timedelta | None = None
    max_attempts: int = 25
    timeout: timedelta | None = None
    deadline: datetime | None = None
    tags: Sequence[str] = ()
    metadata: Mapping[str, Any] | None = None
    unique: UniqueKey | None = None
    parent_id: int | None = None

    def __post_init__(self) -> None:
        check_kind(self.kind)
        check_queue(self.queue)
        if type(self.priority) is not int or not 1 <= self.priority <= 4:
            raise InvalidJob(f"{self.kind}: priority is 1 (first) to 4, not {self.priority!r}")
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= MAX_ATTEMPTS:
            raise InvalidJob(f"{self.kind}: max_attempts is 1 to {MAX_ATTEMPTS}, not {self.max_attempts!r}")
        if self.run_at is not None and self.delay is not None:
            raise InvalidJob(f"{self.kind}: give either run_at or delay, not both")
        for name, moment in (("run_at", self.run_at), ("deadline", self.deadline)):
            if moment is not None and moment.tzinfo is None:
                raise InvalidJob(f"{self.kind}: {name} has no timezone: use datetime.now(timezone.utc) or the like")
            if moment is not None and moment.year >= LAST_YEAR:
                raise InvalidJob(f"{self.kind}: {name} is too far away: it lies before the year {LAST_YEAR}")
        for name, length in (("delay", self.delay), ("timeout", self.timeout)):
            if length is not None and length > LONGEST:
                raise InvalidJob(f"{self.kind}: {name} is too long: it is at most {LONGEST.days} days")
        if self.timeout is not None and self.timeout <= timedelta(0):
            raise InvalidJob(f"{self.kind}: timeout must be longer than 0")
        for tag in self.tags:
            if not isinstance(tag, str) or not tag or "\x00" in tag or len(tag) > MAX_NAME_CHARACTERS:
                raise InvalidJob(f"{self.kind}: {tag!r} is not a tag: 1 to {MAX_NAME_CHARACTERS} characters, no NUL")

    def to_json(self) -> str:
        """The object that `awa.enqueue_many` takes."""
        wanted: dict[str, Any] = {
            "kind": self.kind,
            "queue": self.queue,
            "priority": self.priority,
            "max_attempts": self.max_attempts,
        }
        if self.run_at is not None:
            wanted["run_at"] = self.run_at.isoformat()
        if self.delay:
            wanted["delay"] = _interval(self.delay)
        if self.timeout is not None:
            wanted["timeout"] = _interval(self.timeout)
        if self.deadline is not None:
            wanted["deadline"] = self.deadline.isoformat()
        if self.tags:
            wanted["tags"] = list(self.tags)
        if self.metadata:
            wanted["metadata"] = dict(self.metadata)
        if self.parent_id is not None:
            wanted["parent_id"] = self.parent_id
        if self.unique is not None:
            wanted["unique_key"] = self.unique.key
            wanted["unique_states"] = list(self.unique.states)
            if self.unique.period is not None:
                wanted["unique_for"] = _interval(self.unique.period)
        return f'{json.dumps(wanted)[:-1]},"args":{self.args_json}}}'


def check_kind(kind: str) -> str:
    """`kind`, where it can be the name of a kind."""
    return _check_name(kind, "kind", forbidden="")


def check_queue(queue: str) -> str:
    """`queue`, where it can be the name of a queue."""
    return _check_name(queue, "queue", forbidden=",")


def check_schedule_name(name: str) -> str:
    """`name`, where it can be the name of a schedule."""
    return _check_name(name, "schedule", forbidden="")


def _check_name(name: object, role: str, *, forbidden: str) -> str:
    if not isinstance(name, str):
        raise InvalidJob(f"{role} {name!r}: a {role}'s name is text")
    if not name.strip():
        raise InvalidJob(f"a {role}'s name cannot be empty")
    if len(name) > MAX_NAME_CHARACTERS:
        raise InvalidJob(f'{role} "{name[:40]}…": a {role}\'s name has at most {MAX_NAME_CHARACTERS} characters')
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise InvalidJob(f"{role} {name!r}: a {role}'s name cannot hold control characters")
    if "," in forbidden and "," in name:
        raise InvalidJob(f'{role} "{name}": a {role}\'s name cannot hold a comma')
    return name


def _interval(length: timedelta) -> str:
    return f"{length.total_seconds():.6f} seconds"
