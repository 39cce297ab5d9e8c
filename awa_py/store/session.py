"""The store's view of a connection: statements by name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

from awa_py.connections import Connection, Record
from awa_py.db.columns import fill_placeholders
from awa_py.db.database import SET_LOCAL_OWN_SETTINGS
from awa_py.db.schema import Schema

# How often in a row the queue `q` was throttled: one less for every two minutes since the last cooldown ended.
THROTTLES = (
    "greatest(0, q.throttles - greatest(0, floor(extract(epoch FROM now() - q.throttled_until)::float8 / 120)))::int"
)

# Statements that are safe whatever the search path is: they name the schema of every function, operator and type. Only
# these run on connections of the user, and they run without a transaction through a pooler.
SAFE_ON_ANY_PATH = frozenset(
    {
        "can_insert",
        "complete_in_transaction",
        "enqueue_job",
        "enqueue_job_with_payload",
        "enqueue_jobs",
        "enqueue_undeclared_jobs",
        "enqueue_unique_job",
        "get_jobs",
        "record_transaction",
        "reserve_ids",
        "route_kinds",
        "send_signal",
        "wake_queues",
    }
)


@cache
def statement(name: str, schema: Schema) -> str:
    """Return the text of `sql/NAME.sql` for this schema. Its first line is the name, for pg_stat_activity and logs."""
    text = (files("awa_py.store.sql") / f"{name}.sql").read_text(encoding="utf-8")
    return f"-- {name}\n" + render(text, schema)


def render(text: str, schema: Schema) -> str:
    """Return the text of a statement's file with its placeholders filled, for this schema."""
    return schema.qualify(fill_placeholders(text).replace("{throttles}", THROTTLES))


class Session:
    """A connection and a schema. Example: `await Session(connection, schema).fetch("get_jobs", ids)`.

    The connection is one of awa's own, with the OWN_SETTINGS; or the user's, if `is_own` is False.
    """

    __slots__ = ("_has_own_settings", "_is_own", "connection", "schema")

    def __init__(self, connection: Connection, schema: Schema, *, is_own: bool = True) -> None:
        self.connection = connection
        self.schema = schema
        self._is_own = is_own
        self._has_own_settings = is_own and not getattr(connection, "sets_own_settings_per_transaction", False)

    async def fetch(self, name: str, *values: object) -> list[Record]:
        if self._has_own_settings or name in SAFE_ON_ANY_PATH:
            return await self.connection.fetch(statement(name, self.schema), *values)
        async with self._own_settings():
            return await self.connection.fetch(statement(name, self.schema), *values)

    async def fetchrow(self, name: str, *values: object) -> Record | None:
        if self._has_own_settings or name in SAFE_ON_ANY_PATH:
            return await self.connection.fetchrow(statement(name, self.schema), *values)
        async with self._own_settings():
            return await self.connection.fetchrow(statement(name, self.schema), *values)

    async def fetchval(self, name: str, *values: object) -> Any:
        row = await self.fetchrow(name, *values)
        return None if row is None else row[0]

    async def now(self) -> datetime:
        """Return the database's time. Never compare times of the database with another clock."""
        now: datetime = await self.connection.fetchval("SELECT pg_catalog.now()")
        return now

    @asynccontextmanager
    async def _own_settings(self) -> AsyncIterator[None]:
        """Set the settings of the transaction, or of a new one."""
        if not self._is_own:
            raise AssertionError("this statement is not safe on a connection of the user")
        async with nullcontext() if self.connection.is_in_transaction() else self.connection.transaction():
            await self.connection.execute(SET_LOCAL_OWN_SETTINGS)
            yield
