"""Cron schedules."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

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


async def upsert_schedule(
    session: Session,
    *,
    name: str,
    expression: str,
    timezone: str,
    kind: str,
    args: Mapping[str, Any],
    options: Mapping[str, Any],
    misfire: str,
) -> bool:
    """Create or change a schedule. Return whether anything changed."""
    return bool(
        await session.fetchval(
            "upsert_schedule",
            name,
            expression,
            timezone,
            kind,
            json.dumps(args),
            json.dumps(options),
            misfire,
        )
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


async def delete_schedule(session: Session, name: str) -> bool:
    """Delete a schedule. Return whether it existed."""
    return bool(await session.fetchval("delete_schedule", name))


async def list_schedules(session: Session, name: str | None = None) -> list[ScheduleRow]:
    rows = await session.fetch("list_schedules", name)
    return [
        ScheduleRow(**{**dict(row), "args": json.loads(row["args"]), "options": json.loads(row["options"])})
        for row in rows
    ]
