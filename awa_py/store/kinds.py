"""What the code declares about its kinds: the table `awa.kinds`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from awa_py.model.declarations import Declarations
from awa_py.model.job import NewJob
from awa_py.store.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRow:
    """A row of `awa.kinds`."""

    kind: str
    queue: str | None
    default_queue: str | None
    priority: int
    max_attempts: int
    timeout: timedelta | None
    delay: timedelta | None
    tags: list[str] | None
    metadata: dict[str, Any] | None
    concurrency_key: str | None
    key_parts: list[str] | None
    concurrency_limit: int | None
    ordered: bool | None
    unique_by: list[str] | None
    unique_key: str | None
    unique_for: timedelta | None
    unique_states: list[str] | None
    args_schema: dict[str, Any] | None
    version: str
    declared_at: datetime
    replaced_versions: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredKind:
    """What became of a declaration: it was written, or that of another version holds instead, or nothing changed."""

    kind: str
    is_written: bool
    is_overruled: bool
    version: str
    declared_at: datetime


async def declare_kinds(session: Session, declarations: Declarations, *, as_newest: bool = False) -> list[DeclaredKind]:
    """Write declarations, unless a newer version of the app did. `as_newest`: from now on, this one is the newest."""
    values = (json.dumps(declarations.kinds), declarations.version, as_newest)
    for _ in range(2):  # if it waited for a worker that declares the same, it compared with the rows from before
        rows = await session.fetch("declare_kinds", *values)
        if not any(row["is_overruled"] for row in rows):
            break
    return [DeclaredKind(**dict(row)) for row in rows]


async def list_kinds(session: Session, kind: str | None = None) -> list[KindRow]:
    rows = await session.fetch("list_kinds", kind)
    return [
        KindRow(**{**dict(row), "metadata": _decoded(row["metadata"]), "args_schema": _decoded(row["args_schema"])})
        for row in rows
    ]


async def delete_kind(session: Session, kind: str) -> bool:
    """Delete what was declared about a kind. Return whether there was anything."""
    return bool(await session.fetchval("delete_kind", kind))


async def undeclared_kinds(session: Session, kinds: Sequence[str]) -> list[str]:
    """Return those of the kinds that nobody has declared."""
    undeclared: list[str] = await session.fetchval("list_undeclared_kinds", kinds)
    return undeclared


async def complete_job(session: Session, job: NewJob) -> dict[str, Any]:
    """Return a job for `awa.enqueue_many` with the values that its kind declares, without enqueueing it."""
    (complete,) = json.loads(await session.fetchval("complete_new_jobs", f"[{job.to_json()}]"))
    return dict(complete)


def _decoded(text: str | None) -> Any:
    return None if text is None else json.loads(text)
