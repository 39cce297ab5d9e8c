"""Connections to PostgreSQL: how they are made, named, and told apart from broken ones."""

import asyncio
import logging
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from awa_py.db.pooler import CONNECT_TIMEOUT_S, Opener, Pooling, pooling
from awa_py.errors import ConfigError, DatabaseUnavailable, NotPermitted, SessionNotKept
from awa_py.observability.metrics import Metrics
from awa_py.settings import DEFAULT_SCHEMA
from awa_py.text import describe as describe
from awa_py.text import short_duration

logger = logging.getLogger("awa.db")

Record: TypeAlias = asyncpg.Record
if TYPE_CHECKING:  # asyncpg's classes are generic in its stubs only
    OwnConnection: TypeAlias = asyncpg.Connection[Record]
    Connection: TypeAlias = OwnConnection | PoolConnectionProxy[Record]
    Pool: TypeAlias = asyncpg.Pool[Record]
else:
    OwnConnection = asyncpg.Connection
    Connection = OwnConnection | PoolConnectionProxy
    Pool = asyncpg.Pool

CLOSE_TIMEOUT_S = 2.0
ANSWER_S = 75.0  # longer than any statement of ours: a proxy has swallowed the answer
RECONNECT_DELAYS_S = (0.1, 0.25, 0.5, 1.0)
FIRST_SILENCE_S = 60.0  # between two warnings of the same; each is twice as long as the one before
LONGEST_SILENCE_S = 600.0

# The session is gone, or of no use any more (a demoted primary): another one may work.
CONNECTION_LOST = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
# The database said no: trying again without a change would be answered the same way.
CONNECTION_REFUSED = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ClientConfigurationError,
)

# Our tables change size by orders of magnitude within seconds. A plan that was best for an empty one, kept in a
# prepared statement, would be a disaster on a full one: these sessions always go through the index.
STABLE_PLANS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",  # the same plan whatever the values: making it costs more than running it
}
# Whoever has waited for a lock has to see what the one before has done, whatever the database is set to.
READ_COMMITTED = {"default_transaction_isolation": "read committed"}
# A peer that vanished without a word is noticed by PostgreSQL, and its locks with it.
KEEPALIVE = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
# And so is a server: one that was cut off sends no end, and a statement would wait for its answer for many minutes.
CLIENT_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 15_000}


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema that awa lives in. SQL is written for `awa`; this puts the real name in its place."""

    name: str = DEFAULT_SCHEMA

    def __post_init__(self) -> None:
        if not self.name or len(self.name.encode()) > 50 or re.search(r"[\x00-\x1f'\"\\%$.]", self.name):
            raise ConfigError(
                f"schema {self.name!r}: a schema's name has 1 to 50 bytes, without quotes, dots, %, $ or backslashes"
            )
        if self.name.startswith("pg_"):
            raise ConfigError(f"schema {self.name!r}: names that begin with pg_ belong to PostgreSQL")

    def qualify(self, sql: str) -> str:
        """`awa.table` becomes `"name".table`, `'awa'` becomes `'name'`, and `"awa_role"` becomes `"name_role"`."""
        named = re.sub(r'"awa(_\w+)?"', lambda found: f'"{self.name}{found[1] or ""}"', sql)
        named = re.sub(r"\bawa\.(?=\w|%)", lambda _: f'"{self.name}".', named)
        return named.replace("'awa'", f"'{self.name}'")

    @property
    def channel(self) -> str:
        """Where this installation's workers are told things."""
        return self.name

    @property
    def leader_channel(self) -> str:
        """Where its leader and the candidates are."""
        return f"{self.name}:leader"


@dataclass(frozen=True, slots=True)
class Database:
    """Where the jobs are. Where `url` leads through a pooler, `direct_url` goes past it."""

    url: str = field(repr=False)
    schema: Schema
    direct_url: str | None = field(default=None, repr=False)

    async def connect(
        self, role: str, settings: Mapping[str, str] | None = None, *, answer_s: float | None = None
    ) -> OwnConnection:
        """A new session, shown as `awa ROLE` in pg_stat_activity; an error where a pooler would not let us keep it.
        `answer_s` is how long an answer may take; None: for ever."""
        url = self.direct_url or self.url
        connection = await asyncpg.connect(
            url,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=answer_s,
            server_settings={"application_name": f"awa {role}"},
        )
        _watch(connection)
        try:
            await self._set(connection, {**READ_COMMITTED, **KEEPALIVE, **(settings or {})})
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _set(self, connection: OwnConnection, settings: Mapping[str, str]) -> None:
        # Not when it connects: poolers refuse settings there, or forget them. And not before it is known where they
        # go: a pooler gives connections that it names itself, and may give somebody else the session afterwards.
        sets = ", ".join(f"set_config({_literal(name)}, {_literal(value)}, false)" for name, value in settings.items())
        to_ourselves = f"SELECT {sets} WHERE pg_backend_pid() = {connection.get_server_pid()}"
        if await connection.execute(to_ourselves, timeout=CONNECT_TIMEOUT_S) == "SELECT 1":
            return
        if await pooling(self.direct_url or self.url) is Pooling.TRANSACTION:
            raise _not_kept(self.direct_url is not None)
        await connection.execute(f"SELECT {sets}", timeout=CONNECT_TIMEOUT_S)

    async def check_direct_url(self, session: OwnConnection) -> None:
        """An error where the two URLs lead to different places: jobs would be enqueued here, and looked for there."""
        if self.direct_url is None:
            return
        place = "SELECT current_database(), pg_postmaster_start_time()"
        try:
            pooled = await self._opener().open("awa registry")
        except (*CONNECTION_LOST, *CONNECTION_REFUSED) as error:
            logger.warning("cannot connect through the pooler: %s", describe(error))
            return
        try:
            same = await pooled.fetchrow(place) == await session.fetchrow(place)
        finally:
            await pooled.close(timeout=CLOSE_TIMEOUT_S)
        if not same:
            raise ConfigError(
                "AWA_DIRECT_URL leads to another database than AWA_DATABASE_URL: they have to be the same"
            )

    async def connect_or_explain(self, role: str) -> OwnConnection:
        """A new connection that need not keep a session, or a sentence that says why there is none."""
        try:
            return await self._opener().open(f"awa {role}")
        except (*CONNECTION_LOST, *CONNECTION_REFUSED, ValueError) as error:
            raise DatabaseUnavailable(f"cannot connect to the database: {describe(error)}") from error

    def pool(self, *, max_size: int) -> Pool:
        """A pool that opens its connections when they are needed."""
        opener = self._opener()

        async def connect(*_: object, **__: object) -> OwnConnection:
            return await opener.open("awa client")

        return asyncpg.create_pool(min_size=0, max_size=max_size, connect=connect)

    def _opener(self) -> Opener:
        return Opener(self.url, KEEPALIVE, pooled=True if self.direct_url else None)


class _Trouble:
    """A database that is away: said at once, and then less and less often."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._began = self._warn_at = time.monotonic()
        self._silence_s = FIRST_SILENCE_S

    def goes_on(self, error: Exception) -> None:
        now = time.monotonic()
        is_due = now >= self._warn_at
        level = logging.WARNING if is_due else logging.DEBUG
        logger.log(level, "%s: cannot reach the database%s, trying again: %s", self._role, self.length, describe(error))
        if is_due:
            self._warn_at = now + self._silence_s
            self._silence_s = min(2 * self._silence_s, LONGEST_SILENCE_S)

    @property
    def length(self) -> str:
        """How long it lasts by now, in words, where that is worth a word."""
        seconds = time.monotonic() - self._began
        return f" (for {short_duration(timedelta(seconds=seconds))})" if seconds >= 1 else ""


class ReconnectingConnection:
    """A dedicated connection that comes back: whoever asks for it waits until the database is there.

    Refusals (a wrong password, a missing database) are waited out too, since an operator may be at work; before the
    first success, though, they are taken for a mistake and raised, where `strict` says so.
    """

    def __init__(
        self,
        database: Database,
        role: str,
        metrics: Metrics,
        settings: Mapping[str, str] | None = None,
        *,
        strict: bool = False,
        arrive: Callable[[OwnConnection], Awaitable[object]] | None = None,
    ) -> None:
        """`arrive` is the first thing that is done on each connection."""
        self._database = database
        self._role = role
        self._arrive = arrive
        self._settings = settings or {}
        self._strict = strict
        self._connection: OwnConnection | None = None
        self._was_connected = False
        self._reconnects = metrics.reconnects.labels(role)
        self.trouble = ""  # why there is no connection, where one is wanted

    @property
    def connected(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    async def get(self) -> OwnConnection:
        """The connection, made anew where it was lost; for ever."""
        failures = 0
        trouble = _Trouble(self._role)
        while not self.connected:
            try:
                self._connection = await self._database.connect(self._role, self._settings, answer_s=ANSWER_S)
                if self._arrive is not None:
                    await self._arrive(self._connection)
            except (*CONNECTION_LOST, *CONNECTION_REFUSED) as error:
                self.drop()
                if self._strict and not self._was_connected and isinstance(error, CONNECTION_REFUSED):
                    raise DatabaseUnavailable(f"cannot connect to the database: {describe(error)}") from error
                self.trouble = describe(error)
                trouble.goes_on(error)
                await asyncio.sleep(RECONNECT_DELAYS_S[min(failures, len(RECONNECT_DELAYS_S) - 1)])
                failures += 1
                continue
            if failures or self._was_connected:
                self._reconnects.inc()
                logger.info("%s: connected to the database again%s", self._role, trouble.length)
            self._was_connected = True
            self.trouble = ""
        assert self._connection is not None
        return self._connection

    def drop(self) -> None:
        """Gives the connection up at once; the next use makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        self._was_connected = False
        if connection is None or connection.is_closed():
            return
        try:
            await connection.close(timeout=CLOSE_TIMEOUT_S)
        except CONNECTION_LOST:
            connection.terminate()
        except asyncio.CancelledError:
            connection.terminate()
            raise


@contextmanager
def explain_denied(schema: Schema) -> Iterator[None]:
    """Says what would help where PostgreSQL refuses something that one of awa's roles may do."""
    try:
        yield
    except asyncpg.InsufficientPrivilegeError as error:
        raise not_permitted(error, schema) from error


def not_permitted(error: asyncpg.InsufficientPrivilegeError, schema: Schema) -> NotPermitted:
    """What PostgreSQL refused, and what would help."""
    name = schema.name
    return NotPermitted(
        f'{describe(error)}: the login needs the role "{name}_reader" to look, "{name}_producer" to enqueue, '
        f'"{name}_worker" to work or to change something (GRANT it; `awa migrate --roles` makes them)'
    )


def _watch(connection: OwnConnection) -> None:
    """Has our own system notice that the server is not there any more."""
    transport: asyncio.Transport = connection._transport  # type: ignore[attr-defined]  # asyncpg has no other way to it
    opened = transport.get_extra_info("socket")
    if opened is None or opened.family not in (socket.AF_INET, socket.AF_INET6):
        return
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in CLIENT_KEEPALIVE.items():
        if hasattr(socket, name):  # not every system has all of them
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _not_kept(direct: bool) -> SessionNotKept:
    subject = "AWA_DIRECT_URL" if direct else "the database's URL"
    remedy = "it has" if direct else "set AWA_DIRECT_URL (--direct-url), which has"
    return SessionNotKept(
        f"{subject} leads through a pooler in transaction mode, where no session lasts, and with it no lock, LISTEN or "
        f"setting: {remedy} to lead to PostgreSQL itself"
    )
