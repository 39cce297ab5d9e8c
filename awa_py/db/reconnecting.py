"""A connection that is opened again after it was lost."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from awa_py.connections import DedicatedConnection
from awa_py.db.database import CLOSE_TIMEOUT_S, Database
from awa_py.db.errors import CONNECTION_LOST, CONNECTION_REFUSED, cannot_connect
from awa_py.observability.metrics import Metrics
from awa_py.text import describe, short_duration

logger = logging.getLogger("awa.db")

COMMAND_TIMEOUT_S = 75.0  # longer than any of our statements may take: after that, a proxy has swallowed the answer
END_TIMEOUT_S = 5.0
RECONNECT_DELAYS_S = (0.1, 0.25, 0.5, 1.0)
MIN_WARNING_INTERVAL_S = 60.0  # doubles with each warning of the same outage
MAX_WARNING_INTERVAL_S = 600.0


# $1 and $2 the former session · $3 the process id of this one, as the server reported it to the client. Without a row,
# there is a pooler in between, and the sessions behind it are not ours to end.
REPLACE_SESSION = f"""
    SELECT pid, backend_start AS started_at,
           (SELECT pg_terminate_backend(former.pid, {END_TIMEOUT_S * 1000:.0f})
            FROM pg_stat_activity AS former WHERE former.pid = $1 AND former.backend_start = $2) IS FALSE AS former_runs
    FROM pg_stat_activity WHERE pid = pg_backend_pid() AND pid = $3
"""


class ServerSession(NamedTuple):
    """A session as the server knows it. A process id alone may be used again."""

    pid: int
    started_at: datetime


class ReconnectingConnection:
    """A dedicated connection; `get()` waits until the database is reachable and opens it again if it was lost.

    A session can outlive its connection: a statement that waits for a lock or a standby does not notice that nobody
    waits for its answer. So a new connection first ends the former session. There is never more than one, and what
    the former one did not commit by then, it never will.

    Refusals (a wrong password, a missing database) are retried too, since an operator may be about to fix them. With
    `fail_fast`, a refusal before the first successful connection is taken for a configuration error and raised.
    """

    def __init__(
        self,
        database: Database,
        purpose: str,
        metrics: Metrics,
        settings: Mapping[str, str] | None = None,
        *,
        fail_fast: bool = False,
        on_connect: Callable[[DedicatedConnection], Awaitable[object]] | None = None,
    ) -> None:
        """`purpose` appears in application_name, logs and metrics. `on_connect` runs first on each new connection."""
        self._database = database
        self._purpose = purpose
        self._settings = settings or {}
        self._fail_fast = fail_fast
        self._on_connect = on_connect
        self._connection: DedicatedConnection | None = None
        self._session: ServerSession | None = None  # the current one or, without a connection, the former one
        self._was_connected = False
        self._reconnects = metrics.reconnects.labels(purpose)
        self.problem = ""  # why `get()` is waiting; empty if it is not

    @property
    def connected(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    async def get(self) -> DedicatedConnection:
        """Return the live connection. Retry forever if it cannot be opened."""
        failures = 0
        outage = _OutageLog(self._purpose)
        while not self.connected:
            try:
                self._connection = await self._database.connect(
                    self._purpose, self._settings, command_timeout_s=COMMAND_TIMEOUT_S
                )
                await self._replace_session(self._connection)
                if self._on_connect is not None:
                    await self._on_connect(self._connection)
            except (*CONNECTION_LOST, *CONNECTION_REFUSED) as error:
                self.drop()
                if self._fail_fast and not self._was_connected and isinstance(error, CONNECTION_REFUSED):
                    raise cannot_connect(error) from error
                self.problem = describe(error)
                outage.log_failure(error)
                await asyncio.sleep(RECONNECT_DELAYS_S[min(failures, len(RECONNECT_DELAYS_S) - 1)])
                failures += 1
                continue
            if failures or self._was_connected:
                self._reconnects.inc()
                logger.info("%s: connected to the database again%s", self._purpose, outage.duration_text)
            self._was_connected = True
            self.problem = ""
        assert self._connection is not None
        return self._connection

    async def _replace_session(self, connection: DedicatedConnection) -> None:
        """End the former session, and remember the new one."""
        former = self._session or (None, None)
        row = await connection.fetchrow(REPLACE_SESSION, *former, connection.get_server_pid())
        if row is None:
            return
        if row["former_runs"]:
            raise TimeoutError(f"the former session, {former[0]}, did not end within {END_TIMEOUT_S:.3g} s")
        self._session = ServerSession(row["pid"], row["started_at"])

    def drop(self) -> None:
        """Close the connection without waiting. The next `get()` opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        self._was_connected = False
        self.problem = ""
        if connection is None or connection.is_closed():
            return
        try:
            await connection.close(timeout=CLOSE_TIMEOUT_S)
        except CONNECTION_LOST:
            connection.terminate()
        except asyncio.CancelledError:
            connection.terminate()
            raise


class _OutageLog:
    """Log that the database is unreachable: once immediately, then at growing intervals."""

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self._began_at = self._warn_at = time.monotonic()
        self._warning_interval_s = MIN_WARNING_INTERVAL_S

    def log_failure(self, error: Exception) -> None:
        now = time.monotonic()
        is_due = now >= self._warn_at
        level = logging.WARNING if is_due else logging.DEBUG
        message = "%s: cannot reach the database%s, trying again: %s"
        logger.log(level, message, self._purpose, self.duration_text, describe(error))
        if is_due:
            self._warn_at = now + self._warning_interval_s
            self._warning_interval_s = min(2 * self._warning_interval_s, MAX_WARNING_INTERVAL_S)

    @property
    def duration_text(self) -> str:
        """Return the outage's duration for a log line, e.g. " (for 3m)"; empty below one second."""
        seconds = time.monotonic() - self._began_at
        return f" (for {short_duration(timedelta(seconds=seconds))})" if seconds >= 1 else ""
