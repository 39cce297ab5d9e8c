"""PgBouncer and its like, between us and PostgreSQL: told by what they do, and what works through them.

In transaction mode, a client has a server's session for the length of a transaction: whatever a session keeps (locks,
LISTEN, settings, prepared statements) is lost between two of them, or, worse, is somebody else's.
"""

import asyncio
import random
from enum import Enum
from typing import TYPE_CHECKING

import asyncpg

if TYPE_CHECKING:  # asyncpg's classes are generic in its stubs only
    Plain = asyncpg.Connection[asyncpg.Record]
else:
    Plain = asyncpg.Connection

CONNECT_TIMEOUT_S = 10.0
ROUNDS = 40  # two sessions that others use too are the hardest to tell: about every second round gives it away
PROBE_TIMEOUT_S = 20.0
REFUSED_SETTING = "unsupported startup parameter"


class Pooling(Enum):
    """What stands between a connection and its session."""

    NONE = "none"
    SESSION = "session"  # a pooler, but the session is ours while we are connected
    TRANSACTION = "transaction"  # the session is ours for a transaction


class PooledConnection(Plain):
    """A connection that needs no session. Without names for its statements, asyncpg sends all parts of one within a
    transaction."""

    def get_reset_query(self) -> str:
        return ""  # there is no session to reset, but for other people's


class Opener:
    """Opens connections that need no session, and finds out by itself whether they lead through a pooler."""

    def __init__(self, url: str, settings: dict[str, str], *, pooled: bool | None = None) -> None:
        """`settings` are for those that do not. `pooled` None: not known yet."""
        self._url = url
        self._settings = settings
        self._pooled = pooled

    async def open(self, name: str) -> Plain:
        """A new connection, shown by that name."""
        if not self._pooled:
            connection = await self._try_directly(name)
            if connection is not None:
                self._pooled = False
                return connection
            self._pooled = True
        return await open_pooled(self._url, name)

    async def _try_directly(self, name: str) -> Plain | None:
        settings = {"application_name": name, **self._settings}
        try:
            connection = await asyncpg.connect(self._url, timeout=CONNECT_TIMEOUT_S, server_settings=settings)
        except asyncpg.ProtocolViolationError as error:
            if REFUSED_SETTING in str(error):
                return None
            raise
        if self._pooled is False or await is_direct(connection):
            return connection
        await connection.close()
        return None


async def open_pooled(url: str, name: str) -> PooledConnection:
    """A connection that asks nothing of a pooler but transactions."""
    return await asyncpg.connect(
        url,
        timeout=CONNECT_TIMEOUT_S,
        connection_class=PooledConnection,
        statement_cache_size=0,
        server_settings={"application_name": name},
    )


async def is_direct(connection: Plain) -> bool:
    """Whether the session's process is the one that introduced itself: a pooler makes up a number of its own."""
    # In one message, which needs no session, and leaves nothing in one.
    status = await connection.execute(f"SELECT WHERE pg_backend_pid() = {connection.get_server_pid()}")
    return status == "SELECT 1"


async def pooling(url: str) -> Pooling:
    """What stands between this address and a session."""
    first = await open_pooled(url, "awa probe")
    try:
        if await is_direct(first):
            return Pooling.NONE
        second = await open_pooled(url, "awa probe")
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                return Pooling.TRANSACTION if await _share_sessions(first, second) else Pooling.SESSION
        finally:
            second.terminate()
    finally:
        first.terminate()


async def _share_sessions(first: Plain, second: Plain) -> bool:
    """Whether two live connections are seen in one session, or one of them in two."""
    session = await _pid(first)
    for _ in range(ROUNDS):
        for _ in range(random.randrange(3)):  # a pooler that takes turns must not keep step with us
            await _pid(second)
        if await _pid(first) != session:
            return True
        async with second.transaction():
            if await _pid(second) == session or await _pid(first) != session:
                return True
    return False


async def _pid(connection: Plain) -> int:
    return int(await connection.fetchval("SELECT pg_backend_pid()"))
