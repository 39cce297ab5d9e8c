"""The handlers, schedules and routes that an app declares."""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from awa_py.arguments.signature import Signature
from awa_py.errors import ConfigError
from awa_py.model.context import Context
from awa_py.model.job import DEFAULT_QUEUE, NewJob
from awa_py.model.names import check_kind, check_schedule_name
from awa_py.model.options import JobOptions
from awa_py.model.routes import Routes
from awa_py.model.schedule import Schedule

MISFIRES = ("one", "skip", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How to call a batch handler: with at most `size` jobs; the first waits `linger_s` for the others."""

    size: int
    linger_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """The function that runs the jobs of a kind, and the default options of those jobs."""

    kind: str
    function: Callable[..., Any]
    signature: Signature
    is_async: bool
    batching: Batching | None = None
    options: JobOptions = field(default_factory=JobOptions, repr=False)
    is_declared: bool = True  # in awa.kinds; False for a kind that only awa enqueues

    @classmethod
    def from_function(
        cls,
        kind: str,
        function: Callable[..., Any],
        batching: Batching | None = None,
        options: JobOptions | None = None,
    ) -> "Handler":
        """Read the function's signature."""
        check_kind(kind)
        if batching is not None:
            _check_batch_handler(kind, function)
        return cls(
            kind=kind,
            function=function,
            signature=Signature.from_function(
                function if batching is None else _any_arguments(kind), context_type=Context
            ),
            is_async=inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(_call_of(function)),
            batching=batching,
            options=options or {},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CronDefinition:
    """A schedule that code declares with `@app.cron`, or that an operator sets."""

    name: str
    expression: str
    timezone: str
    kind: str
    args: Mapping[str, Any] = field(default_factory=dict, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    misfire: str = "one"
    version: str = ""  # of the app that declares it

    @classmethod
    def from_job(cls, job: NewJob, *, name: str, expression: str, timezone: str, misfire: str) -> "CronDefinition":
        """Return a schedule that enqueues this job."""
        check_schedule(expression, timezone, misfire)
        options: dict[str, Any] = json.loads(job.to_json())
        kind, args = options.pop("kind"), options.pop("args")
        if job.spec.is_complete:
            options["as_given"] = True  # the code that declares the schedule declares the job, too
        return cls(
            name=check_schedule_name(name),
            expression=expression,
            timezone=timezone,
            kind=kind,
            args=args,
            options=options,  # in the form that awa.enqueue_many takes
            misfire=misfire,
        )

    def with_routes(self, routes: Routes) -> "CronDefinition":
        """Return the same schedule with the default queue that these routes give its job."""
        default_queue = routes.queue_for(self.kind)
        if "queue" in self.options or default_queue == self.options.get("default_queue", DEFAULT_QUEUE):
            return self
        return replace(self, options={**self.options, "default_queue": default_queue})


class Registry:
    """Handlers by kind, schedules by name, and the routes of kinds."""

    def __init__(self, routes: Routes | None = None) -> None:
        self.routes = routes or Routes()
        self._handlers: dict[str, Handler] = {}
        self._schedules: dict[str, CronDefinition] = {}
        self._has_batches = False

    def add(self, handler: Handler) -> None:
        known = self._handlers.get(handler.kind)
        if known is not None and known.function is not handler.function:
            raise ConfigError(f"kind {handler.kind!r} is registered twice: {_location(known)} and {_location(handler)}")
        self._handlers[handler.kind] = handler
        self._has_batches |= handler.batching is not None

    def add_schedule(self, definition: CronDefinition) -> None:
        if definition.name in self._schedules:
            raise ConfigError(f"schedule {definition.name!r} is declared twice: give one of them another name")
        self._schedules[definition.name] = definition

    def get(self, kind: str) -> Handler | None:
        return self._handlers.get(kind)

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return self._handlers

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self._handlers)

    @property
    def kinds_with_context(self) -> tuple[str, ...]:
        """The kinds whose handlers take a Context, and so may read their job."""
        return tuple(kind for kind, handler in self._handlers.items() if handler.signature.context_parameter)

    @property
    def has_batches(self) -> bool:
        """Whether any handler is a batch handler."""
        return self._has_batches

    @property
    def schedules(self) -> tuple[CronDefinition, ...]:
        return tuple(definition.with_routes(self.routes) for definition in self._schedules.values())


def check_schedule(expression: str, timezone: str, misfire: str) -> Schedule:
    """Return the schedule, or raise ConfigError or InvalidSchedule."""
    if misfire not in MISFIRES:
        raise ConfigError(f"misfire {misfire!r}: use {', '.join(MISFIRES)}")
    return Schedule(expression, timezone)


def _check_batch_handler(kind: str, function: Callable[..., Any]) -> None:
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 1 or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise ConfigError(f"{kind}: a batch handler takes one parameter, the list of jobs")


def _any_arguments(kind: str) -> Callable[..., None]:
    """Return a function that accepts all arguments: a batch handler does not name those of its jobs."""

    def arguments(**arguments: Any) -> None: ...

    arguments.__name__ = kind
    return arguments


def _call_of(function: Callable[..., Any]) -> Any:
    """Return the `__call__` of an object: it may be asynchronous."""
    return getattr(function, "__call__", None)  # noqa: B004


def _location(handler: Handler) -> str:
    return f"{handler.function.__module__}.{handler.function.__qualname__}"
