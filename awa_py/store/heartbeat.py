"""What a live worker says about itself and its running jobs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from awa_py.store.session import Session


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


async def beat_worker(session: Session, worker: WorkerInfo, *, listening: bool = False) -> timedelta | None:
    """Enters the worker in the registry, or says that it is still there. The shortest staleness of its queues."""
    shortest: timedelta | None = await session.fetchval(
        "beat_worker",
        worker.id,
        worker.hostname,
        worker.pid,
        worker.version,
        worker.queues,
        worker.kinds,
        worker.concurrency,
        listening,
    )
    return shortest


async def listen_for_jobs(session: Session, worker_id: UUID, queues: Sequence[str]) -> None:
    """From now on, whoever makes a job ready in one of the queues says so."""
    await session.fetch("listen_for_jobs", worker_id, queues)


async def stop_listening(session: Session, worker_id: UUID) -> None:
    """From now on, nobody needs to."""
    await session.fetch("stop_listening", worker_id)


async def remove_worker(session: Session, worker_id: UUID) -> None:
    await session.fetch("remove_worker", worker_id)


async def beat_jobs(session: Session, ids: Sequence[int], leases: Sequence[int]) -> dict[int, bool]:
    """Renews leases. The jobs that are still ours, and whether each is to be cancelled."""
    return {row[0]: row[1] for row in await session.fetch("beat_jobs", ids, leases)}


async def list_cancel_requests(session: Session, ids: Sequence[int], leases: Sequence[int]) -> list[int]:
    return [row[0] for row in await session.fetch("list_cancel_requests", ids, leases)]


async def update_progress(session: Session, ids: Sequence[int], leases: Sequence[int], progress: Sequence[str]) -> None:
    await session.fetch("update_progress", ids, leases, progress)
