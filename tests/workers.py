"""Rows of the list of workers, without a worker."""

from typing import Any
from uuid import UUID

from awa_py.store.heartbeat import WorkerInfo
from awa_py.store.session import Session
from tests.support import new_owner, seconds


def worker_info(
    *queues: str, worker_id: UUID | None = None, kind: str = "work", concurrency: int = 100, **more: Any
) -> WorkerInfo:
    """Return what a worker of the queues (by default "email") writes into the list of workers."""
    return WorkerInfo(
        id=worker_id or new_owner(),
        hostname="h",
        pid=1,
        version="1",
        queues=queues or ("email",),
        kinds=(kind,),
        concurrency=concurrency,
        **more,
    )


async def set_silence(session: Session, worker_id: UUID, silent_s: float) -> None:
    """Make the worker's last heartbeat this old."""
    await session.connection.execute(
        "UPDATE awa.workers SET heartbeat_at = now() - $2::interval WHERE id = $1", worker_id, seconds(silent_s)
    )
