"""Declarations: what the code says about its kinds, in the form in which `awa.kinds` stores it.

A declaration carries the version of its app. The database keeps the newest one: a version is older if it has declared
the kind before and was replaced since. So versions need no order, only names that differ.
"""

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from awa_py.errors import ConfigError
from awa_py.model.job import interval_text
from awa_py.model.options import make_template
from awa_py.model.registry import CronDefinition, Handler, Registry
from awa_py.settings import Settings

MAX_VERSION_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """The kinds of an app, as objects with the columns of `awa.kinds`, its schedules, and its version."""

    kinds: tuple[dict[str, Any], ...]
    schedules: tuple[CronDefinition, ...]
    version: str

    @classmethod
    def of(cls, registry: Registry, settings: Settings, version: str) -> "Declarations":
        """Read what a registry declares."""
        return cls(
            kinds=tuple(
                _declaration(handler, registry, settings)
                for handler in registry.handlers.values()
                if handler.is_declared
            ),
            schedules=tuple(replace(schedule, version=version) for schedule in registry.schedules),
            version=version,
        )


def check_version(version: str | None) -> str | None:
    """Return the version, or raise ConfigError if it is not a short text."""
    if version is not None and not (
        isinstance(version, str) and 1 <= len(version) <= MAX_VERSION_CHARACTERS and version.isprintable()
    ):
        raise ConfigError(f"version is a text of 1 to {MAX_VERSION_CHARACTERS} printable characters, not {version!r}")
    return version


def source_version(handlers: Iterable[Handler]) -> str | None:
    """Return the latest modification time of the files that define the handlers, or None if they are not files.

    Built-in kinds do not count: only workers have them.
    """
    modules = {str(getattr(handler.function, "__module__", "")) for handler in handlers}
    changed: list[float] = []
    for module in modules:
        path = getattr(sys.modules.get(module), "__file__", None)
        if path and not module.startswith("awa_py."):
            with suppress(OSError):  # e.g. inside a zip file
                changed.append(os.stat(path).st_mtime)
    return datetime.fromtimestamp(max(changed), UTC).isoformat(timespec="milliseconds") if changed else None


def _declaration(handler: Handler, registry: Registry, settings: Settings) -> dict[str, Any]:
    kind = handler.kind
    template = make_template(kind, handler.options, settings, registry.routes.queue_for(kind), handler.signature)
    spec, key, unique = template.spec, template.concurrency_key, template.unique
    values: dict[str, Any] = {
        "kind": kind,
        "queue": spec.queue,
        "default_queue": spec.default_queue,
        "priority": spec.priority,
        "max_attempts": spec.max_attempts,
        "timeout": spec.timeout and interval_text(spec.timeout),
        "delay": spec.delay and interval_text(spec.delay),
        "tags": list(spec.tags) or None,
        "metadata": spec.metadata and dict(spec.metadata),
        "args_schema": handler.signature.schema,
    }
    if key is not None:
        values |= {
            "concurrency_key": key.text,
            "key_parts": key.parts,
            "concurrency_limit": spec.concurrency_limit,
            "ordered": spec.ordered,
        }
    if unique is not None:
        values |= {
            "unique_by": None if unique.by is None else list(unique.by),
            "unique_key": unique.key,
            "unique_for": unique.period and interval_text(unique.period),
            "unique_states": list(unique.states),
        }
    return values
