"""A job as people see it, and a job that is about to be enqueued."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from awa_py.errors import InvalidJob

MAX_NAME_CHARACTERS = 200
MAX_KEY_CHARACTERS = 500
MAX_ATTEMPTS = 32767
MAX_CONCURRENCY = 32767
DEFAULT_QUEUE = "default"
# PostgreSQL's calendar goes on after the year 9999, Python's does not: a later time could be written, but never read.
LAST_YEAR = 9000
MAX_DURATION = timedelta(days=365_000)


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
    args: dict[str, Any] = field(repr=False)  # what a job carries is nobody's business in a log
    run_at: datetime
    created_at: datetime
    attempted_at: datetime | None = None
    finalized_at: datetime | None = None
    heartbeat_at: datetime | None = None
    deadline_at: datetime | None = None
    worker_id: UUID | None = None
    lease: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list, repr=False)
    progress: dict[str, Any] | None = field(default=None, repr=False)
    result: Any = field(default=None, repr=False)
    tags: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict, repr=False)
    unique_key: str | None = field(default=None, repr=False)
    parent_id: int | None = None
    timeout: timedelta | None = None
    rescues: int = 0
    cancel_requested_at: datetime | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    ordered: bool | None = None
    is_new: bool = True
    """False where an enqueue met a unique key that this job holds: nothing was added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueKey:
    """A claim to be the only job under `key`, while it is in one of `states` and `period` has not passed."""

    key: str = field(repr=False)
    period: timedelta | None = None
    states: tuple[State, ...] = UNFINISHED

    def __post_init__(self) -> None:
        if not self.key or "\x00" in self.key or len(self.key) > 1000:
            raise InvalidJob("a unique key has 1 to 1000 characters, and no NUL among them")
        if not self.states:
            raise InvalidJob("a unique key holds in at least one state: name it")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What a job is to have but its arguments and keys: jobs of one kind with the same options share it, checked once.

    A job without a queue goes where an operator's route leads, and else to `default_queue`. `concurrency_limit` and
    `ordered` are those of its concurrency key, where it has one.
    """

    kind: str
    queue: str | None = None
    default_queue: str = DEFAULT_QUEUE
    priority: int = 2
    run_at: datetime | None = None
    delay: timedelta | None = None
    max_attempts: int = 25
    timeout: timedelta | None = None
    deadline: datetime | None = None
    tags: Sequence[str] = ()
    metadata: Mapping[str, Any] | None = field(default=None, repr=False)
    parent_id: int | None = None
    concurrency_limit: int = 1
    ordered: bool = False

    def __post_init__(self) -> None:
        check_kind(self.kind)
        check_queue(self.default_queue if self.queue is None else self.queue)
        if type(self.priority) is not int or not 1 <= self.priority <= 4:
            raise InvalidJob(f"{self.kind}: priority is 1 (first) to 4, not {self.priority!r}")
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= MAX_ATTEMPTS:
            raise InvalidJob(f"{self.kind}: max_attempts is 1 to {MAX_ATTEMPTS}, not {self.max_attempts!r}")
        self._check_times()
        self._check_concurrency()
        for tag in self.tags:
            if not isinstance(tag, str) or not tag or "\x00" in tag or len(tag) > MAX_NAME_CHARACTERS:
                raise InvalidJob(
                    f"{self.kind}: a tag is a text of 1 to {MAX_NAME_CHARACTERS} characters, no NUL among them"
                )

    def _check_times(self) -> None:
        if self.run_at is not None and self.delay is not None:
            raise InvalidJob(f"{self.kind}: give either run_at or delay, not both")
        for name, moment in (("run_at", self.run_at), ("deadline", self.deadline)):
            if moment is not None and moment.tzinfo is None:
                raise InvalidJob(f"{self.kind}: {name} has no timezone: use datetime.now(timezone.utc) or the like")
            if moment is not None and moment.year >= LAST_YEAR:
                raise InvalidJob(f"{self.kind}: {name} is too far away: it lies before the year {LAST_YEAR}")
        for name, length in (("delay", self.delay), ("timeout", self.timeout)):
            if length is not None and length > MAX_DURATION:
                raise InvalidJob(f"{self.kind}: {name} is too long: it is at most {MAX_DURATION.days} days")
        if self.timeout is not None and self.timeout <= timedelta(0):
            raise InvalidJob(f"{self.kind}: timeout must be longer than 0")

    def _check_concurrency(self) -> None:
        limit = self.concurrency_limit
        if type(limit) is not int or not 1 <= limit <= MAX_CONCURRENCY:
            raise InvalidJob(f"{self.kind}: concurrency_limit is 1 to {MAX_CONCURRENCY}, not {limit!r}")
        if type(self.ordered) is not bool:
            raise InvalidJob(f"{self.kind}: ordered is True or False, not {self.ordered!r}")
        if self.ordered and limit != 1:
            raise InvalidJob(f"{self.kind}: ordered jobs run one at a time: concurrency_limit is 1, not {limit}")

    @property
    def is_due_immediately(self) -> bool:
        """Whether the job is available from the moment of its enqueue, whatever the database's clock says."""
        return self.run_at is None and not self.delay

    def resolve_run_at(self, now: datetime) -> datetime:
        """When the job is due, where the database's clock says `now`."""
        return now + (self.delay or timedelta(0)) if self.run_at is None else self.run_at


class _NewJob(NamedTuple):
    spec: JobSpec
    args_json: str
    unique: UniqueKey | None
    concurrency_key: str | None


class NewJob(_NewJob):
    """A job before it has an id. What is wrong with it, it says when it is made."""

    __slots__ = ()

    def __new__(
        cls,
        *,
        kind: str,
        args_json: str = "{}",
        unique: UniqueKey | None = None,
        concurrency_key: str | None = None,
        **spec: Any,
    ) -> "NewJob":
        if concurrency_key is not None:
            check_concurrency_key(kind, concurrency_key)
        return cls.from_spec(JobSpec(kind=kind, **spec), args_json, unique, concurrency_key)

    @classmethod
    def from_spec(
        cls, spec: JobSpec, args_json: str, unique: UniqueKey | None = None, concurrency_key: str | None = None
    ) -> "NewJob":
        """A job on spec that were checked before, as was its key."""
        return tuple.__new__(cls, (spec, args_json, unique, concurrency_key))

    def __repr__(self) -> str:
        return f"<new awa job {self.spec.kind}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return NewJob.from_spec, tuple(self)

    @property
    def kind(self) -> str:
        return self.spec.kind

    @property
    def queue(self) -> str | None:
        """The queue that was named, if any: where the job really goes, its enqueuer is told."""
        return self.spec.queue

    @property
    def priority(self) -> int:
        return self.spec.priority

    @property
    def max_attempts(self) -> int:
        return self.spec.max_attempts

    def to_json(self) -> str:
        """The object that `awa.enqueue_many` takes."""
        spec = self.spec
        wanted: dict[str, Any] = {
            "kind": spec.kind,
            "priority": spec.priority,
            "max_attempts": spec.max_attempts,
        }
        if spec.queue is not None:
            wanted["queue"] = spec.queue
        elif spec.default_queue != DEFAULT_QUEUE:
            wanted["usual_queue"] = spec.default_queue
        if spec.run_at is not None:
            wanted["run_at"] = spec.run_at.isoformat()
        if spec.delay:
            wanted["delay"] = interval_text(spec.delay)
        if spec.timeout is not None:
            wanted["timeout"] = interval_text(spec.timeout)
        if spec.deadline is not None:
            wanted["deadline"] = spec.deadline.isoformat()
        if spec.tags:
            wanted["tags"] = list(spec.tags)
        if spec.metadata:
            wanted["metadata"] = dict(spec.metadata)
        if spec.parent_id is not None:
            wanted["parent_id"] = spec.parent_id
        if self.unique is not None:
            wanted["unique_key"] = self.unique.key
            wanted["unique_states"] = list(self.unique.states)
            if self.unique.period is not None:
                wanted["unique_for"] = interval_text(self.unique.period)
        if self.concurrency_key is not None:
            wanted["concurrency_key"] = self.concurrency_key
            wanted["concurrency_limit"] = spec.concurrency_limit
            wanted["ordered"] = spec.ordered
        return f'{json.dumps(wanted)[:-1]},"args":{self.args_json}}}'


def check_kind(kind: str) -> str:
    """`kind`, where it can be the name of a kind."""
    return _check_name(kind, "kind", forbidden="")


def check_queue(queue: str) -> str:
    """`queue`, where it can be the name of a queue."""
    return _check_name(queue, "queue", forbidden=",")


def check_concurrency_key(kind: str, key: str) -> str:
    """`key`, where it can be the concurrency key of a job of this kind."""
    if not isinstance(key, str):
        raise InvalidJob(f"{kind}: concurrency_key is a text, not {type(key).__name__}")
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS or "\x00" in key:
        raise InvalidJob(f"{kind}: a concurrency key has 1 to {MAX_KEY_CHARACTERS} characters, and no NUL among them")
    return key


def check_schedule_name(name: str) -> str:
    """`name`, where it can be the name of a schedule."""
    return _check_name(name, "schedule", forbidden="")


def check_rate_limit_name(name: str) -> str:
    """`name`, where it can be the name of a rate limit."""
    return _check_name(name, "rate limit", forbidden="")


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


def interval_text(length: timedelta) -> str:
    """A duration as PostgreSQL reads it, whatever its settings."""
    return f"{length.total_seconds():.6f} seconds"
