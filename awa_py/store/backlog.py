"""What waits, and whether workers serve it. Each read is bounded: its cost does not grow with the number of jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from awa_py.store.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingQueue:
    """A queue that has available jobs."""

    name: str
    jobs: int
    waited_s: float
    paused: bool
    paused_until: datetime | None
    throttles: int
    cooldown_s: float | None
    max_workers: int | None
    running: int  # jobs that count against max_workers
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnservedKind:
    """The number of available jobs of a kind that no live worker of the queue can run."""

    queue: str
    kind: str
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueWork:
    """Work that a leader should have done by now: how long ago it was due, and the number of stale jobs."""

    promotion_s: float | None
    deadline_s: float | None
    stale_jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckWaits:
    """Waiting jobs whose children have ended, and the number of those that wait for a signal for very long."""

    parents: Sequence[int]
    long_waits: int


async def list_waiting_queues(
    session: Session, *, limit: int, count_to: int, staleness: timedelta
) -> list[WaitingQueue]:
    """Return the queues that have available jobs. Jobs are counted up to `count_to`."""
    return [WaitingQueue(**dict(row)) for row in await session.fetch("list_waiting_queues", limit, count_to, staleness)]


async def list_unserved_queues(session: Session, *, staleness: timedelta) -> list[str]:
    """Return the queues that have available jobs and no live worker."""
    return [row["name"] for row in await session.fetch("list_unserved_queues", staleness)]


async def list_unserved_kinds(
    session: Session, queues: Sequence[str], *, look_at: int, staleness: timedelta
) -> list[UnservedKind]:
    """Return the unserved kinds among the next `look_at` jobs of each queue and priority."""
    rows = await session.fetch("list_unserved_kinds", queues, look_at, staleness)
    return [UnservedKind(**dict(row)) for row in rows]


async def get_overdue_work(session: Session, *, look_at: int, staleness: timedelta, grace: timedelta) -> OverdueWork:
    """Return what the leader should have done. Only the `look_at` longest running jobs are checked for staleness."""
    row = await session.fetchrow("get_overdue_work", look_at, staleness, grace)
    assert row is not None
    return OverdueWork(**dict(row))


async def get_stuck_waits(session: Session, *, look_at: int, grace: timedelta, long: timedelta) -> StuckWaits:
    """Return the waiting jobs that do not go on, among the first `look_at` of each sort."""
    row = await session.fetchrow("get_stuck_waits", look_at, grace, long)
    assert row is not None
    return StuckWaits(parents=row["parents"], long_waits=row["long_waits"])
