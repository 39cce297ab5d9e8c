"""A worker's place in the registry: taken before the first claim, left after the last finish."""

import asyncio
import logging
from contextlib import suppress

import asyncpg

from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.errors import CONNECTION_LOST, translate_permission_errors
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.observability.metrics import Metrics
from awa_py.store import heartbeat as registry_store
from awa_py.store.heartbeat import WorkerInfo
from awa_py.store.queues import ensure_queues
from awa_py.store.session import Session
from awa_py.text import describe
from awa_py.worker.directives import Directives, directives_from

logger = logging.getLogger("awa.worker")


class Registration:
    """Enters a worker and its queues, and takes it out again, on a connection that is there only meanwhile."""

    def __init__(self, database: Database, metrics: Metrics, info: WorkerInfo) -> None:
        self._database = database
        self._info = info
        self._link = ReconnectingConnection(database, "registry", metrics, fail_fast=True)
        self.orders = Directives()  # the first ones, once it has entered

    @property
    def trouble(self) -> str:
        """Why there is no connection, where one is wanted."""
        return self._link.problem

    @property
    def connected(self) -> bool:
        return self._link.connected

    async def enter(self) -> None:
        """Waits for the database, looks at its schema, and enters."""
        while True:
            connection = await self._link.get()
            try:
                await self._database.check_direct_url(connection)
                with translate_permission_errors(self._database.schema):
                    await migrations.check(connection, self._database.schema)
                    session = Session(connection, self._database.schema)
                    await ensure_queues(session, self._info.queues)
                    self.orders = directives_from(
                        await registry_store.heartbeat_worker(session, self._info), self.orders
                    )
            except CONNECTION_LOST as error:
                logger.warning("the database went away at the start, trying again: %s", describe(error))
                self._link.drop()
            else:
                return

    async def leave(self, limit_s: float) -> None:
        with suppress(*CONNECTION_LOST, asyncpg.PostgresError):  # the leader sweeps what could not say goodbye
            async with asyncio.timeout(limit_s):
                connection = await self._link.get()
                await registry_store.remove_worker(Session(connection, self._database.schema), self._info.id)

    async def close(self) -> None:
        await self._link.close()
