"""The roll-ups: what ended in each minute, by queue and kind."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from awa_py.observability.latency_histogram import BucketCounts
from awa_py.store.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """What ended in one minute, of one queue and kind. Percentiles are in seconds."""

    at: datetime
    queue: str
    kind: str
    completed: int
    failed: int
    cancelled: int
    retried: int
    wait_p50: float | None
    wait_p95: float | None
    wait_p99: float | None
    run_p50: float | None
    run_p95: float | None
    run_p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSum:
    """What ended in a period, of one queue and kind."""

    queue: str
    kind: str
    completed: int
    failed: int
    cancelled: int
    retried: int
    waits: BucketCounts
    runs: BucketCounts
    slots: BucketCounts  # the number of jobs that ended in each slot of `slot_minutes`


async def get_rollup_span(
    session: Session, *, again: int, at_most: timedelta, done: datetime | None
) -> tuple[datetime, datetime]:
    """Return the first and the last minute to roll up. `done`: the last one that was rolled up; None: read it."""
    row = await session.fetchrow("get_rollup_span", again, at_most, done)
    assert row is not None
    return row["first"], row["last"]


async def roll_up_minutes(session: Session, first: datetime, until: datetime) -> int:
    """Roll up the minutes from `first` until before `until`. Return the number of buckets written."""
    async with session.connection.transaction():
        # A BRIN index is only read by a bitmap scan, which the leader's session has disabled.
        await session.connection.execute("SET LOCAL enable_bitmapscan = on")
        return int(await session.fetchval("roll_up_minutes", first, until))


async def delete_old_buckets(session: Session, *, retention: timedelta, limit: int) -> int:
    return int(await session.fetchval("delete_old_buckets", retention, limit))


async def sum_buckets(
    session: Session, first: datetime, *, queue: str | None, kind: str | None, slot_minutes: int
) -> list[BucketSum]:
    """Return what ended since `first`, by queue and kind."""
    counts: dict[tuple[str, str], dict[str, Any]] = {}
    histograms: dict[tuple[str, str], dict[str, Any]] = defaultdict(lambda: {"waits": {}, "runs": {}, "slots": {}})
    for row in await session.fetch("sum_buckets", first, queue, kind, slot_minutes):
        group = (row["queue"], row["kind"])
        if row["part"] == "counts":
            counts[group] = {name: row[name] for name in ("completed", "failed", "cancelled", "retried")}
        else:
            histograms[group][row["part"]][row["bucket"]] = row["jobs"]
    return [BucketSum(queue=group[0], kind=group[1], **counts[group], **histograms[group]) for group in counts]


async def list_buckets(session: Session, first: datetime, *, queue: str | None, kind: str | None) -> list[Bucket]:
    """Return the buckets since `first`, oldest first."""
    return [Bucket(**dict(row)) for row in await session.fetch("list_buckets", first, queue, kind)]
