"""The leader's lock and its record."""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from awa_py.db.schema import Schema
from awa_py.settings import DEFAULT_SCHEMA
from awa_py.store.session import Session

LOCK_KEY = 0x4157415F4D41494E  # "AWA_MAIN"


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, and since when."""

    worker_id: UUID
    hostname: str
    pid: int
    epoch: int
    elected_at: datetime


def lock_key(schema: Schema) -> int:
    """The lock of this installation: two schemas in one database never share a leader."""
    if schema.name == DEFAULT_SCHEMA:
        return LOCK_KEY
    digest = hashlib.sha256(schema.name.encode()).digest()
    return LOCK_KEY ^ int.from_bytes(digest[:7], "big")  # 56 bits: the result stays a positive bigint


async def try_lead(session: Session) -> bool:
    """Takes the lock where it is free."""
    return bool(await session.fetchval("try_lead", lock_key(session.schema)))


async def record_election(session: Session, *, worker_id: UUID, hostname: str, pid: int) -> int:
    """Writes who leads. Returns the epoch."""
    return int(await session.fetchval("record_election", worker_id, hostname, pid))


async def terminate_frozen_leader(session: Session, *, silence: timedelta) -> bool:
    """Ends the session of a leader that has been silent for too long. Whether there was one."""
    return bool(await session.fetch("terminate_frozen_leader", lock_key(session.schema), silence))


async def resign(session: Session) -> None:
    """Gives the lock back and tells the candidates."""
    await session.fetch("resign", lock_key(session.schema))


async def get_leader(session: Session) -> Leader | None:
    row = await session.fetchrow("get_leader", lock_key(session.schema))
    return None if row is None else Leader(*row)
