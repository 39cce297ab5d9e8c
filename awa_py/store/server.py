"""PostgreSQL itself: its settings, its connections, its transactions, and how our tables fare."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from awa_py.store.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server, and who asks."""

    version: str
    version_number: int
    in_recovery: bool
    role: str
    sees_all: bool  # whether the role may see what others' sessions do


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """How many there are and may be; a limit below 0 is none."""

    server_limit: int
    reserved: int
    server_used: int
    database_limit: int
    database_used: int
    role_limit: int
    role_used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that has been open for long, and who holds it."""

    pid: int
    role: str | None
    application: str
    client: str
    idle: bool
    blocks_vacuum: bool  # whether vacuum has to wait for it
    open_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTransaction:
    """A two-phase transaction that nobody has ended."""

    gid: str
    role: str
    open_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSlot:
    """A slot that keeps rows from being vacuumed."""

    name: str
    active: bool
    transactions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHealth:
    """A table's rows and sizes, and whether vacuum comes."""

    name: str
    dead: int
    live: int
    counted: bool  # whether anybody ever counted its rows
    bytes: int
    index_bytes: int
    autovacuum: bool
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
