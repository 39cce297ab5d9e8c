"""Jobs: an existing one (`Job`), a new one (`NewJob`), and the options that new jobs share (`JobSpec`)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple
from uuid import UUID

from awa_py.durations import MAX_DURATION
from awa_py.errors import InvalidJob
from awa_py.model.names import check_concurrency_key, check_kind, check_queue, check_tag, check_unique_key

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers know it without the package; typing has `default` since 3.13

    Result = TypeVar("Result", default=Any, covariant=True)
else:
    from typing import TypeVar

    Result = TypeVar("Result")

MAX_ATTEMPTS = 32767
MAX_CONCURRENCY = 32767
DEFAULT_QUEUE = "default"
# Other times could be written, but not read: PostgreSQL's calendar is longer than Python's. As awa.is_time in SQL.
FIRST_YEAR, LAST_YEAR = 1900, 9000
NO_TIMER = datetime(8999, 1, 1, tzinfo=UTC)  # run_at of a waiting job that waits for no time


class State(StrEnum):
    """The state of a job. The last three are final."""

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
class Job(Generic[Result]):
    """One row of the view `awa.jobs`. `Job[Result]` is a job whose handler returns `Result`."""

    id: int
    kind: str
    queue: str
    state: State
    priority: int
    attempt: int
    max_attempts: int
    args: dict[str, Any] = field(repr=False)  # not shown: arguments may hold secrets, and reprs end up in logs
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
    result: Any = field(default=None, repr=False)  # None until the job has completed
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
    """False if the enqueue added nothing because this job already holds the unique key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueKey:
    """A key that at most one job holds, while it is in one of `states` and `period` has not passed."""

    key: str = field(repr=False)
    period: timedelta | None = None
    states: tuple[State, ...] = UNFINISHED

    def __post_init__(self) -> None:
        check_unique_key(self.key)
        if not self.states:
            raise InvalidJob("a unique key needs at least one state: set `states`, or leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The checked options of a job, without its arguments and keys. Jobs of a kind with the same options share one.

    A job without a queue goes to the queue of an operator's route, or else to `default_queue`. `concurrency_limit` and
    `ordered` only matter if the job has a concurrency key. `given` are the options that the caller set, if this app
    does not declare the kind: all others are as the database knows them (`awa.kinds`). None: all values hold.
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
    given: frozenset[str] | None = None

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
            check_tag(self.kind, tag)

    def _check_times(self) -> None:
        if self.run_at is not None and self.delay is not None:
            raise InvalidJob(f"{self.kind}: give either run_at or delay, not both")
        for name, moment in (("run_at", self.run_at), ("deadline", self.deadline)):
            if moment is not None and moment.tzinfo is None:
                raise InvalidJob(f"{self.kind}: {name} has no timezone: use an aware datetime, e.g. datetime.now(UTC)")
            if moment is not None and not FIRST_YEAR <= moment.year < LAST_YEAR:
                raise InvalidJob(
                    f"{self.kind}: {name} must be between the years {FIRST_YEAR} and {LAST_YEAR}, not {moment.year}"
                )
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
    def is_complete(self) -> bool:
        """Whether all values hold. Otherwise the database completes them."""
        return self.given is None

    @property
    def is_due_immediately(self) -> bool:
        """Whether the job is available as soon as it is enqueued, whatever the database's clock says."""
        return self.run_at is None and not self.delay

    def resolve_run_at(self, now: datetime) -> datetime:
        """Return when the job is due if the database's clock shows `now`."""
        return now + (self.delay or timedelta(0)) if self.run_at is None else self.run_at


class _NewJob(NamedTuple):
    spec: JobSpec
    args_json: str
    unique: UniqueKey | None
    concurrency_key: str | None


class NewJob(_NewJob):
    """A job that is not enqueued yet. The constructor checks it."""

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
        """Make a job from parts that were checked before."""
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
        """The queue that was chosen, or None. Routes then decide; the enqueued Job has the actual queue."""
        return self.spec.queue

    @property
    def priority(self) -> int:
        return self.spec.priority

    @property
    def max_attempts(self) -> int:
        return self.spec.max_attempts

    def to_json(self) -> str:
        """Return the JSON object that the SQL function `awa.enqueue_many` takes."""
        spec, given = self.spec, self.spec.given
        values: dict[str, Any] = {"kind": spec.kind}
        if given is None or "priority" in given:
            values["priority"] = spec.priority
        if given is None or "max_attempts" in given:
            values["max_attempts"] = spec.max_attempts
        if spec.queue is not None:
            values["queue"] = spec.queue
        elif spec.default_queue != DEFAULT_QUEUE:
            values["default_queue"] = spec.default_queue
        if spec.run_at is not None:
            values["run_at"] = spec.run_at.isoformat()
        if spec.delay:
            values["delay"] = interval_text(spec.delay)
        if spec.timeout is not None:
            values["timeout"] = interval_text(spec.timeout)
        if spec.deadline is not None:
            values["deadline"] = spec.deadline.isoformat()
        if spec.tags:
            values["tags"] = list(spec.tags)
        if spec.metadata:
            values["metadata"] = dict(spec.metadata)
        if spec.parent_id is not None:
            values["parent_id"] = spec.parent_id
        if self.unique is not None:
            values["unique_key"] = self.unique.key
            values["unique_states"] = list(self.unique.states)
            if self.unique.period is not None:
                values["unique_for"] = interval_text(self.unique.period)
        if self.concurrency_key is not None:
            values["concurrency_key"] = self.concurrency_key
            if given is None or "concurrency_limit" in given:
                values["concurrency_limit"] = spec.concurrency_limit
            if given is None or "ordered" in given:
                values["ordered"] = spec.ordered
        return f'{json.dumps(values)[:-1]},"args":{self.args_json}}}'


def interval_text(length: timedelta) -> str:
    """Return a duration in a form that PostgreSQL reads the same under all of its settings."""
    return f"{length.total_seconds():.6f} seconds"
