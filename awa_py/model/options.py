"""What may be chosen for each enqueue."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from awa_py import durations
from awa_py.arguments.signature import dumps
from awa_py.durations import Duration
from awa_py.errors import InvalidJob
from awa_py.model.job import DEFAULT_QUEUE, UNFINISHED, JobSpec, NewJob, State, UniqueKey
from awa_py.model.keys import KeyTemplate
from awa_py.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """How a job is the only one of its kind.

    By all its arguments, by chosen ones (`by`), or by a `key` of one's own; until it has ended, or, with a `period`,
    for that long after it was enqueued, ended or not; or while it is in chosen `states`.
    """

    by: Sequence[str] | None = None
    key: str | None = None
    period: Duration | None = None
    states: Collection[State | str] | None = None

    def resolve(self, kind: str, args: Mapping[str, Any]) -> UniqueKey:
        """The key that a job with these arguments claims."""
        if isinstance(self.by, str):
            raise InvalidJob(f"{kind}: unique by takes a list of argument names, not one text")
        period = None if self.period is None else durations.parse(self.period)
        if self.states is not None:
            states = tuple(_state(kind, state) for state in self.states)
        else:
            states = UNFINISHED if period is None else (*UNFINISHED, State.COMPLETED)
        return UniqueKey(key=self._digest(kind, args) if self.key is None else self.key, period=period, states=states)

    def _digest(self, kind: str, args: Mapping[str, Any]) -> str:
        chosen = args if self.by is None else {name: args.get(name) for name in self.by}
        text = json.dumps(chosen, sort_keys=True, separators=(",", ":"))
        return f"{kind}:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


UniqueOption = bool | Duration | Unique | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What may be chosen for each enqueue; None leaves it to the default."""

    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    timeout: Duration | None = None
    delay: Duration | None = None
    run_at: datetime | None = None
    deadline: datetime | None = None
    tags: Sequence[str] | None = None
    metadata: Mapping[str, Any] | None = None
    unique: UniqueOption = None
    parent_id: int | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    ordered: bool | None = None

    def new_job(
        self, kind: str, args: Mapping[str, Any], settings: Settings, default_queue: str = DEFAULT_QUEUE
    ) -> NewJob:
        """A job that can be enqueued, or an error that says why it cannot."""
        spec = self.spec(kind, settings, default_queue)
        args_json = dumps(args, what=kind, limit=settings.max_args_bytes)
        key = self.key_template(kind)
        return NewJob.from_spec(
            spec, args_json, self.unique_key(kind, args), None if key is None else key.fill(args_json)
        )

    def unique_key(self, kind: str, args: Mapping[str, Any]) -> UniqueKey | None:
        """What a job with these arguments claims to be the only one by."""
        unique = _unique(self.unique)
        return None if unique is None else unique.resolve(kind, args)

    def key_template(self, kind: str) -> KeyTemplate | None:
        """What a job's arguments make a concurrency key of."""
        return None if self.concurrency_key is None else KeyTemplate(kind, self.concurrency_key)

    def spec(self, kind: str, settings: Settings, default_queue: str = DEFAULT_QUEUE) -> JobSpec:
        """What all jobs of this kind with these options share; `default_queue` is for those that name none."""
        if self.concurrency_key is None and (self.concurrency_limit is not None or self.ordered):
            option = "ordered" if self.ordered else "concurrency_limit"
            raise InvalidJob(f"{kind}: {option} goes with a concurrency_key: jobs of the same key are what it limits")
        given: dict[str, Any] = {
            "queue": self.queue,
            "priority": self.priority,
            "max_attempts": self.max_attempts,
            "timeout": None if self.timeout is None else durations.parse(self.timeout),
            "delay": None if self.delay is None else durations.parse(self.delay),
            "run_at": _moment(kind, "run_at", self.run_at),
            "deadline": _moment(kind, "deadline", self.deadline),
            "tags": None if self.tags is None else _tags(kind, self.tags),
            "metadata": None if self.metadata is None else _metadata(kind, self.metadata, settings),
            "parent_id": self.parent_id,
            "concurrency_limit": self.concurrency_limit,
            "ordered": self.ordered,
        }
        return JobSpec(
            kind=kind,
            default_queue=default_queue,
            **{name: value for name, value in given.items() if value is not None},
        )


def _unique(option: UniqueOption) -> Unique | None:
    if option is None or option is False:
        return None
    if option is True:
        return Unique()
    if isinstance(option, Unique):
        return option
    return Unique(period=option)


def _state(kind: str, state: State | str) -> State:
    try:
        return State(state)
    except ValueError:
        known = ", ".join(State)
        raise InvalidJob(f"{kind}: {state!r} is not a state: use {known}") from None


def _moment(kind: str, name: str, moment: object) -> datetime | None:
    if moment is not None and not isinstance(moment, datetime):
        raise InvalidJob(f"{kind}: {name} takes a datetime, not {type(moment).__name__}")
    return moment


def _tags(kind: str, tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, str):
        raise InvalidJob(f"{kind}: tags is a list of texts, not one text")
    return tuple(tags)


def _metadata(kind: str, metadata: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    parsed: dict[str, Any] = json.loads(
        dumps(dict(metadata), what=kind, noun="metadata", limit=settings.max_args_bytes)
    )
    return parsed
