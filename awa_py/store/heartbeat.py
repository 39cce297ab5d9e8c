"""What a live worker says about itself and its running jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from awa_py.db.types import Record
from awa_py.store.session import Session

SHARE_STALENESS = timedelta(seconds=8)  # how long a worker may be silent and have its share of a queue: four beats


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker as the registry knows it."""

    id: UUID
    hostname: str
    pid: int
    version: str
    queues: tuple[str, ...]
    kinds: tuple[str, ...]
    concurrency: int
    label: str | None = None
    limits: tuple[int, ...] = ()  # how many jobs of each queue; none: as many as it runs at all


async def heartbeat_worker(
    session: Session,
    worker: WorkerInfo,
    *,
    listening: bool = False,
    locked_on: datetime | None = None,
    quiet: bool = False,
    stopping: bool = False,
) -> list[Record]:
    """Enters the worker in the registry, or says that it is still there. What it has to know, a row a queue.

    `locked_on` is what `lock_worker` answered. `quiet` counts where it is entered (again); the registry knows better.
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
        SHARE_STALENESS,
    )


async def lock_worker(session: Session, worker_id: UUID) -> datetime | None:
    """Takes the worker's lock for this session: the end of its last one will be seen. When the server began that keeps
    it; None: nobody keeps it, since a pooler stands in between."""
    began: datetime | None = await session.fetchval("lock_worker", worker_id, session.connection.get_server_pid())
    return began


async def listen_for_jobs(session: Session, worker_id: UUID, queues: Sequence[str]) -> None:
    """From now on, whoever makes a job ready in one of the queues says so."""
    await session.fetch("listen_for_jobs", worker_id, queues)


async def stop_listening(session: Session, worker_id: UUID) -> None:
    """From now on, nobody needs to."""
    await session.fetch("stop_listening", worker_id)


async def remove_worker(session: Session, worker_id: UUID) -> None:
    await session.fetch("remove_worker", worker_id)


async def renew_leases(session: Session, worker_id: UUID, ids: Sequence[int], leases: Sequence[int]) -> dict[int, bool]:
    """Renews leases. The jobs that are still ours, and whether each is to be cancelled."""
    return {row[0]: row[1] for row in await session.fetch("renew_leases", ids, leases, worker_id)}


async def list_cancel_requests(
    session: Session, worker_id: UUID, ids: Sequence[int], leases: Sequence[int]
) -> list[int]:
    return [row[0] for row in await session.fetch("list_cancel_requests", ids, leases, worker_id)]


async def update_progress(
    session: Session, worker_id: UUID, ids: Sequence[int], leases: Sequence[int], progress: Sequence[str]
) -> None:
    await session.fetch("update_progress", ids, leases, worker_id, progress)
