"""The statements of the maintenance tasks. Each call does one bounded batch and is safe with two leaders at once."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from awa_py.connections import Record
from awa_py.store.backlog import UnservedKind
from awa_py.store.session import Session


@dataclass(frozen=True, slots=True)
class Promoted:
    """Jobs that became available. Nothing that was due before `settled_until` is left."""

    jobs: int
    next_s: float | None  # until the next one is due
    settled_until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RescuedJob:
    """A running job that was taken from its worker. `failed`: no attempt or time is left."""

    id: int
    queue: str
    kind: str
    attempt: int
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleJobs:
    """Jobs that were taken from workers that are presumed dead."""

    jobs: list[RescuedJob]
    looked_at: datetime
    look_interval: timedelta  # how often to look: it follows from the smallest staleness in use


@dataclass(frozen=True, slots=True, kw_only=True)
class LostJobs:
    """Jobs that were taken from workers whose session ended."""

    jobs: list[RescuedJob]
    removed_workers: int  # they had no jobs left
    next_s: float | None  # until another worker is silent for long enough; None: there is no worker


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyPosition:
    """A place in the order of claims."""

    queue: str = ""
    priority: int = 0
    pos: int = 0


async def confirm_leader(session: Session) -> None:
    """Commit a write."""
    await session.fetch("confirm_leader")


async def promote_jobs(session: Session, *, limit: int) -> tuple[int, float | None]:
    """Promote due jobs. Return their number, and the seconds until the next one is due."""
    promoted = await promote_jobs_since(session, None, limit=limit)
    return promoted.jobs, promoted.next_s


async def promote_jobs_since(session: Session, since: datetime | None, *, limit: int) -> Promoted:
    """Promote jobs that were due at `since` or later; None: all due jobs."""
    row = await session.fetchrow("promote_jobs", limit, since)
    assert row is not None
    return Promoted(jobs=row["promoted"], next_s=row["next_s"], settled_until=row["settled_until"])


async def rescue_stale_jobs(
    session: Session,
    *,
    staleness: timedelta,
    limit: int,
    watched: timedelta | None = None,
    looked_at: datetime | None = None,
) -> StaleJobs:
    """End attempts whose heartbeat is stale: running → retryable or failed.

    `watched` is how long the leader has watched the workers, and `looked_at` when it looked before. Without `watched`,
    nothing is waited for.
    """
    row = await session.fetchrow("rescue_stale_jobs", staleness, limit, watched, looked_at)
    assert row is not None
    return StaleJobs(jobs=_rescued_arrays(row), looked_at=row["looked_at"], look_interval=row["look_interval"])


async def rescue_lost_jobs(session: Session, *, silence: timedelta, limit: int) -> LostJobs:
    """End attempts of workers that are silent and whose session has ended: running → retryable or failed."""
    row = await session.fetchrow("rescue_lost_jobs", silence, limit)
    assert row is not None
    return LostJobs(jobs=_rescued_arrays(row), removed_workers=row["removed_workers"], next_s=row["next_s"])


async def rescue_overdue_jobs(session: Session, *, limit: int) -> list[RescuedJob]:
    """End attempts that overran their deadline: running → retryable or failed."""
    return _rescued(await session.fetch("rescue_overdue_jobs", limit))


async def fail_expired_jobs(session: Session, *, limit: int) -> dict[str, int]:
    """Fail waiting jobs whose deadline passed. Return their number by queue."""
    return {row["queue"]: row["jobs"] for row in await session.fetch("fail_expired_jobs", limit)}


async def delete_completed_jobs(session: Session, *, retention: timedelta, limit: int) -> int:
    """Delete completed jobs past their retention that no dropped partition covers. Return how many."""
    return int(await session.fetchval("delete_completed_jobs", retention, limit))


async def delete_dead_jobs(session: Session, *, retention: timedelta, limit: int) -> int:
    """Delete failed and cancelled jobs past their retention. Return how many."""
    return int(await session.fetchval("delete_dead_jobs", retention, limit))


async def delete_free_unique_keys(session: Session, *, after: str, limit: int) -> tuple[str | None, int]:
    """Delete keys that no job holds, among the `limit` keys after `after`.

    Return the key after which to continue (None: that was the last), and the number of deleted keys.
    """
    row = await session.fetchrow("delete_free_unique_keys", after, limit)
    assert row is not None
    return (row["last_key"] if row["seen"] == limit else None), row["deleted"]


async def delete_stray_signals(session: Session, *, after: int, limit: int) -> tuple[int | None, int]:
    """Delete signals of jobs that have completed, among the `limit` signals of the jobs after `after`.

    Return the job after which to continue (None: that was the last), and the number of deleted signals.
    """
    row = await session.fetchrow("delete_stray_signals", after, limit)
    assert row is not None
    return (row["last_job"] if row["seen"] == limit else None), row["deleted"]


async def delete_stray_payloads(session: Session, *, after: int, limit: int) -> tuple[int | None, int]:
    """Delete payloads whose job is gone, among the `limit` payloads of the jobs after `after`.

    Return the job after which to continue (None: that was the last), and the number of deleted payloads.
    """
    row = await session.fetchrow("delete_stray_payloads", after, limit)
    assert row is not None
    return (row["last_job"] if row["seen"] == limit else None), row["deleted"]


async def delete_stale_workers(session: Session, *, staleness: timedelta) -> int:
    """Delete the rows of workers that were silent for ten times the staleness. Return how many."""
    return int(await session.fetchval("delete_stale_workers", staleness))


async def age_jobs(session: Session, *, after: str, queues: int, age: timedelta, limit: int) -> tuple[int, str | None]:
    """Raise the priority of jobs that waited too long, in the next `queues` queues after `after`.

    Return the number of jobs, and the queue after which to continue (None: that was the last).
    """
    row = await session.fetchrow("age_jobs", after, queues, age, limit)
    assert row is not None
    return row["moved"], row["continue_after"]


async def mark_unserved_jobs(
    session: Session, *, after: ReadyPosition, limit: int, staleness: timedelta, grace: timedelta
) -> tuple[list[UnservedKind], ReadyPosition | None]:
    """Add an error to due jobs whose kind no live worker can run, among the `limit` jobs after `after`.

    Return what was marked, and the position after which to continue (None: that was the last).
    """
    row = await session.fetchrow("mark_unserved_jobs", after.queue, after.priority, after.pos, limit, staleness, grace)
    assert row is not None
    marked = [
        UnservedKind(queue=queue, kind=kind, jobs=jobs)
        for queue, kind, jobs in zip(row["queues"], row["kinds"], row["jobs"], strict=True)
    ]
    if row["seen"] < limit:
        return marked, None
    return marked, ReadyPosition(queue=row["last_queue"], priority=row["last_priority"], pos=row["last_pos"])


def _rescued_arrays(row: Record) -> list[RescuedJob]:
    columns = (row["ids"], row["queues"], row["kinds"], row["attempts"], row["failed"])
    return [
        RescuedJob(id=job_id, queue=queue, kind=kind, attempt=attempt, failed=failed)
        for job_id, queue, kind, attempt, failed in zip(*columns, strict=True)
    ]


def _rescued(rows: list[Record]) -> list[RescuedJob]:
    return [
        RescuedJob(
            id=row["id"],
            queue=row["queue"],
            kind=row["kind"],
            attempt=row["attempt"],
            failed=row["retry_at"] is None,
        )
        for row in rows
    ]
