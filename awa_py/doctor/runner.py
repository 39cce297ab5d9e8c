"""Run the checks one by one. A check that fails becomes a finding and does not stop the others."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from awa_py.connections import Connection
from awa_py.db.database import CLOSE_TIMEOUT_S, Database
from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.installed import current_version
from awa_py.db.schema import Schema
from awa_py.doctor import cluster, connectivity, server, vacuum, work
from awa_py.doctor import schema as schema_checks
from awa_py.doctor.context import LONG_TRANSACTION, STATEMENT_TIMEOUT, CheckContext, connect
from awa_py.doctor.finding import Finding, Findings
from awa_py.errors import DatabaseUnavailable, SchemaForeign
from awa_py.settings import Settings
from awa_py.text import describe

MISSING_OBJECT = (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.UndefinedFunctionError)


@dataclass(frozen=True, slots=True)
class Check:
    """A check's name and function, and what it needs."""

    group: str
    name: str
    run: Callable[[CheckContext, Findings], Awaitable[None]]
    needs_schema: bool = True
    read_only: bool = True  # run it in a read-only transaction


CHECKS = (
    Check("connection", "pooler", connectivity.check_pooler, needs_schema=False, read_only=False),
    Check("connection", "listen", connectivity.check_listen, needs_schema=False, read_only=False),
    Check("connection", "clock", connectivity.check_clock, needs_schema=False, read_only=False),
    Check("server", "version", server.check_server, needs_schema=False),
    Check("server", "settings", server.check_settings, needs_schema=False),
    Check("server", "connections", server.check_connections, needs_schema=False),
    Check("schema", "version", schema_checks.check_version, needs_schema=False),
    Check("schema", "objects", schema_checks.check_objects),
    Check("schema", "partitions", schema_checks.check_partitions),
    Check("vacuum", "transactions", vacuum.check_transactions, needs_schema=False),
    Check("vacuum", "tables", vacuum.check_tables),
    Check("cluster", "leader", cluster.check_leader),
    Check("cluster", "workers", cluster.check_workers),
    Check("cluster", "overdue", cluster.check_overdue),
    Check("cluster", "waits", cluster.check_waits),
    Check("work", "queues", work.check_queues),
    Check("work", "kinds", work.check_kinds),
    Check("work", "schedules", work.check_schedules),
    Check("work", "rows", work.check_invalid),
)


async def run_checks(
    database: Database,
    settings: Settings,
    *,
    checks: Sequence[Check] = CHECKS,
    long_transaction: timedelta = LONG_TRANSACTION,
) -> list[Finding]:
    """Run the checks, which change nothing, and return their findings in order."""
    connection = await connect(database)
    try:
        context = CheckContext(
            database=database,
            settings=settings,
            connection=connection,
            version=await _version(connection, database.schema),
            long_transaction=long_transaction,
        )
        runnable = [check for check in checks if context.version or not check.needs_schema]
        return [finding for check in runnable for finding in await _run(check, context)]
    except CONNECTION_LOST as error:
        raise DatabaseUnavailable(f"the connection to the database broke: {describe(error)}") from error
    finally:
        with suppress(*CONNECTION_LOST):
            await connection.close(timeout=CLOSE_TIMEOUT_S)


async def _version(connection: Connection, schema: Schema) -> int:
    try:
        return await current_version(connection, schema)
    except (asyncpg.InsufficientPrivilegeError, SchemaForeign):
        return 0  # the version check reports it


async def _run(check: Check, context: CheckContext) -> list[Finding]:
    findings = Findings(check.group, check.name)
    try:
        async with AsyncExitStack() as stack:
            if check.read_only:
                await stack.enter_async_context(context.read_only())
            await check.run(context, findings)
    except CONNECTION_LOST:
        raise
    except asyncpg.QueryCanceledError:
        findings.warning(
            None,
            f"The check took longer than {STATEMENT_TIMEOUT.total_seconds():.0f} s and was cancelled.",
            "Fix the other findings, above all long transactions and tables that are not vacuumed; then run it again.",
        )
    except asyncpg.InsufficientPrivilegeError as error:
        name = context.database.schema.name
        findings.warning(
            None,
            f"This role lacks privileges for the check: {describe(error)}.",
            f'GRANT USAGE ON SCHEMA "{name}" TO …; GRANT SELECT ON ALL TABLES IN SCHEMA "{name}" TO …;',
        )
    except MISSING_OBJECT as error:
        findings.warning(None, f"The check failed: {describe(error)}.", "Fix the schema first.")
    except DatabaseUnavailable as error:
        findings.warning(None, f"The check needs a second connection: {error}.", "See check `connections`.")
    except asyncpg.PostgresError as error:
        findings.warning(None, f"The check failed: {describe(error)}.", "Fix the other findings, then run it again.")
    return findings.found
