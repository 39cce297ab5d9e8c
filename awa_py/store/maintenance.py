"""What the leader does: each function is one bounded batch, and safe with two leaders at once."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from awa_py.db.types import Record
from awa_py.store.session import Session


@dataclass(frozen=True, slots=True)
class Promoted:
    """Jobs that became available; what was due before `settled_until` is among them, or was before."""

    jobs: int
    next_s: float | None  # until the next one is due
    settled_until: datetime


@dataclass(frozen=True, slots=True)
class RescuedJob:
    """A running job that was taken from its worker; `failed` where its attempts or its time were used up."""

    id: int
    queue: str
    kind: str
    attempt: int
    failed: bool


@dataclass(frozen=True, slots=True)
class LostJobs:
    """Jobs that were taken from workers that are gone."""

    jobs: list[RescuedJob]
    workers: int  # so many had none left, and were taken out of the registry
    next_s: float | None  # until another worker will have been silent for long enough; None: there is none


@dataclass(frozen=True, slots=True)
class Unserved:
    """Due jobs of a kind that no live worker of the queue knows."""

    queue: str
    kind: str
    jobs: int


@dataclass(frozen=True, slots=True)
class ReadyPosition:
    """A place in the order of claims."""

    queue: str = ""
    priority: int = 0
    pos: int = 0


async def promote_jobs(session: Session, *, limit: int) -> tuple[int, float | None]:
    """scheduled, retryable → available. How many, and the seconds until the next one is due."""
    promoted = await promote_jobs_since(session, None, limit=limit)
    return promoted.jobs, promoted.next_s


async def promote_jobs_since(session: Session, since: datetime | None, *, limit: int) -> Promoted:
    """scheduled, retryable → available, for what was due then or later; None: for all that is due."""
    row = await session.fetchrow("promote_jobs", limit, since)
    assert row is not None
    return Promoted(*row)


async def rescue_stale_jobs(session: Session, *, staleness: timedelta, limit: int) -> list[RescuedJob]:
    """running → retryable or failed, where the heartbeat is stale."""
    return _rescued(await session.fetch("rescue_stale_jobs", staleness, limit))


async def rescue_lost_jobs(session: Session, *, silence: timedelta, limit: int) -> LostJobs:
    """running → retryable or failed, where the worker has been silent for so long and its session has ended."""
    rows = await session.fetch("rescue_lost_jobs", silence, limit)
    (summary,) = (row for row in rows if row["id"] is None)
    return LostJobs(_rescued([row for row in rows if row["id"] is not None]), summary["removed"], summary["next_s"])


async def rescue_overdue_jobs(session: Session, *, limit: int) -> list[RescuedJob]:
    """running → retryable or failed, where the attempt overran its deadline."""
    return _rescued(await session.fetch("rescue_overdue_jobs", limit))


async def fail_expired_jobs(session: Session, *, limit: int) -> dict[str, int]:
    """available, scheduled → failed, where the absolute deadline passed. How many of each queue."""
    return {row[0]: row[1] for row in await session.fetch("fail_expired_jobs", limit)}


async def delete_completed_jobs(session: Session, *, retention: timedelta, limit: int) -> int:
    return int(await session.fetchval("delete_completed_jobs", retention, limit))


async def delete_dead_jobs(session: Session, *, retention: timedelta, limit: int) -> int:
    return int(await session.fetchval("delete_dead_jobs", retention, limit))


async def delete_free_unique_keys(session: Session, *, after: str, limit: int) -> tuple[str | None, int]:
    """Deletes free keys in a window of them. The key to go on after (None: at the end), and how many it deleted."""
    row = await session.fetchrow("delete_free_unique_keys", after, limit)
    assert row is not None
    return (row["last_key"] if row["seen"] == limit else None), row["deleted"]


async def delete_stale_workers(session: Session, *, staleness: timedelta) -> int:
    return int(await session.fetchval("delete_stale_workers", staleness))


async def age_jobs(session: Session, *, after: str, queues: int, age: timedelta, limit: int) -> tuple[int, str | None]:
    """Moves up what has waited for long. How many, and the queue to go on after (None: at the end)."""
    row = await session.fetchrow("age_jobs", after, queues, age, limit)
    assert row is not None
    return row["moved"], row["go_on_after"]


async def mark_unserved_jobs(
    session: Session, *, after: ReadyPosition, limit: int, staleness: timedelta, grace: timedelta
) -> tuple[list[Unserved], ReadyPosition | None]:
    """Says of due jobs that nobody knows their kind. What it marked, and where to go on (None: at the end)."""
    rows = await session.fetch("mark_unserved_jobs", after.queue, after.priority, after.pos, limit, staleness, grace)
    marked = [Unserved(row["queue"], row["kind"], row["jobs"]) for row in rows if row["kind"] is not None]
    ends = [row for row in rows if row["kind"] is None]
    if not ends or ends[0]["jobs"] < limit:
        return marked, None
    return marked, ReadyPosition(ends[0]["queue"], ends[0]["priority"], ends[0]["pos"])


def _rescued(rows: list[Record]) -> list[RescuedJob]:
    return [RescuedJob(row["id"], row["queue"], row["kind"], row["attempt"], row["retry_at"] is None) for row in rows]
