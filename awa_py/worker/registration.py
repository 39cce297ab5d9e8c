"""Registration: adds the worker to the list of workers before its first claim, and removes it at the end."""

import asyncio
import logging
from contextlib import suppress
from datetime import timedelta

import asyncpg

from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.errors import CONNECTION_LOST, translate_permission_errors
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.declaring import declare_kinds, declare_schedules
from awa_py.model.declarations import Declarations
from awa_py.observability.metrics import Metrics
from awa_py.store.heartbeat import WorkerInfo, heartbeat_worker, remove_worker
from awa_py.store.queues import ensure_queues
from awa_py.store.session import Session
from awa_py.text import describe
from awa_py.worker.directives import Directives, directives_from

logger = logging.getLogger("awa.worker")


class Registration:
    """Adds and removes the worker, on a connection that is open only for that."""

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        info: WorkerInfo,
        share_staleness: timedelta,
        declarations: Declarations | None = None,
    ) -> None:
        self._database = database
        self._declarations = declarations
        self._info = info
        self._share_staleness = share_staleness
        self._connection = ReconnectingConnection(database, "registry", metrics, fail_fast=True)
        self.directives = Directives()  # the first ones, after `enter`

    @property
    def problem(self) -> str:
        """Return why there is no connection, or an empty string."""
        return self._connection.problem

    @property
    def connected(self) -> bool:
        return self._connection.connected

    async def enter(self) -> None:
        """Wait for the database, check its schema, declare kinds and schedules, and add the worker and its queues."""
        while True:
            connection = await self._connection.get()
            try:
                await self._database.check_direct_url(connection)
                with translate_permission_errors(self._database.schema):
                    await migrations.check(connection, self._database.schema)
                    session = Session(connection, self._database.schema)
                    if self._declarations is not None:
                        await declare_kinds(session, self._declarations)
                        await declare_schedules(session, self._declarations.schedules)
                    await ensure_queues(session, self._info.queues)
                    rows = await heartbeat_worker(session, self._info, share_staleness=self._share_staleness)
                    self.directives = directives_from(rows, self.directives)
            except CONNECTION_LOST as error:
                logger.warning("the connection was lost while the worker started, trying again: %s", describe(error))
                self._connection.drop()
            else:
                return

    async def leave(self, timeout_s: float) -> None:
        """Remove the worker. If that fails, the leader removes it when its heartbeats are stale."""
        with suppress(*CONNECTION_LOST, asyncpg.PostgresError):
            async with asyncio.timeout(timeout_s):
                connection = await self._connection.get()
                await remove_worker(Session(connection, self._database.schema), self._info.id)

    async def close(self) -> None:
        await self._connection.close()
