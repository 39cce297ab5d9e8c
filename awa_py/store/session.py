"""The store's view of a connection: statements by name."""

from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

from awa_py.db.columns import fill_columns
from awa_py.db.schema import Schema
from awa_py.db.types import Connection, Record

# How often in a row the queue `q` was throttled: one less for every two minutes since the last cooldown ended.
THROTTLES = (
    "greatest(0, q.throttles - greatest(0, floor(extract(epoch FROM now() - q.throttled_until)::float8 / 120)))::int"
)


@cache
def statement(name: str, schema: Schema) -> str:
    """Return the text of `sql/NAME.sql` for this schema. Its first line is the name, for pg_stat_activity and logs."""
    text = (files("awa_py.store.sql") / f"{name}.sql").read_text(encoding="utf-8")
    return f"-- {name}\n" + schema.qualify(fill_columns(text).replace("{throttles}", THROTTLES))


class Session:
    """A connection and a schema. Example: `await Session(connection, schema).fetch("get_jobs", ids)`."""

    __slots__ = ("connection", "schema")

    def __init__(self, connection: Connection, schema: Schema) -> None:
        self.connection = connection
        self.schema = schema

    async def fetch(self, name: str, *values: object) -> list[Record]:
        return await self.connection.fetch(statement(name, self.schema), *values)

    async def fetchrow(self, name: str, *values: object) -> Record | None:
        return await self.connection.fetchrow(statement(name, self.schema), *values)

    async def now(self) -> datetime:
        """Return the database's time. Never compare times of the database with another clock."""
        now: datetime = await self.connection.fetchval("SELECT now()")
        return now

    async def fetchval(self, name: str, *values: object) -> Any:
        return await self.connection.fetchval(statement(name, self.schema), *values)
