"""The database that holds the jobs: how connections to it are opened and which settings their sessions have."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import asyncpg

from awa_py.connections import DedicatedConnection, Pool
from awa_py.db.errors import CONNECTION_LOST, CONNECTION_REFUSED, cannot_connect
from awa_py.db.pooler import PoolerMode, SessionlessConnector, detect_pooler, is_backend_pid
from awa_py.db.schema import Schema
from awa_py.db.search_path import SEARCH_PATH
from awa_py.db.servers import CONNECT_TIMEOUT_S, Servers, Timelines
from awa_py.errors import ConfigError, SessionNotKept
from awa_py.text import describe

logger = logging.getLogger("awa.db")

CLOSE_TIMEOUT_S = 2.0

# Our tables change size by orders of magnitude within seconds. A prepared statement may keep a plan that was made for
# an empty table and is a disaster on a full one. Sessions and functions with these settings always use the index.
STABLE_PLAN_SETTINGS = {
    "enable_indexscan": "on",
    "enable_nestloop": "on",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",  # planning for each set of values costs more than running the plan
}
# A commit that a crash of the server loses is repeated or not missed: no need to wait for the disk or for a standby.
ASYNC_COMMIT_SETTINGS = {"synchronous_commit": "off"}
# After waiting for a lock, a statement must see what the previous holder committed, whatever the database's default is.
ISOLATION_SETTINGS = {"default_transaction_isolation": "read committed"}
# Of sessions on which only awa runs statements.
OWN_SETTINGS = {"search_path": SEARCH_PATH, **STABLE_PLAN_SETTINGS}
SET_LOCAL_OWN_SETTINGS = "; ".join(f"SET LOCAL {name} = {value}" for name, value in OWN_SETTINGS.items())
# PostgreSQL notices a client that vanished without closing its connection, and releases its locks.
SERVER_KEEPALIVE_SETTINGS = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}


@dataclass(frozen=True, slots=True)
class Database:
    """The location of the jobs. If `url` leads through a pooler, `direct_url` leads past it."""

    url: str = field(repr=False)
    schema: Schema
    direct_url: str | None = field(default=None, repr=False)
    servers: Servers = field(init=False, repr=False, compare=False)
    """The servers of sessions: they bypass a pooler, if `direct_url` is given."""
    _sessionless_servers: Servers = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        timelines = Timelines()
        servers = Servers(self.url, timelines)
        object.__setattr__(self, "_sessionless_servers", servers)
        object.__setattr__(self, "servers", Servers(self.direct_url, timelines) if self.direct_url else servers)

    async def connect(
        self, purpose: str, settings: Mapping[str, str] | None = None, *, command_timeout_s: float | None = None
    ) -> DedicatedConnection:
        """Open a session, shown as `awa PURPOSE` in pg_stat_activity.

        Raise SessionNotKept if a pooler would not let the connection keep its session. `command_timeout_s` limits the
        wait for each answer; None waits forever.
        """
        connection = await self.servers.connect(f"awa {purpose}", command_timeout=command_timeout_s)
        try:
            await self._apply_settings(
                connection,
                {**OWN_SETTINGS, **ISOLATION_SETTINGS, **SERVER_KEEPALIVE_SETTINGS, **(settings or {})},
            )
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _apply_settings(self, connection: DedicatedConnection, settings: Mapping[str, str]) -> None:
        # Not as startup parameters: poolers refuse or forget them. And only once the session is known to be ours: a
        # pooler reports a made-up backend PID, and may give the session with our settings to another client.
        calls = ", ".join(
            f"pg_catalog.set_config({_literal(name)}, {_literal(value)}, false)" for name, value in settings.items()
        )
        only_if_direct = f"SELECT {calls} WHERE {is_backend_pid(connection.get_server_pid())}"
        if await connection.execute(only_if_direct, timeout=CONNECT_TIMEOUT_S) == "SELECT 1":
            return
        if await detect_pooler(self.servers) is PoolerMode.TRANSACTION:
            raise _session_not_kept(self.direct_url is not None)
        await connection.execute(f"SELECT {calls}", timeout=CONNECT_TIMEOUT_S)

    async def check_direct_url(self, connection: DedicatedConnection) -> None:
        """Raise ConfigError if the two URLs lead to different databases: workers would never see the enqueued jobs.

        `connection` is one that was opened with the direct URL.
        """
        if self.direct_url is None:
            return
        identity = "SELECT pg_catalog.current_database(), pg_catalog.pg_postmaster_start_time()"
        try:
            pooled = await self._sessionless_connector().connect("awa registry")
        except (*CONNECTION_LOST, *CONNECTION_REFUSED) as error:
            logger.warning("cannot connect through the pooler: %s", describe(error))
            return
        try:
            same = await pooled.fetchrow(identity) == await connection.fetchrow(identity)
        finally:
            await pooled.close(timeout=CLOSE_TIMEOUT_S)
        if not same:
            raise ConfigError(
                "AWA_DIRECT_URL leads to another database than AWA_DATABASE_URL: both must lead to the same one"
            )

    async def connect_sessionless(self, purpose: str) -> DedicatedConnection:
        """Open a connection that works through any pooler, for callers that rely on no session state.

        Raise DatabaseUnavailable, with the reason, if that fails.
        """
        try:
            return await self._sessionless_connector().connect(f"awa {purpose}")
        except (*CONNECTION_LOST, *CONNECTION_REFUSED, ValueError) as error:
            raise cannot_connect(error) from error

    def pool(self, *, max_size: int, is_own: bool) -> Pool:
        """Return a pool that opens sessionless connections on demand.

        `is_own`: only awa runs statements on them. Otherwise they keep the search path of the login.
        """
        connector = self._sessionless_connector(is_own=is_own)

        async def connect(*_: object, **__: object) -> DedicatedConnection:
            return await connector.connect("awa client")

        return asyncpg.create_pool(min_size=0, max_size=max_size, connect=connect)

    def _sessionless_connector(self, *, is_own: bool = True) -> SessionlessConnector:
        settings = {**SERVER_KEEPALIVE_SETTINGS, **(OWN_SETTINGS if is_own else {})}
        is_pooled = True if self.direct_url else None
        return SessionlessConnector(self._sessionless_servers, settings, is_own=is_own, is_pooled=is_pooled)


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _session_not_kept(has_direct_url: bool) -> SessionNotKept:
    subject = "AWA_DIRECT_URL" if has_direct_url else "the database's URL"
    remedy = "it" if has_direct_url else "set AWA_DIRECT_URL (--direct-url), which"
    return SessionNotKept(
        f"{subject} leads through a pooler in transaction mode, which keeps no session and so no lock, LISTEN or "
        f"setting: {remedy} must lead to PostgreSQL itself"
    )
