"""The PostgreSQL server: its settings, connections and transactions, and the health of awa's tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from awa_py.store.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server and the login's role."""

    version: str
    version_number: int
    in_recovery: bool
    role: str
    sees_all: bool  # whether the role may see the sessions of other roles


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """The number of connections and their limits. A limit below 0 means none."""

    server_limit: int
    reserved: int
    server_used: int
    database_limit: int
    database_used: int
    role_limit: int
    role_used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that has been open for a long time."""

    pid: int
    role: str | None
    application: str
    client: str
    idle: bool
    blocks_vacuum: bool  # whether vacuum cannot remove rows that were deleted since
    open_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTransaction:
    """A two-phase transaction that was not committed or rolled back."""

    gid: str
    role: str
    open_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSlot:
    """A replication slot that keeps deleted rows from being vacuumed."""

    name: str
    active: bool
    transactions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHealth:
    """A table's rows and sizes, and the state of its autovacuum."""

    name: str
    dead: int
    live: int
    counted: bool  # whether it was ever vacuumed or analyzed
    bytes: int
    index_bytes: int
    autovacuum: bool
    truncated: bool  # whether vacuum returns the empty pages at its end to the system
    vacuum_threshold: float
    since_vacuum_s: float | None


async def get_server(session: Session) -> Server:
    row = await session.fetchrow("get_server")
    assert row is not None
    return Server(**dict(row))


async def list_server_settings(session: Session, names: Sequence[str]) -> dict[str, str]:
    rows = await session.fetch("list_server_settings", names)
    return {row["name"]: row["value"] for row in rows}


async def count_connections(session: Session) -> Connections:
    row = await session.fetchrow("count_connections")
    assert row is not None
    return Connections(**dict(row))


async def list_old_transactions(session: Session, *, older_than: timedelta, limit: int) -> list[OpenTransaction]:
    return [OpenTransaction(**dict(row)) for row in await session.fetch("list_old_transactions", older_than, limit)]


async def list_prepared_transactions(session: Session, *, older_than: timedelta) -> list[PreparedTransaction]:
    return [PreparedTransaction(**dict(row)) for row in await session.fetch("list_prepared_transactions", older_than)]


async def list_replication_slots(session: Session) -> list[ReplicationSlot]:
    return [ReplicationSlot(**dict(row)) for row in await session.fetch("list_replication_slots")]


async def list_table_health(session: Session) -> list[TableHealth]:
    return [TableHealth(**dict(row)) for row in await session.fetch("list_table_health")]
