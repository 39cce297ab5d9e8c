"""What ended in each minute: rolled up by the leader, read by people."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from awa_py.observability.latency_histogram import BucketCounts
from awa_py.store.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """What ended in a minute, of a queue and a kind; times in seconds."""

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
    """What ended in some minutes, of a queue and a kind."""

    queue: str
    kind: str
    completed: int
    failed: int
    cancelled: int
    retried: int
    waits: BucketCounts
    runs: BucketCounts
    slots: BucketCounts  # how many jobs ended in each slot of some minutes


async def get_rollup_span(
    session: Session, *, again: int, at_most: timedelta, done: datetime | None
) -> tuple[datetime, datetime]:
    """The first and the last minute that are to be rolled up. `done`: the last that was; None: whatever is there."""
    row = await session.fetchrow("get_rollup_span", again, at_most, done)
    assert row is not None
    return row["first"], row["last"]


async def roll_up_minutes(session: Session, first: datetime, until: datetime) -> int:
    """Counts what ended from one minute on, and before another. How many buckets that changed."""
    async with session.connection.transaction():
        # A BRIN index can be read in no other way, and the leader's session has this switched off.
        await session.connection.execute("SET LOCAL enable_bitmapscan = on")
        return int(await session.fetchval("roll_up_minutes", first, until))


async def delete_old_buckets(session: Session, *, retention: timedelta, limit: int) -> int:
    return int(await session.fetchval("delete_old_buckets", retention, limit))


async def sum_buckets(
    session: Session, first: datetime, *, queue: str | None, kind: str | None, slot_minutes: int
) -> list[BucketSum]:
    """What ended since a minute, by queue and kind."""
    counts: dict[tuple[str, str], dict[str, Any]] = {}
    cells: dict[tuple[str, str], dict[str, Any]] = defaultdict(lambda: {"waits": {}, "runs": {}, "slots": {}})
    for row in await session.fetch("sum_buckets", first, queue, kind, slot_minutes):
        of = (row["queue"], row["kind"])
        if row["how"] == "counts":
            counts[of] = {name: row[name] for name in ("completed", "failed", "cancelled", "retried")}
        else:
            cells[of][row["how"]][row["place"]] = row["jobs"]
    return [BucketSum(queue=of[0], kind=of[1], **counted, **cells[of]) for of, counted in counts.items()]


async def list_buckets(session: Session, first: datetime, *, queue: str | None, kind: str | None) -> list[Bucket]:
    """The minutes themselves, the oldest first."""
    return [Bucket(**dict(row)) for row in await session.fetch("list_buckets", first, queue, kind)]
