"""A schema that goes away, and what a workload finds in it."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import typer

from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.errors import CONNECTION_LOST, CONNECTION_REFUSED
from awa_py.db.schema import Schema
from awa_py.db.types import DedicatedConnection
from awa_py.errors import AwaError
from awa_py.maintenance.cleanup import DAYS_AHEAD
from awa_py.store.partitions import create_day_partitions
from awa_py.store.session import Session
from awa_py.text import describe

PREFIX = "awa_bench_"
QUEUE = "bench"
ROLE = "bench"

# Rows as a queue has them that has been in use for a while. Their kind is nobody's, so that they are told from ours.
FINISHED = f"""
    INSERT INTO awa.completed (kind, queue, args, attempt, lease, worker_id, attempted_at, finalized_at)
    SELECT 'filler', '{QUEUE}', jsonb_build_object('n', n), 1, 1, '00000000-0000-4000-8000-000000000001', now(), now()
    FROM generate_series(1, $1::int) AS n
"""
FAR_FUTURE = f"""
    INSERT INTO awa.scheduled (kind, queue, args, state, run_at)
    SELECT 'filler', '{QUEUE}', jsonb_build_object('n', n), 'scheduled', now() + '30 days' + n * interval '1 ms'
    FROM generate_series(1, $1::int) AS n
"""
TABLES = """
    SELECT string_agg(format('%I.%I', schemaname, tablename), ', ') FROM pg_tables WHERE schemaname = 'awa'
"""


@asynccontextmanager
async def scratch_schema(url: str) -> AsyncIterator[Database]:
    """A schema of its own, as a leader left it; whatever ends us, short of kill -9, it is gone afterwards."""
    database = Database(url, Schema(f"{PREFIX}{secrets.token_hex(4)}"))
    await (await database.connect_sessionless(ROLE)).close()  # where nobody answers there is nothing to remove
    try:
        await migrations.migrate(database)
        async with _keeper(database) as connection:  # a day begins with its partition
            await create_day_partitions(Session(connection, database.schema), "completed", days_ahead=DAYS_AHEAD)
        yield database
    finally:
        await _to_its_end(_drop(database))


async def fill(database: Database, *, completed: int, scheduled: int) -> None:
    """So many finished and far-future jobs, written by the database itself."""
    async with _keeper(database) as connection:
        for statement, rows in ((FINISHED, completed), (FAR_FUTURE, scheduled)):
            if rows:
                await connection.execute(database.schema.qualify(statement), rows)


async def tidy(database: Database) -> None:
    """The state of a quiet night: vacuumed, analyzed, nothing left to write. What comes next pays for itself only."""
    async with _keeper(database) as connection:
        tables = await connection.fetchval(database.schema.qualify(TABLES))
        await connection.execute(f"VACUUM (ANALYZE) {tables}")
        try:
            await connection.execute("CHECKPOINT")
        except asyncpg.InsufficientPrivilegeError:
            return  # a checkpoint may then fall into the run: the figures of several runs tell


@asynccontextmanager
async def pinned_snapshot(database: Database) -> AsyncIterator[None]:
    """Somebody's forgotten transaction: while it is open, vacuum removes nothing that it could still see."""
    count = database.schema.qualify("SELECT count(*) FROM awa.ready")
    async with (
        _keeper(database, idle_in_transaction_session_timeout="0") as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        seen = await connection.fetchval(count)
        yield
        if await connection.fetchval(count) != seen:
            raise AwaError("the pinned snapshot did not last: this run says nothing about one")


@asynccontextmanager
async def _keeper(database: Database, **settings: str) -> AsyncIterator[DedicatedConnection]:
    connection = await database.connect(ROLE, {"jit": "off", **settings})
    try:
        yield connection
    finally:
        await connection.close()


async def _drop(database: Database) -> None:
    name = database.schema.name
    try:
        connection = await database.connect(ROLE, {"statement_timeout": "0", "lock_timeout": "0"})
        try:
            await connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')
        finally:
            await connection.close()
    except (*CONNECTION_LOST, *CONNECTION_REFUSED, asyncpg.PostgresError) as error:
        typer.echo(f"awa: cannot remove the scratch schema; DROP SCHEMA {name} CASCADE ({describe(error)})", err=True)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits the work whole, even where we are cancelled meanwhile."""
    working = asyncio.ensure_future(work)
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        await working
        raise
