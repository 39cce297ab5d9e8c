"""The list of workers, as operators and `awa doctor` read it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from awa_py.store.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A row of `awa.workers`, with the worker's running jobs and its shares of queues."""

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
    slots: dict[str, dict[str, int]]  # by queue with max_workers: {"slots": …, "max_workers": …}

    @property
    def name(self) -> str:
        """Return the worker's label, or its id."""
        return self.label or str(self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueWorker:
    """A live worker of a queue, and its share of it (None: the queue has no max_workers)."""

    id: UUID
    label: str | None
    hostname: str
    pid: int
    slots: int | None
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHeartbeat:
    """A worker, and the time since its last heartbeat."""

    hostname: str
    pid: int
    version: str
    queues: list[str]
    kinds: list[str]
    silent_s: float


async def list_workers(session: Session, *, staleness: timedelta) -> list[WorkerRow]:
    """Return all workers. Those whose heartbeat is older than `staleness` are not alive."""
    rows = await session.fetch("list_workers", staleness)
    return [WorkerRow(**{**dict(row), "slots": json.loads(row["slots"])}) for row in rows]


async def list_queue_workers(session: Session, name: str, *, staleness: timedelta) -> list[QueueWorker]:
    """Return the live workers of a queue."""
    return [QueueWorker(**dict(row)) for row in await session.fetch("list_queue_workers", name, staleness)]


async def list_heartbeats(session: Session, *, limit: int) -> list[WorkerHeartbeat]:
    """Return the workers, the longest silent first."""
    return [WorkerHeartbeat(**dict(row)) for row in await session.fetch("list_heartbeats", limit)]


async def command_workers(
    session: Session, ids: Sequence[UUID], *, quiet: bool | None = None, stop: bool = False
) -> set[UUID]:
    """Tell workers to be quiet or to resume (None: no change), or to stop. Return the ids of those that exist."""
    return {row["id"] for row in await session.fetch("command_workers", ids, quiet, stop)}
