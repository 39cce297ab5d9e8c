"""The options of a job: `JobOptions` as users write them, and their conversion to checked specs and keys."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from awa_py import durations
from awa_py.arguments.json_text import dumps
from awa_py.arguments.signature import Signature
from awa_py.durations import Duration
from awa_py.errors import ConfigError, InvalidJob
from awa_py.model.job import DEFAULT_QUEUE, UNFINISHED, JobSpec, NewJob, State
from awa_py.model.keys import KeyTemplate, UniqueTemplate
from awa_py.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """How to recognize a duplicate of a job.

    Two jobs of a kind are duplicates if all their arguments are equal, or the arguments named in `by`, or if they have
    the same `key`. The job holds its key until it has ended; with a `period`, for that long after it was enqueued, even
    if it has ended; with `states`, while it is in one of them.
    """

    by: Sequence[str] | None = None
    key: str | None = None
    period: Duration | None = None
    states: Collection[State | str] | None = None

    def template(self, kind: str, optional: Collection[str] = ()) -> UniqueTemplate:
        """Return the template of the unique keys of this kind. `optional`: the arguments that a job may leave out."""
        period = None if self.period is None else durations.parse(self.period)
        if self.states is not None:
            states = tuple(_state(kind, state) for state in self.states)
        else:
            states = UNFINISHED if period is None else (*UNFINISHED, State.COMPLETED)
        return UniqueTemplate(kind, by=self.by, key=self.key, period=period, states=states, optional=optional)


UniqueOption = bool | Duration | Unique | None


class JobOptions(TypedDict, total=False):
    """The options of a job. None means the default.

    `unique` is True, a period, or a `Unique`. `concurrency_key` may contain names of arguments:
    `"customer:{customer_id}"`.
    """

    queue: str | None
    priority: int | None
    max_attempts: int | None
    timeout: Duration | None
    delay: Duration | None
    run_at: datetime | None
    deadline: datetime | None
    tags: Sequence[str] | None
    metadata: Mapping[str, Any] | None
    unique: UniqueOption
    parent_id: int | None
    concurrency_key: str | None
    concurrency_limit: int | None
    ordered: bool | None


def check_names(kind: str, options: Mapping[str, Any]) -> None:
    """Raise ConfigError if there is no option of one of these names."""
    known = JobOptions.__annotations__
    for name in options:
        if name not in known:
            raise ConfigError(f"{kind}: there is no option {name!r}; the options are {', '.join(sorted(known))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTemplate:
    """What all jobs of a kind with the same options share."""

    spec: JobSpec
    concurrency_key: KeyTemplate | None
    unique: UniqueTemplate | None

    def fill(self, args_json: str) -> NewJob:
        """Return the job with these arguments, which were checked before."""
        unique, key = self.unique, self.concurrency_key
        return NewJob.from_spec(
            self.spec,
            args_json,
            None if unique is None else unique.fill(args_json),
            None if key is None else key.fill(args_json),
        )


def make_template(
    kind: str,
    options: JobOptions,
    settings: Settings,
    default_queue: str = DEFAULT_QUEUE,
    signature: Signature | None = None,
) -> JobTemplate:
    """Check the options. `default_queue` is used if `queue` is not set.

    `signature` is that of the handler. Without one, the app does not declare the kind, and the database completes the
    options that are not set.
    """
    unique = _unique_template(kind, options, signature.optional_names if signature else ())
    concurrency_key = _key_template(kind, options)
    for template in (unique, concurrency_key):
        if signature is not None and template is not None:
            template.check(signature.accepts)
    spec = _make_spec(kind, options, settings, default_queue, is_declared=signature is not None)
    return JobTemplate(spec=spec, concurrency_key=concurrency_key, unique=unique)


def _unique_template(kind: str, options: JobOptions, optional: Collection[str]) -> UniqueTemplate | None:
    option = options.get("unique")
    if option is None or option is False:
        return None
    unique = Unique() if option is True else option if isinstance(option, Unique) else Unique(period=option)
    return unique.template(kind, optional)


def _key_template(kind: str, options: JobOptions) -> KeyTemplate | None:
    text = options.get("concurrency_key")
    return None if text is None else KeyTemplate(kind, text)


def _make_spec(kind: str, options: JobOptions, settings: Settings, default_queue: str, *, is_declared: bool) -> JobSpec:
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    given.pop("unique", None)
    if given.pop("concurrency_key", None) is None and ("concurrency_limit" in given or given.get("ordered")):
        name = "ordered" if given.get("ordered") else "concurrency_limit"
        raise InvalidJob(f"{kind}: {name} needs a concurrency_key: it applies to jobs with the same key")
    for name in ("timeout", "delay"):
        if name in given:
            given[name] = durations.parse(given[name])
    for name in ("run_at", "deadline"):
        if name in given and not isinstance(given[name], datetime):
            raise InvalidJob(f"{kind}: {name} takes a datetime, not {type(given[name]).__name__}")
    if "tags" in given:
        given["tags"] = _tags(kind, given["tags"])
    if "metadata" in given:
        given["metadata"] = _metadata(kind, given["metadata"], settings)
    return JobSpec(kind=kind, default_queue=default_queue, given=None if is_declared else frozenset(given), **given)


def _state(kind: str, state: State | str) -> State:
    try:
        return State(state)
    except ValueError:
        raise InvalidJob(f"{kind}: {state!r} is not a state: use {', '.join(State)}") from None


def _tags(kind: str, tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, str):
        raise InvalidJob(f"{kind}: tags is a list of strings, not one string")
    return tuple(tags)


def _metadata(kind: str, metadata: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    parsed: dict[str, Any] = json.loads(
        dumps(dict(metadata), what=kind, noun="metadata", limit=settings.max_args_bytes)
    )
    return parsed
