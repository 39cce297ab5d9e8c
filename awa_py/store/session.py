"""A connection that speaks awa's statements by their names."""

from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

from awa_py.db.schema import Schema
from awa_py.db.types import Connection, Record

# What a job carries unchanged from one table to the next. `attempt`, `lease`, `run_at` and `errors` are not
# among them, since transitions change them: each statement says how.
CARRIED = (
    "id, created_at, expires_at, timeout, parent_id, priority, max_attempts, rescues, kind, queue, args, metadata, "
    "tags, unique_key, progress, concurrency_key, concurrency_limit, ordered"
)

# What people see of a job: the columns of `awa.jobs`, JSON as text, so that nobody's codecs matter.
SHOWN = (
    "id, kind, queue, state, priority, attempt, max_attempts, args::text AS args, run_at, created_at, attempted_at, "
    "finalized_at, heartbeat_at, deadline_at, worker_id, lease, errors::text AS errors, progress::text AS progress, "
    "result::text AS result, tags, metadata::text AS metadata, unique_key, parent_id, timeout, rescues, "
    "cancel_requested_at, concurrency_key, concurrency_limit, ordered"
)

# How often in a row the queue `q` was throttled, as of now: one less for every two minutes of quiet since it went on.
THROTTLES = (
    "greatest(0, q.throttles - greatest(0, floor(extract(epoch FROM now() - q.throttled_until)::float8 / 120)))::int"
)


@cache
def statement(name: str, schema: Schema) -> str:
    """The text of `sql/NAME.sql` for this schema."""
    text = (files("awa_py.store.sql") / f"{name}.sql").read_text(encoding="utf-8")
    return schema.qualify(
        text.replace("{carried}", CARRIED).replace("{shown}", SHOWN).replace("{throttles}", THROTTLES)
    )


class Session:
    """`await Session(connection, schema).fetch("claim_jobs", …)`"""

    __slots__ = ("connection", "schema")

    def __init__(self, connection: Connection, schema: Schema) -> None:
        self.connection = connection
        self.schema = schema

    async def fetch(self, name: str, *values: object) -> list[Record]:
        return await self.connection.fetch(statement(name, self.schema), *values)

    async def fetchrow(self, name: str, *values: object) -> Record | None:
        return await self.connection.fetchrow(statement(name, self.schema), *values)

    async def now(self) -> datetime:
        """The database's time, which is the only one that its times may be compared with."""
        now: datetime = await self.connection.fetchval("SELECT now()")
        return now

    async def fetchval(self, name: str, *values: object) -> Any:
        return await self.connection.fetchval(statement(name, self.schema), *values)
