"""Queues and their settings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from awa_py.model.job import interval_text
from awa_py.model.rates import Rate
from awa_py.store.session import Session
from awa_py.store.shares import mark_limited_jobs

Setting: TypeAlias = timedelta | Rate | bool | int | None
MARK_BATCH = 1_000  # running jobs that begin to count against a new max_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A queue: its settings (None: the default) and its number of jobs."""

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
    durable_claims: bool
    throttled: bool
    throttled_until: datetime | None
    throttled_at: datetime | None
    throttle_reason: str | None
    throttles: int  # in a row
    created_at: datetime | None
    updated_at: datetime | None
    counts: dict[str, int]
    oldest_available_s: float | None
    workers: int

    @property
    def rate(self) -> Rate | None:
        return None if self.rate_jobs is None or self.rate_period is None else Rate(self.rate_jobs, self.rate_period)


async def ensure_queues(session: Session, names: Sequence[str]) -> None:
    """Create the missing rows of queues. Existing settings stay."""
    await session.fetch("ensure_queues", names)


async def set_queue(session: Session, name: str, settings: Mapping[str, Setting]) -> None:
    """Change the given settings. None restores the default."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key == "rate":
            assert value is None or isinstance(value, Rate)
            values["rate_jobs"] = value and value.count
            values["rate_period"] = value and interval_text(value.period)
        else:
            values[key] = interval_text(value) if isinstance(value, timedelta) else value
    await session.fetch("set_queue", name, json.dumps(values))
    if settings.get("max_workers") is not None:
        while await mark_limited_jobs(session, queue=name, limit=MARK_BATCH) == MARK_BATCH:
            pass


async def pause_queue(
    session: Session, name: str, *, paused: bool, period: timedelta | None = None, until: datetime | None = None
) -> None:
    await session.fetch("pause_queue", name, paused, period, until)


async def unthrottle_queue(session: Session, name: str) -> int | None:
    """End the cooldown of a queue and reset its count. Return how many jobs waited for it; None: no such queue."""
    async with session.connection.transaction():
        row = await session.fetchrow("unthrottle_queue", name)
        if row is None:
            return None
        # A second statement has a new snapshot: it sees jobs that were throttled while the first waited for the row.
        return int(await session.fetchval("release_throttled_jobs", name, row["throttled_until"]))


async def purge_queue(session: Session, name: str, *, limit: int) -> int:
    """Delete up to `limit` jobs that are available, and as many that are scheduled or retryable. Return how many."""
    return int(await session.fetchval("purge_queue", name, limit))


async def list_queues(session: Session, name: str | None = None, *, staleness: timedelta) -> list[QueueRow]:
    rows = await session.fetch("list_queues", name, staleness)
    return [QueueRow(**{**dict(row), "counts": json.loads(row["counts"])}) for row in rows]
