"""The leader's advisory lock and its row."""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from awa_py.db.schema import Schema
from awa_py.settings import DEFAULT_SCHEMA
from awa_py.store.session import Session

LOCK_KEY = 0x4157415F4D41494E  # "AWA_MAIN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The process that leads."""

    worker_id: UUID
    hostname: str
    pid: int
    epoch: int
    elected_at: datetime
    backend_pid: int  # of the session that holds the lock


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A session that holds the leader's lock."""

    pid: int
    role: str
    application_name: str
    leads: bool
    is_frozen: bool

    def __str__(self) -> str:
        name = f" ({self.application_name})" if self.application_name else ""
        return f"the session with PID {self.pid}{name} of role {self.role}"

    @property
    def remedy(self) -> str:
        return f"end it as that role or as a superuser: SELECT pg_terminate_backend({self.pid})"


def lock_key(schema: Schema) -> int:
    """Return the key of the leader's lock. Each schema has its own, so that each has its own leader."""
    if schema.name == DEFAULT_SCHEMA:
        return LOCK_KEY
    digest = hashlib.sha256(schema.name.encode()).digest()
    return LOCK_KEY ^ int.from_bytes(digest[:7], "big")  # 56 bits: the result stays a positive bigint


async def try_lead(session: Session) -> bool:
    """Acquire the lock if it is free. Return whether this session leads."""
    return bool(await session.fetchval("try_lead", lock_key(session.schema)))


async def record_election(session: Session, *, worker_id: UUID, hostname: str, pid: int) -> int:
    """Write the new leader. Return its epoch."""
    return int(await session.fetchval("record_election", worker_id, hostname, pid))


async def terminate_frozen_leader(session: Session, *, silence: timedelta) -> bool:
    """End the session of a leader that was silent for longer than `silence`. Return whether there was one."""
    return bool(await session.fetch("terminate_frozen_leader", lock_key(session.schema), silence))


async def resign(session: Session) -> None:
    """Release the lock and notify the candidates."""
    await session.fetch("resign", lock_key(session.schema))


async def list_lock_holders(session: Session, *, silence: timedelta) -> list[LockHolder]:
    """Return the sessions that hold the lock. One that was silent for longer than `silence` is frozen."""
    rows = await session.fetch("list_lock_holders", lock_key(session.schema), silence)
    return [LockHolder(**dict(row)) for row in rows]


async def get_leader(session: Session) -> Leader | None:
    row = await session.fetchrow("get_leader", lock_key(session.schema))
    return None if row is None else Leader(**dict(row))
