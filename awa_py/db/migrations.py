"""Apply the numbered migrations of `schema/` until the database has the version that this program needs.

Migrations only go forward, and all pending ones are applied in one transaction.
"""

import logging
import re
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from importlib.resources.abc import Traversable

import asyncpg

from awa_py.db.columns import fill_placeholders
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.db.search_path import SET_LOCAL_SEARCH_PATH
from awa_py.db.types import Connection
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStatus:
    """A migration, and when it was applied to a database (None: not yet)."""

    version: int
    name: str
    applied_at: datetime | None


def all_migrations() -> list[Migration]:
    """Return every migration that this version of awa has, in order.

    A migration is a file `0002_name.sql`, or a directory `0001_name` whose SQL files are applied in the order of their
    names.
    """
    found = []
    for entry in files("awa_schema").iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+?)(\.sql)?", entry.name)
        if match:
            found.append(Migration(version=int(match[1]), name=match[2], sql=_read(entry)))
    return sorted(found, key=lambda migration: migration.version)


def needed_version() -> int:
    """Return the version of the schema that this program needs."""
    return all_migrations()[-1].version


def role_names(schema: Schema) -> list[str]:
    """Return the names of the roles that `migrate(roles=True)` creates."""
    return [f"{schema.name}_{role}" for role in ("owner", "worker", "producer", "reader")]


def script(schema: Schema) -> str:
    """Return the whole schema as one script, for deployments that apply SQL by other means."""
    parts = [
        f"-- {migration.version:04} {migration.name}\n\n{_render(migration, schema)}" for migration in all_migrations()
    ]
    return "\n".join([*BEGIN_SCRIPT, f'CREATE SCHEMA IF NOT EXISTS "{schema.name}";', *parts, "COMMIT;\n"])


def roles_script(schema: Schema) -> str:
    """Return the roles and their rights as one script, for deployments that apply SQL by other means."""
    set_role = f'SET LOCAL ROLE "{schema.name}_owner";\n'
    return "\n".join([*BEGIN_SCRIPT, _file("roles", schema), set_role, _file("grants", schema), "COMMIT;\n"])


async def migrate(database: Database, *, roles: bool = False) -> list[Migration]:
    """Apply the pending migrations in one transaction, and return them. Concurrent calls are safe.

    With `roles`, create the roles too. If they exist already, grant them their rights on new objects.
    """
    connection = await database.connect_sessionless("migrate")
    try:
        async with connection.transaction():
            await connection.execute(SET_LOCAL_SEARCH_PATH)
            await _lock_migrations(connection)
            version = await current_version(connection, database.schema)
            _refuse_newer(version, database.schema)
            pending = [migration for migration in all_migrations() if migration.version > version]
            if version == 0:
                await _create_schema(connection, database.schema)
            elif pending:
                await _set_role_to_owner(connection, database.schema)
            for migration in pending:
                await connection.execute(_render(migration, database.schema))
                logger.info("applied migration %04d %s", migration.version, migration.name)
            if roles:
                await _create_roles(connection, database.schema)
            if roles or (pending and await _has_roles(connection, database.schema)):
                await _set_role_to_owner(connection, database.schema)
                await connection.execute(_file("grants", database.schema))
            return pending
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaError(f"cannot migrate schema {database.schema.name!r}: {describe(error)}") from error
    finally:
        await connection.close()


async def status(database: Database) -> list[MigrationStatus]:
    """Return all migrations of this program, and when each was applied."""
    connection = await database.connect_sessionless("migrate")
    try:
        version = await current_version(connection, database.schema)
        _refuse_newer(version, database.schema)
        query = database.schema.qualify("SELECT version, applied_at FROM awa.schema_version")
        applied = {row["version"]: row["applied_at"] for row in await connection.fetch(query)} if version else {}
    finally:
        await connection.close()
    return [
        MigrationStatus(version=m.version, name=m.name, applied_at=applied.get(m.version)) for m in all_migrations()
    ]


async def check(connection: Connection, schema: Schema) -> None:
    """Raise SchemaMissing or SchemaTooNew if the schema has another version than this program needs."""
    version = await current_version(connection, schema)
    _refuse_newer(version, schema)
    if version == 0:
        raise SchemaMissing(f"the database has no schema {schema.name!r} of awa: run `awa migrate`")
    if version < needed_version():
        raise SchemaMissing(
            f"schema {schema.name!r} has version {version}, this program needs {needed_version()}: run `awa migrate`"
        )


def _refuse_newer(version: int, schema: Schema) -> None:
    if version > needed_version():
        raise SchemaTooNew(
            f"schema {schema.name!r} has version {version}, this program knows {needed_version()}: upgrade awa"
        )


def _render(migration: Migration, schema: Schema) -> str:
    applied = f"\nINSERT INTO awa.schema_version (version, name) VALUES ({migration.version}, '{migration.name}');\n"
    return schema.qualify(fill_placeholders(migration.sql) + applied)


def _read(entry: Traversable) -> str:
    if entry.is_file():
        return entry.read_text(encoding="utf-8")
    parts = sorted((part for part in entry.iterdir() if part.name.endswith(".sql")), key=lambda part: part.name)
    return "\n".join(part.read_text(encoding="utf-8") for part in parts)


def _file(name: str, schema: Schema) -> str:
    return schema.qualify((files("awa_schema") / f"{name}.sql").read_text(encoding="utf-8"))


async def current_version(connection: Connection, schema: Schema) -> int:
    """Return the version of the schema in the database; 0: there is none."""
    exists = await connection.fetchval("SELECT pg_catalog.to_regclass($1)", f'"{schema.name}".schema_version')
    if exists is None:
        return 0
    version = await connection.fetchval(schema.qualify("SELECT pg_catalog.max(version) FROM awa.schema_version"))
    return int(version or 0)


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


async def _set_role_to_owner(connection: Connection, schema: Schema) -> None:
    """SET ROLE to the schema's owner, so that new objects have the same owner."""
    row = await connection.fetchrow(
        """SELECT pg_get_userbyid(relowner) AS owner, session_user AS login,
                  pg_has_role(session_user, relowner, 'MEMBER') AS is_member
           FROM pg_class WHERE oid = $1::text::regclass""",
        f'"{schema.name}".schema_version',
    )
    assert row is not None
    owner, login = row["owner"], row["login"]
    if not row["is_member"]:
        raise SchemaError(f"schema {schema.name!r} belongs to {owner}: migrate as {owner}, or GRANT {owner} TO {login}")
    await connection.execute(f"SET LOCAL ROLE {_quoted(owner)}")


async def _create_roles(connection: Connection, schema: Schema) -> None:
    await connection.execute("RESET ROLE")  # CREATEROLE is a right of the login, not of the owner
    try:
        await connection.execute(_file("roles", schema))
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaError(
            f"cannot create the roles of schema {schema.name!r}: {describe(error)} Migrate as a superuser, or as the "
            "schema's owner with CREATEROLE; `awa migrate --roles --sql` prints the SQL to apply by hand"
        ) from error


async def _has_roles(connection: Connection, schema: Schema) -> bool:
    """Return whether the roles have rights on this schema. Another database may have roles of the same names."""
    found = await connection.fetchval(
        """SELECT count(*) FROM pg_namespace CROSS JOIN aclexplode(nspacl) AS granted
           WHERE nspname = $1 AND pg_get_userbyid(granted.grantee) = $2""",
        schema.name,
        f"{schema.name}_worker",
    )
    return bool(found)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
