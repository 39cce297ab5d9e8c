"""Whom the checks run_checks, and how they touch it: in read-only transactions, for seconds at the most."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.db.errors import CONNECTION_LOST, CONNECTION_REFUSED
from awa_py.db.pooler import CONNECT_TIMEOUT_S
from awa_py.db.types import DedicatedConnection
from awa_py.errors import DatabaseUnavailable
from awa_py.settings import Settings
from awa_py.store.session import Session
from awa_py.text import describe

LONG_TRANSACTION = timedelta(minutes=5)
STATEMENT_TIMEOUT = timedelta(seconds=5)
ANSWER_S = 30.0  # longer than PostgreSQL itself lets a statement take: silence means a dead connection

# Names in definitions are complete where nothing is on the search path.
SESSION_SETTINGS = {
    **STABLE_PLAN_SETTINGS,
    "search_path": "pg_catalog",
    "statement_timeout": str(int(STATEMENT_TIMEOUT.total_seconds() * 1000)),
    "lock_timeout": "1000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """A database, looked at over a connection that works through any pooler too."""

    database: Database
    settings: Settings
    connection: DedicatedConnection
    version: int  # of the schema; 0: there is none, or none that this role may see
    long_transaction: timedelta

    @property
    def session(self) -> Session:
        return Session(self.connection, self.database.schema)

    @asynccontextmanager
    async def read_only(self) -> AsyncIterator[None]:
        """A transaction that changes nothing, goes through indexes, and waits for nobody for long."""
        async with self.connection.transaction(readonly=True):
            await self.connection.execute(
                "SELECT set_config(name, value, true) FROM unnest($1::text[], $2::text[]) AS manners(name, value)",
                list(SESSION_SETTINGS),
                list(SESSION_SETTINGS.values()),
            )
            yield


async def connect(database: Database) -> DedicatedConnection:
    """A connection that asks for nothing that a pooler might refuse; or a sentence that says why there is none."""
    try:
        return await asyncpg.connect(
            database.direct_url or database.url,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=ANSWER_S,
            statement_cache_size=0,
            server_settings={"application_name": "awa doctor"},
        )
    except (*CONNECTION_LOST, *CONNECTION_REFUSED, ValueError) as error:
        raise DatabaseUnavailable(f"cannot connect to the database: {describe(error)}") from error
