"""The database that the checks look at. They use read-only transactions and short timeouts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from awa_py.connections import DedicatedConnection
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.db.errors import CONNECTION_LOST, CONNECTION_REFUSED, cannot_connect
from awa_py.db.search_path import SET_LOCAL_SEARCH_PATH
from awa_py.settings import Settings
from awa_py.store.session import Session

LONG_TRANSACTION = timedelta(minutes=5)
STATEMENT_TIMEOUT = timedelta(seconds=5)
COMMAND_TIMEOUT_S = 30.0  # longer than statement_timeout: no answer means a dead connection

SESSION_SETTINGS = {
    **STABLE_PLAN_SETTINGS,
    "statement_timeout": str(int(STATEMENT_TIMEOUT.total_seconds() * 1000)),
    "lock_timeout": "1000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """A database and the connection that the checks use. It works through any pooler."""

    database: Database
    settings: Settings
    connection: DedicatedConnection
    version: int  # of the schema; 0 if there is none or this role may not see it
    long_transaction: timedelta

    @property
    def session(self) -> Session:
        return Session(self.connection, self.database.schema)

    @asynccontextmanager
    async def read_only(self) -> AsyncIterator[None]:
        """Open a read-only transaction with short timeouts and stable plans."""
        async with self.connection.transaction(readonly=True):
            await self.connection.execute(SET_LOCAL_SEARCH_PATH)
            await self.connection.execute(
                "SELECT set_config(name, value, true) FROM unnest($1::text[], $2::text[]) AS settings(name, value)",
                list(SESSION_SETTINGS),
                list(SESSION_SETTINGS.values()),
            )
            yield


async def connect(database: Database) -> DedicatedConnection:
    """Connect without startup options that a pooler might reject. Raise DatabaseUnavailable if it fails."""
    try:
        return await database.servers.connect("awa doctor", command_timeout=COMMAND_TIMEOUT_S, statement_cache_size=0)
    except (*CONNECTION_LOST, *CONNECTION_REFUSED, ValueError) as error:
        raise cannot_connect(error) from error
