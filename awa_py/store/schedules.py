"""Cron schedules."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from awa_py.errors import ScheduleDeclared
from awa_py.model.registry import CronDefinition
from awa_py.store.session import Session

NEVER = datetime.max.replace(tzinfo=UTC)  # asyncpg writes it as 'infinity'


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """A row of `awa.cron`."""

    name: str
    expression: str
    timezone: str
    kind: str
    args: dict[str, Any]
    options: dict[str, Any]
    misfire: str
    paused: bool
    enabled: bool
    last_error: str | None
    effective_from: datetime
    last_enqueued_at: datetime | None
    next_at: datetime | None
    created_at: datetime
    updated_at: datetime
    version: str | None  # of the app that declares it; None: an operator set it
    replaced_versions: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DueSchedule:
    """A schedule that may have to fire, and the database's time."""

    name: str
    expression: str
    timezone: str
    misfire: str
    last_enqueued_at: datetime | None
    now: datetime
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclarationResult:
    """What became of a declaration: it was written, or another one holds instead, or nothing changed.

    `version` is that of the app whose declaration holds; None: an operator's.
    """

    is_written: bool
    is_overruled: bool
    version: str | None


async def upsert_schedule(session: Session, definition: CronDefinition) -> bool:
    """Create or change a schedule of an operator. Return whether anything changed."""
    row = await session.fetchrow("upsert_schedule", *_columns(definition))
    assert row is not None
    if row["version"] is not None:
        raise ScheduleDeclared(
            f'schedule "{definition.name}" is declared in code, by version {row["version"] or "(unnamed)"} of the app: '
            f"change it there. `awa cron pause {definition.name}` stops it, and another name adds a second schedule"
        )
    return bool(row["is_written"])


async def declare_schedule(
    session: Session, definition: CronDefinition, *, as_newest: bool = False
) -> DeclarationResult:
    """Write a schedule that an app declares, unless a newer version of the app did, or an operator set it."""
    values = (*_columns(definition), definition.version, as_newest)
    for _ in range(2):  # if it waited for a worker that declares the same, it compared with the row from before
        (row,) = await session.fetch("declare_schedule", *values)
        if not row["is_overruled"]:
            break
    return DeclarationResult(**dict(row))


def _columns(definition: CronDefinition) -> tuple[str, ...]:
    return (
        definition.name,
        definition.expression,
        definition.timezone,
        definition.kind,
        json.dumps(definition.args),
        json.dumps(definition.options),
        definition.misfire,
    )


async def list_due_schedules(session: Session, *, limit: int) -> list[DueSchedule]:
    return [DueSchedule(**dict(row)) for row in await session.fetch("list_due_schedules", limit)]


async def seconds_to_next_fire(session: Session) -> float | None:
    """Return the seconds until a schedule fires; None: none will."""
    seconds: float | None = await session.fetchval("get_next_fire")
    return seconds


async def fire_schedule(
    session: Session,
    due: DueSchedule,
    *,
    fires: Sequence[datetime],
    handled_until: datetime | None,
    next_at: datetime | None,
) -> list[int]:
    """Enqueue a job for each fire time, unless another process did. Return the ids of the jobs, in order.

    `handled_until`: the last fire time that needs no job any more.
    """
    ids: list[int] = await session.fetchval(
        "fire_schedule",
        due.name,
        due.last_enqueued_at,
        fires,
        handled_until,
        next_at or NEVER,
        due.expression,
        due.timezone,
    )
    return ids


async def trigger_schedule(session: Session, name: str) -> int | None:
    """Enqueue the schedule's job now. Return its id, or None if there is no such schedule."""
    job_id: int | None = await session.fetchval("trigger_schedule", name)
    return job_id


async def disable_schedule(session: Session, due: DueSchedule, why: str) -> bool:
    """Disable a schedule that cannot fire. Return whether it was enabled."""
    return bool(await session.fetchval("disable_schedule", due.name, why, due.expression, due.timezone))


async def pause_schedule(session: Session, name: str, *, paused: bool) -> bool:
    """Pause or resume a schedule. Return whether it exists."""
    return bool(await session.fetchval("pause_schedule", name, paused))


async def delete_schedule(session: Session, name: str, *, even_if_declared: bool = False) -> bool:
    """Delete a schedule. Return whether it existed."""
    row = await session.fetchrow("delete_schedule", name, even_if_declared)
    if row is not None and not row["is_deleted"]:
        raise ScheduleDeclared(
            f'schedule "{name}" is declared in code, by version {row["version"] or "(unnamed)"} of the app, which '
            f"would add it again: `awa cron pause {name}` stops it. If the code no longer declares it, "
            f"`awa cron delete {name} --force` deletes it"
        )
    return row is not None


async def list_schedules(session: Session, name: str | None = None) -> list[ScheduleRow]:
    rows = await session.fetch("list_schedules", name)
    return [
        ScheduleRow(**{**dict(row), "args": json.loads(row["args"]), "options": json.loads(row["options"])})
        for row in rows
    ]
