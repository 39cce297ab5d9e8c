"""What a live worker writes about itself and its running jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from awa_py.connections import Record
from awa_py.settings import Settings
from awa_py.store.session import Session

DEFAULT_SHARE_STALENESS = Settings().share_staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker, as its row in `awa.workers` describes it."""

    id: UUID
    hostname: str
    pid: int
    version: str
    queues: tuple[str, ...]
    kinds: tuple[str, ...]
    concurrency: int
    label: str | None = None
    limits: tuple[int, ...] = ()  # the slots of each queue; empty: `concurrency` for each


async def heartbeat_worker(
    session: Session,
    worker: WorkerInfo,
    *,
    listening: bool = False,
    locked_on: datetime | None = None,
    quiet: bool = False,
    stopping: bool = False,
    share_staleness: timedelta = DEFAULT_SHARE_STALENESS,
) -> list[Record]:
    """Insert the worker's row or renew its heartbeat. Return the directives for the worker, one row per queue.

    `locked_on` is the result of `lock_worker`. `quiet` is used only if the row is inserted; later the row decides.
    """
    return await session.fetch(
        "heartbeat_worker",
        worker.id,
        worker.hostname,
        worker.pid,
        worker.version,
        worker.queues,
        worker.kinds,
        worker.concurrency,
        listening,
        worker.label,
        worker.limits,
        locked_on,
        quiet,
        stopping,
        share_staleness,
    )


async def lock_worker(session: Session, worker_id: UUID) -> datetime | None:
    """Acquire the worker's advisory lock for this session, so that others can see when its last session ends.

    Return the start time of the server that holds the lock. None: no lock, because of a pooler in between.
    """
    server_started_at: datetime | None = await session.fetchval(
        "lock_worker", worker_id, session.connection.get_server_pid()
    )
    return server_started_at


async def listen_for_jobs(session: Session, worker_id: UUID, queues: Sequence[str]) -> None:
    """Subscribe to wake-ups of the queues."""
    await session.fetch("listen_for_jobs", worker_id, queues)


async def stop_listening(session: Session, worker_id: UUID) -> None:
    """Unsubscribe from all wake-ups."""
    await session.fetch("stop_listening", worker_id)


async def remove_worker(session: Session, worker_id: UUID) -> None:
    await session.fetch("remove_worker", worker_id)


async def renew_leases(session: Session, worker_id: UUID, ids: Sequence[int], leases: Sequence[int]) -> dict[int, bool]:
    """Renew leases. Return the jobs whose leases were renewed, and whether each is to be cancelled."""
    return {row["id"]: row["cancel"] for row in await session.fetch("renew_leases", ids, leases, worker_id)}


async def check_leases(session: Session, worker_id: UUID, ids: Sequence[int], leases: Sequence[int]) -> dict[int, bool]:
    """Return the jobs that the worker still holds, and whether each is to be cancelled, without renewing a lease."""
    return {row["id"]: row["cancel"] for row in await session.fetch("check_leases", ids, leases, worker_id)}


async def update_progress(
    session: Session, worker_id: UUID, ids: Sequence[int], leases: Sequence[int], progress: Sequence[str]
) -> None:
    await session.fetch("update_progress", ids, leases, worker_id, progress)
