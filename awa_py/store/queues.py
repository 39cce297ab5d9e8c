"""Queues and workers as operators see them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

from awa_py.model.rates import Rate
from awa_py.store.session import Session
from awa_py.store.shares import mark_limited_jobs

Setting: TypeAlias = timedelta | Rate | bool | int | None
MARKED = 1_000  # jobs that run already, and count from now on: so many at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A queue: its settings (None: the default) and its jobs."""

    name: str
    paused: bool
    paused_until: datetime | None
    backoff_enabled: bool
    backoff_base: timedelta | None
    backoff_max: timedelta | None
    completed_retention: timedelta | None
    failed_retention: timedelta | None
    timeout: timedelta | None
    staleness: timedelta | None
    max_workers: int | None
    rate_jobs: int | None
    rate_period: timedelta | None
    rate_tokens: float | None
    rate_refilled_at: datetime | None
    aging: timedelta | None  # 0: off
    fair: bool
    throttled: bool
    throttled_until: datetime | None
    throttled_at: datetime | None
    throttle_reason: str | None
    throttles: int  # in a row, as of now
    created_at: datetime | None
    updated_at: datetime | None
    counts: dict[str, int]
    oldest_available_s: float | None
    workers: int

    @property
    def rate(self) -> Rate | None:
        return None if self.rate_jobs is None or self.rate_period is None else Rate(self.rate_jobs, self.rate_period)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueWorker:
    """A live worker of a queue, and its part in it: the slots that the leader gave it (None: none of its own)."""

    id: UUID
    label: str | None
    hostname: str
    pid: int
    slots: int | None
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A worker of the registry."""

    id: UUID
    label: str | None
    hostname: str
    pid: int
    version: str
    queues: list[str]
    limits: list[int]
    kinds: list[str]
    concurrency: int
    quiet: bool
    stopping: bool
    started_at: datetime
    heartbeat_at: datetime
    silent_s: float
    alive: bool
    locked_on: datetime | None
    running: int
    slots: dict[str, dict[str, int]]  # its part of each queue that has max_workers, and the whole

    @property
    def name(self) -> str:
        """How people call it."""
        return self.label or str(self.id)


async def ensure_queues(session: Session, names: Sequence[str]) -> None:
    """Gives each queue a row; what an operator set stays."""
    await session.fetch("ensure_queues", names)


async def set_queue(session: Session, name: str, settings: Mapping[str, Setting]) -> None:
    """Sets what is named; None sets the default again."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key == "rate":
            assert value is None or isinstance(value, Rate)
            values["rate_jobs"] = value and value.count
            values["rate_period"] = value and _interval(value.period)
        else:
            values[key] = _interval(value) if isinstance(value, timedelta) else value
    await session.fetch("set_queue", name, json.dumps(values))
    if settings.get("max_workers") is not None:
        while await mark_limited_jobs(session, queue=name, limit=MARKED) == MARKED:
            continue


async def pause_queue(
    session: Session, name: str, *, paused: bool, period: timedelta | None = None, until: datetime | None = None
) -> None:
    await session.fetch("pause_queue", name, paused, period, until)


async def unthrottle_queue(session: Session, name: str) -> int | None:
    """Ends the rest of a queue, and forgets how often it had to. How many jobs waited for that; None: no such queue."""
    async with session.connection.transaction():
        row = await session.fetchrow("unthrottle_queue", name)
        if row is None:
            return None
        # A statement of its own: it sees the jobs that were being throttled while the first one waited for the row.
        return int(await session.fetchval("release_throttled_jobs", name, row["throttled_until"]))


async def purge_queue(session: Session, name: str, *, limit: int) -> int:
    """Deletes up to `limit` waiting jobs of each kind of waiting. How many."""
    return int(await session.fetchval("purge_queue", name, limit))


async def list_queues(session: Session, name: str | None = None, *, staleness: timedelta) -> list[QueueRow]:
    rows = await session.fetch("list_queues", name, staleness)
    return [QueueRow(**{**dict(row), "counts": json.loads(row["counts"])}) for row in rows]


async def list_queue_workers(session: Session, name: str, *, staleness: timedelta) -> list[QueueWorker]:
    return [QueueWorker(**dict(row)) for row in await session.fetch("list_queue_workers", name, staleness)]


async def list_workers(session: Session, *, staleness: timedelta) -> list[WorkerRow]:
    rows = await session.fetch("list_workers", staleness)
    return [WorkerRow(**{**dict(row), "slots": json.loads(row["slots"])}) for row in rows]


async def command_workers(
    session: Session, ids: Sequence[UUID], *, quiet: bool | None = None, stop: bool = False
) -> set[UUID]:
    """Tells workers to be quiet or to go on (None: as they were), or to stop. Those that are still in the registry."""
    return {row[0] for row in await session.fetch("command_workers", ids, quiet, stop)}


def _interval(value: timedelta) -> str:
    return f"{value.total_seconds():.6f} seconds"
