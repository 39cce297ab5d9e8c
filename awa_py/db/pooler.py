"""Detect PgBouncer and other poolers by their behaviour, and connect through them.

In transaction mode, a client has a server's session for one transaction only. Session state (locks, LISTEN, settings,
prepared statements) is lost after it or, worse, ends up in another client's session.
"""

import asyncio
import random
from enum import Enum

import asyncpg

from awa_py.connections import DedicatedConnection
from awa_py.db.servers import Servers

PROBE_ROUNDS = 40  # with two server sessions that other clients use too, about every second round detects the sharing
PROBE_TIMEOUT_S = 20.0
REFUSED_SETTING = "unsupported startup parameter"


class PoolerMode(Enum):
    """What a connection shares with other clients."""

    NONE = "none"  # no pooler
    SESSION = "session"  # a pooler, but the session is ours while we are connected
    TRANSACTION = "transaction"  # the session is ours for one transaction


class PooledConnection(DedicatedConnection):
    """A connection that relies on no session state.

    It must be opened without a statement cache: asyncpg then sends all messages of a statement in one transaction.
    """

    def get_reset_query(self) -> str:
        return ""  # a reset would reach another client's session


class OwnPooledConnection(PooledConnection):
    """A pooled connection on which only awa runs statements. Each transaction has to set the OWN_SETTINGS."""

    sets_own_settings_per_transaction = True


class DirectConnection(DedicatedConnection):
    """A connection without a pooler. Its reset calls the functions of PostgreSQL, whatever the search path is."""

    def get_reset_query(self) -> str:
        return super().get_reset_query().replace("SELECT pg_advisory", "SELECT pg_catalog.pg_advisory")


class OwnDirectConnection(DirectConnection):
    """A connection without a pooler on which only awa runs statements. They leave nothing behind in the session."""

    def get_reset_query(self) -> str:
        return ""  # it would be a round trip of its own for every statement


class SessionlessConnector:
    """Open connections that rely on no session state. Detect whether they lead through a pooler."""

    def __init__(
        self, servers: Servers, direct_settings: dict[str, str], *, is_own: bool, is_pooled: bool | None = None
    ) -> None:
        """`direct_settings` apply to connections without a pooler. `is_pooled`: None means that it is not known yet.

        `is_own`: only awa runs statements on the connections.
        """
        self._servers = servers
        self._direct_class = OwnDirectConnection if is_own else DirectConnection
        self._pooled_class = OwnPooledConnection if is_own else PooledConnection
        self._direct_settings = direct_settings
        self._is_pooled = is_pooled

    async def connect(self, application_name: str) -> DedicatedConnection:
        if not self._is_pooled:
            connection = await self._try_direct(application_name)
            if connection is not None:
                self._is_pooled = False
                return connection
            self._is_pooled = True
        return await connect_pooled(self._servers, application_name, self._pooled_class)

    async def _try_direct(self, application_name: str) -> DedicatedConnection | None:
        try:
            connection = await self._servers.connect(
                application_name, settings=self._direct_settings, connection_class=self._direct_class
            )
        except asyncpg.ProtocolViolationError as error:
            if REFUSED_SETTING in str(error):
                return None
            raise
        if self._is_pooled is False or await is_direct(connection):
            return connection
        await connection.close()
        return None


async def connect_pooled(
    servers: Servers, application_name: str, connection_class: type[PooledConnection] = PooledConnection
) -> DedicatedConnection:
    """Open a connection that needs nothing of a pooler but transactions."""
    return await servers.connect(application_name, connection_class=connection_class, statement_cache_size=0)


async def is_direct(connection: DedicatedConnection) -> bool:
    """Return True if no pooler is in between. A pooler reports a made-up backend PID when a client connects."""
    # As one simple query, which needs no session state and leaves none behind.
    status = await connection.execute(f"SELECT WHERE {is_backend_pid(connection.get_server_pid())}")
    return status == "SELECT 1"


def is_backend_pid(pid: int) -> str:
    """Return a condition that is true in the session with this backend PID, whatever its search path is."""
    return f"pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) {pid}"


async def detect_pooler(servers: Servers) -> PoolerMode:
    """Probe the servers' URL with one or two connections."""
    first = await connect_pooled(servers, "awa probe")
    try:
        if await is_direct(first):
            return PoolerMode.NONE
        second = await connect_pooled(servers, "awa probe")
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                return PoolerMode.TRANSACTION if await _share_sessions(first, second) else PoolerMode.SESSION
        finally:
            second.terminate()
    finally:
        first.terminate()


async def _share_sessions(first: DedicatedConnection, second: DedicatedConnection) -> bool:
    """Return True if both connections are served by the same session, or the first one by two sessions."""
    pid = await _backend_pid(first)
    for _ in range(PROBE_ROUNDS):
        for _ in range(random.randrange(3)):  # a round-robin pooler must not stay in step with this loop
            await _backend_pid(second)
        if await _backend_pid(first) != pid:
            return True
        async with second.transaction():
            if await _backend_pid(second) == pid or await _backend_pid(first) != pid:
                return True
    return False


async def _backend_pid(connection: DedicatedConnection) -> int:
    return int(await connection.fetchval("SELECT pg_catalog.pg_backend_pid()"))
