"""A schema that exists only during a workload, and the rows that a workload needs in it."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import typer

from awa_py.connections import DedicatedConnection
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.errors import CONNECTION_LOST, CONNECTION_REFUSED
from awa_py.db.schema import Schema
from awa_py.errors import AwaError
from awa_py.maintenance.cleanup import DAYS_AHEAD
from awa_py.store.partitions import create_day_partitions
from awa_py.store.queues import pause_queue, set_queue
from awa_py.store.session import Session
from awa_py.text import describe

PREFIX = "awa_bench_"
QUEUE = "bench"
ROLE = "bench"

# Jobs of a queue that has been in use for a while. Their kind tells them from the jobs of the workload.
INSERT_COMPLETED = f"""
    INSERT INTO awa.completed (kind, queue, args, attempt, lease, worker_id, attempted_at, finalized_at)
    SELECT 'filler', '{QUEUE}', jsonb_build_object('n', n), 1, 1, '00000000-0000-4000-8000-000000000001', now(), now()
    FROM generate_series(1, $1::int) AS n
"""
INSERT_SCHEDULED = f"""
    INSERT INTO awa.scheduled (kind, queue, args, state, run_at)
    SELECT 'filler', '{QUEUE}', jsonb_build_object('n', n), 'scheduled', now() + '30 days' + n * interval '1 ms'
    FROM generate_series(1, $1::int) AS n
"""
SELECT_TABLES = """
    SELECT string_agg(format('%I.%I', schemaname, tablename), ', ') FROM pg_tables WHERE schemaname = 'awa'
"""


@asynccontextmanager
async def temporary_schema(url: str) -> AsyncIterator[Database]:
    """Create a schema with today's partition, and drop it at the end, whatever ends this process except kill -9."""
    database = Database(url, Schema(f"{PREFIX}{secrets.token_hex(4)}"))
    await (await database.connect_sessionless(ROLE)).close()  # if the server is unreachable, there is nothing to drop
    try:
        await migrations.migrate(database)
        async with _connect(database) as connection:
            await create_day_partitions(Session(connection, database.schema), "completed", days_ahead=DAYS_AHEAD)
        yield database
    finally:
        await _uncancelled(_drop(database))


async def insert_other_jobs(database: Database, *, completed: int, scheduled: int) -> None:
    """Insert completed jobs and jobs that are due in 30 days."""
    async with _connect(database) as connection:
        for statement, rows in ((INSERT_COMPLETED, completed), (INSERT_SCHEDULED, scheduled)):
            if rows:
                await connection.execute(database.schema.qualify(statement), rows)


async def limit_queue(database: Database, max_workers: int) -> None:
    async with _connect(database) as connection:
        await set_queue(Session(connection, database.schema), QUEUE, {"max_workers": max_workers})


async def hold_queue(database: Database, *, held: bool) -> None:
    """Pause the queue, or resume it."""
    async with _connect(database) as connection:
        await pause_queue(Session(connection, database.schema), QUEUE, paused=held)


async def vacuum(database: Database) -> None:
    """Vacuum, analyze and checkpoint, so that the workload pays only for its own writes."""
    async with _connect(database) as connection:
        tables = await connection.fetchval(database.schema.qualify(SELECT_TABLES))
        await connection.execute(f"VACUUM (ANALYZE) {tables}")
        try:
            await connection.execute("CHECKPOINT")
        except asyncpg.InsufficientPrivilegeError:
            return  # a checkpoint may then happen during the run; repeated runs show it


@asynccontextmanager
async def pinned_snapshot(database: Database) -> AsyncIterator[None]:
    """Keep a transaction open, as a forgotten one does: vacuum removes no row that it could still see."""
    count = database.schema.qualify("SELECT count(*) FROM awa.ready")
    async with (
        _connect(database, idle_in_transaction_session_timeout="0") as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        seen = await connection.fetchval(count)
        yield
        if await connection.fetchval(count) != seen:
            raise AwaError("the pinned snapshot ended during the run: this run has no result")


@asynccontextmanager
async def _connect(database: Database, **settings: str) -> AsyncIterator[DedicatedConnection]:
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
        typer.echo(
            f"awa: cannot drop the temporary schema; run DROP SCHEMA {name} CASCADE ({describe(error)})", err=True
        )


async def _uncancelled(work: Coroutine[Any, Any, None]) -> None:
    """Finish the work even if this task is cancelled."""
    working = asyncio.ensure_future(work)
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        await working
        raise
