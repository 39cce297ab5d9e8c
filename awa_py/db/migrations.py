"""Apply the numbered migrations of `schema/` until the database has the version that this program needs.

Migrations only go forward, and all pending ones are applied in one transaction. A migration that is marked compatible
leaves the programs of the version before working: they may start on the newer schema.
"""

import logging
import re
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version as release_of
from importlib.resources import files
from importlib.resources.abc import Traversable

import asyncpg

from awa_py.connections import Connection
from awa_py.db.columns import fill_placeholders
from awa_py.db.database import Database
from awa_py.db.installed import AppliedMigration, list_applied, version_of
from awa_py.db.roles import create_roles, grants_sql, has_roles, roles_sql, set_role_to_owner
from awa_py.db.schema import Schema
from awa_py.db.search_path import SET_LOCAL_SEARCH_PATH
from awa_py.errors import SchemaError, SchemaMissing, SchemaTooNew
from awa_py.text import describe

logger = logging.getLogger("awa.migrate")

# The key of an advisory lock: concurrent migrations wait for each other. Any fixed number would do.
MIGRATION_LOCK = 0x4157415F4D494752  # "AWA_MIGR"
LOCK_TIMEOUT = "60s"
BEGIN_SCRIPT = ("BEGIN;", f"{SET_LOCAL_SEARCH_PATH};")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """A numbered file or directory of `schema/`."""

    version: int
    name: str
    sql: str
    compatible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStatus:
    """A migration of this program or of the database, and when it was applied (None: not yet)."""

    version: int
    name: str
    compatible: bool
    applied_at: datetime | None


def all_migrations() -> list[Migration]:
    """Return every migration that this version of awa has, in order."""
    return read_migrations(files("awa_schema"))


def read_migrations(directory: Traversable) -> list[Migration]:
    """Return the migrations of a directory, in order.

    A migration is a file `0002_name.sql`, or a directory `0001_name` whose SQL files are applied in the order of their
    names. Its first line is `-- compatible: yes` or `-- compatible: no`.
    """
    found = []
    for entry in directory.iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+?)(\.sql)?", entry.name)
        if match:
            sql = _read(entry)
            mark = re.match(r"-- compatible: (yes|no)\n", sql)
            if mark is None:
                raise SchemaError(f"migration {entry.name}: its first line must be `-- compatible: yes` or `no`")
            found.append(Migration(version=int(match[1]), name=match[2], sql=sql, compatible=mark[1] == "yes"))
    return sorted(found, key=lambda migration: migration.version)


def needed_version() -> int:
    """Return the version of the schema that this program needs."""
    return all_migrations()[-1].version


def script(schema: Schema, *, from_version: int = 0, to_version: int | None = None) -> str:
    """Return one script for deployments that apply SQL by other means; an empty one if there is nothing to apply.

    It brings a schema from one version (0: there is none) to another one, by default that of this program.
    """
    last = needed_version() if to_version is None else to_version
    parts = [
        f"-- {migration.version:04} {migration.name}\n\n{_render(migration, schema)}"
        for migration in all_migrations()
        if from_version < migration.version <= last
    ]
    if not parts:
        return ""
    start = _require_version(from_version, schema) if from_version else f'CREATE SCHEMA IF NOT EXISTS "{schema.name}";'
    return "\n".join([*BEGIN_SCRIPT, start, *parts, "COMMIT;\n"])


def roles_script(schema: Schema) -> str:
    """Return the roles and their rights as one script, for deployments that apply SQL by other means."""
    set_role = f'SET LOCAL ROLE "{schema.name}_owner";\n'
    return "\n".join([*BEGIN_SCRIPT, roles_sql(schema), set_role, grants_sql(schema), "COMMIT;\n"])


async def migrate(database: Database, *, roles: bool = False) -> list[Migration]:
    """Apply the pending migrations in one transaction, and return them. Concurrent calls are safe.

    With `roles`, create the roles too. If they exist already, grant them their rights on new objects.
    """
    schema = database.schema
    connection = await database.connect_sessionless("migrate")
    try:
        async with connection.transaction():
            await connection.execute(SET_LOCAL_SEARCH_PATH)
            await _lock_migrations(connection)
            applied = await list_applied(connection, schema)
            refuse_incompatible(applied, schema)
            version = version_of(applied)
            if roles and version > needed_version():  # it would revoke the rights on objects that it does not know
                raise SchemaTooNew(
                    f"schema {schema.name!r} has version {version}, this program supports {needed_version()}: create "
                    f"the roles with awa-py {applied[-1].awa_version} or newer"
                )
            pending = [migration for migration in all_migrations() if migration.version > version]
            if version == 0:
                await _create_schema(connection, schema)
            elif pending:
                await set_role_to_owner(connection, schema)
            for migration in pending:
                await connection.execute(_render(migration, schema))
                logger.info("applied migration %04d %s", migration.version, migration.name)
            if roles:
                await create_roles(connection, schema)
            if roles or (pending and await has_roles(connection, schema)):
                await set_role_to_owner(connection, schema)
                await connection.execute(grants_sql(schema))
            return pending
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaError(f"cannot migrate schema {schema.name!r}: {describe(error)}") from error
    finally:
        await connection.close()


async def status(database: Database) -> list[MigrationStatus]:
    """Return the migrations of the database and of this program, and when each was applied."""
    connection = await database.connect_sessionless("migrate")
    try:
        applied = await list_applied(connection, database.schema)
    finally:
        await connection.close()
    done = [
        MigrationStatus(version=m.version, name=m.name, compatible=m.compatible, applied_at=m.applied_at)
        for m in applied
    ]
    return done + [
        MigrationStatus(version=m.version, name=m.name, compatible=m.compatible, applied_at=None)
        for m in all_migrations()
        if m.version > version_of(applied)
    ]


async def installed_version(database: Database) -> int:
    """Return the version of the database's schema; 0: there is none. Raise SchemaTooNew if it is not usable."""
    connection = await database.connect_sessionless("migrate")
    try:
        applied = await list_applied(connection, database.schema)
    finally:
        await connection.close()
    refuse_incompatible(applied, database.schema)
    return version_of(applied)


async def check(connection: Connection, schema: Schema) -> None:
    """Raise a SchemaError if this program cannot use the schema: missing, too old, too new, or not awa's."""
    applied = await list_applied(connection, schema)
    refuse_incompatible(applied, schema)
    version = version_of(applied)
    if version == 0:
        raise SchemaMissing(f"the database has no schema {schema.name!r} of awa: run `awa migrate`")
    if version < needed_version():
        raise SchemaMissing(
            f"schema {schema.name!r} has version {version}, this program needs {needed_version()}: run `awa migrate`"
        )


def refuse_incompatible(applied: list[AppliedMigration], schema: Schema) -> None:
    """Raise SchemaTooNew if a migration that this program does not have is not compatible with it."""
    breaking = [each for each in applied if each.version > needed_version() and not each.compatible]
    if breaking:
        needed = breaking[-1]
        raise SchemaTooNew(
            f"schema {schema.name!r} has version {version_of(applied)} and needs a program that supports version "
            f"{needed.version}, this one supports {needed_version()}: upgrade awa-py to {needed.awa_version} or newer"
        )


def _render(migration: Migration, schema: Schema) -> str:
    applied = (
        "\nINSERT INTO awa.schema_version (version, name, compatible, awa_version)\n"
        f"VALUES ({migration.version}, '{migration.name}', {migration.compatible}, '{release_of('awa-py')}');\n"
    )
    return schema.qualify(fill_placeholders(migration.sql) + applied)


def _require_version(version: int, schema: Schema) -> str:
    """Return a statement that fails if the schema has another version, e.g. because the script was applied before."""
    return schema.qualify(f"""
DO $$ BEGIN
    IF (SELECT max(version) FROM awa.schema_version) IS DISTINCT FROM {version} THEN
        RAISE EXCEPTION 'this script is for version {version} of the schema, which has version %',
            (SELECT max(version) FROM awa.schema_version);
    END IF;
END $$;
""")


def _read(entry: Traversable) -> str:
    if entry.is_file():
        return entry.read_text(encoding="utf-8")
    parts = sorted((part for part in entry.iterdir() if part.name.endswith(".sql")), key=lambda part: part.name)
    return "\n".join(part.read_text(encoding="utf-8") for part in parts)


async def _lock_migrations(connection: Connection) -> None:
    """Wait for other migrations. Every login can hold the lock, so the wait has an end."""
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
            await connection.execute("SET LOCAL lock_timeout TO DEFAULT")
    except asyncpg.LockNotAvailableError:
        pid = await connection.fetchval(
            """SELECT pid FROM pg_locks JOIN pg_database d ON d.oid = database AND datname = current_database()
               WHERE locktype = 'advisory' AND granted AND objsubid = 1
                 AND (classid::bigint << 32 | objid::bigint) = $1""",
            MIGRATION_LOCK,
        )
        raise SchemaError(
            f"cannot migrate: another session (PID {pid}) has held the lock of migrations for {LOCK_TIMEOUT}: if it is "
            f"no migration, end it (SELECT pg_terminate_backend({pid})), and migrate again"
        ) from None


async def _create_schema(connection: Connection, schema: Schema) -> None:
    exists = await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", schema.name)
    if not exists:  # IF NOT EXISTS needs CREATE on the database, which the schema's owner may not have
        await connection.execute(f'CREATE SCHEMA "{schema.name}"')
