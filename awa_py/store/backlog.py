"""What waits, and for whom: bounded looks that cost the same however many jobs there are."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from awa_py.store.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHeartbeat:
    """A worker of the registry."""

    hostname: str
    pid: int
    version: str
    queues: list[str]
    kinds: list[str]
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingQueue:
    """A queue that has something ready."""

    name: str
    jobs: int
    waited_s: float
    paused: bool
    paused_until: datetime | None
    throttles: int
    cooldown_s: float | None
    max_workers: int | None
    running: int  # of those that count for max_workers
    workers: int


@dataclass(frozen=True, slots=True)
class UnservedKind:
    """Jobs that are next in line, and that no live worker of their queue knows."""

    queue: str
    kind: str
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueWork:
    """What a leader should have done by now."""

    promotion_s: float | None
    deadline_s: float | None
    stale_jobs: int


async def list_heartbeats(session: Session, *, limit: int) -> list[WorkerHeartbeat]:
    """The workers, those that have been silent for longest first."""
    return [WorkerHeartbeat(**dict(row)) for row in await session.fetch("list_heartbeats", limit)]


async def list_waiting_queues(
    session: Session, *, limit: int, count_to: int, staleness: timedelta
) -> list[WaitingQueue]:
    return [WaitingQueue(**dict(row)) for row in await session.fetch("list_waiting_queues", limit, count_to, staleness)]


async def list_unserved_kinds(
    session: Session, queues: Sequence[str], *, look_at: int, staleness: timedelta
) -> list[UnservedKind]:
    return [UnservedKind(*row) for row in await session.fetch("list_unserved_kinds", queues, look_at, staleness)]


async def get_overdue_work(session: Session, *, look_at: int, staleness: timedelta, grace: timedelta) -> OverdueWork:
    row = await session.fetchrow("get_overdue_work", look_at, staleness, grace)
    assert row is not None
    return OverdueWork(**dict(row))
