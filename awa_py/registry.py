"""Which kinds of jobs an app knows, and which schedules it declares."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from awa_py.arguments import Signature
from awa_py.context import Context
from awa_py.errors import ConfigError
from awa_py.job import check_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """The function behind a kind."""

    kind: str
    function: Callable[..., Any]
    signature: Signature
    is_async: bool

    @classmethod
    def of(cls, kind: str, function: Callable[..., Any]) -> "Handler":
        return cls(
            kind=check_kind(kind),
            function=function,
            signature=Signature.of(function, context_type=Context),
            is_async=inspect.iscoroutinefunction(function),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CronDefinition:
    """A schedule as code declares it."""

    name: str
    expression: str
    timezone: str
    kind: str
    args: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    misfire: str = "one"


class Registry:
    """Handlers by kind, schedules by name."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._schedules: dict[str, CronDefinition] = {}

    def add(self, handler: Handler) -> None:
        known = self._handlers.get(handler.kind)
        if known is not None and known.function is not handler.function:
            raise ConfigError(f"kind {handler.kind!r} is registered twice: {_place(known)} and {_place(handler)}")
        self._handlers[handler.kind] = handler

    def add_schedule(self, definition: CronDefinition) -> None:
        if definition.name in self._schedules:
            raise ConfigError(f"schedule {definition.name!r} is declared twice: give one of them another name")
        self._schedules[definition.name] = definition

    def get(self, kind: str) -> Handler | None:
        return self._handlers.get(kind)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self._handlers)

    @property
    def schedules(self) -> tuple[CronDefinition, ...]:
        return tuple(self._schedules.values())


def _place(handler: Handler) -> str:
    return f"{handler.function.__module__}.{handler.function.__qualname__}"
