"""Brings the database's schema to the version that this program needs: numbered files, forward only."""

import logging
import re
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from importlib.resources.abc import Traversable

import asyncpg

from awa_py.db.columns import fill_columns
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.db.types import Connection
from awa_py.errors import SchemaError, SchemaMissing, SchemaTooNew
from awa_py.text import describe

logger = logging.getLogger("awa.migrate")

# Any fixed number would do: processes that migrate at once queue up behind it.
MIGRATION_LOCK = 0x4157415F4D494752  # "AWA_MIGR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered file of `schema/`."""

    version: int
    name: str
    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A migration, and when it was applied here."""

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
    """The version of the schema that this program works with."""
    return all_migrations()[-1].version


def role_names(schema: Schema) -> list[str]:
    """The roles that `migrate(roles=True)` makes."""
    return [f"{schema.name}_{duty}" for duty in ("owner", "worker", "producer", "reader")]


def script(schema: Schema) -> str:
    """The whole schema as one script, for those who apply SQL by other means."""
    parts = [
        f"-- {migration.version:04} {migration.name}\n\n{_text(migration, schema)}" for migration in all_migrations()
    ]
    return "\n".join(["BEGIN;", f'CREATE SCHEMA IF NOT EXISTS "{schema.name}";', *parts, "COMMIT;\n"])


def roles_script(schema: Schema) -> str:
    """The roles and what they may do as one script, for those who apply SQL by other means."""
    become_owner = f'SET LOCAL ROLE "{schema.name}_owner";\n'
    return "\n".join(["BEGIN;", _file("roles", schema), become_owner, _file("grants", schema), "COMMIT;\n"])


async def migrate(database: Database, *, roles: bool = False) -> list[Migration]:
    """Applies what is missing, all in one transaction, and returns it. Safe when many processes start it at once.

    With `roles`, makes the roles too. Where they were made before, they may do what they should with what is new.
    """
    connection = await database.connect_sessionless("migrate")
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
            version = await current_version(connection, database.schema)
            _refuse_newer(version, database.schema)
            pending = [migration for migration in all_migrations() if migration.version > version]
            if version == 0:
                await _create_schema(connection, database.schema)
            elif pending:
                await _become_owner(connection, database.schema)
            for migration in pending:
                await connection.execute(_text(migration, database.schema))
                logger.info("applied %04d %s", migration.version, migration.name)
            if roles:
                await _make_roles(connection, database.schema)
            if roles or (pending and await _has_roles(connection, database.schema)):
                await _become_owner(connection, database.schema)
                await connection.execute(_file("grants", database.schema))
            return pending
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaError(f"cannot migrate schema {database.schema.name!r}: {describe(error)}") from error
    finally:
        await connection.close()


async def status(database: Database) -> list[Step]:
    """Every known migration, with the time at which it was applied."""
    connection = await database.connect_sessionless("migrate")
    try:
        version = await current_version(connection, database.schema)
        _refuse_newer(version, database.schema)
        query = database.schema.qualify("SELECT version, applied_at FROM awa.schema_version")
        applied = {row["version"]: row["applied_at"] for row in await connection.fetch(query)} if version else {}
    finally:
        await connection.close()
    return [Step(version=m.version, name=m.name, applied_at=applied.get(m.version)) for m in all_migrations()]


async def check(connection: Connection, schema: Schema) -> None:
    """Raises a sentence that says what to do where the schema is not the one that this program needs."""
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


def _text(migration: Migration, schema: Schema) -> str:
    applied = f"\nINSERT INTO awa.schema_version (version, name) VALUES ({migration.version}, '{migration.name}');\n"
    return schema.qualify(fill_columns(migration.sql) + applied)


def _read(entry: Traversable) -> str:
    if entry.is_file():
        return entry.read_text(encoding="utf-8")
    parts = sorted((part for part in entry.iterdir() if part.name.endswith(".sql")), key=lambda part: part.name)
    return "\n".join(part.read_text(encoding="utf-8") for part in parts)


def _file(name: str, schema: Schema) -> str:
    return schema.qualify((files("awa_schema") / f"{name}.sql").read_text(encoding="utf-8"))


async def current_version(connection: Connection, schema: Schema) -> int:
    """The version of the schema that is there; 0: none is."""
    exists = await connection.fetchval("SELECT to_regclass($1)", f'"{schema.name}".schema_version')
    if exists is None:
        return 0
    version = await connection.fetchval(schema.qualify("SELECT max(version) FROM awa.schema_version"))
    return int(version or 0)


async def _create_schema(connection: Connection, schema: Schema) -> None:
    exists = await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", schema.name)
    if not exists:  # IF NOT EXISTS would ask for a right that an owner of the schema may not have
        await connection.execute(f'CREATE SCHEMA "{schema.name}"')


async def _become_owner(connection: Connection, schema: Schema) -> None:
    """What is made from here on belongs to whom the rest belongs, whoever makes it."""
    row = await connection.fetchrow(
        """SELECT pg_get_userbyid(relowner), session_user, pg_has_role(session_user, relowner, 'MEMBER')
           FROM pg_class WHERE oid = $1::text::regclass""",
        f'"{schema.name}".schema_version',
    )
    assert row is not None
    owner, login, is_member = row
    if not is_member:
        raise SchemaError(f"schema {schema.name!r} belongs to {owner}: migrate as {owner}, or GRANT {owner} TO {login}")
    await connection.execute(f"SET LOCAL ROLE {_quoted(owner)}")


async def _make_roles(connection: Connection, schema: Schema) -> None:
    await connection.execute("RESET ROLE")  # creating roles is a right of the login's own
    try:
        await connection.execute(_file("roles", schema))
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaError(
            f"cannot make the roles of schema {schema.name!r}: {describe(error)} It takes a superuser, or the schema's "
            "owner with CREATEROLE; `awa migrate --roles --sql` prints the SQL for somebody who may"
        ) from error


async def _has_roles(connection: Connection, schema: Schema) -> bool:
    """Whether the roles were made for this schema; those of another database may have the same names."""
    found = await connection.fetchval(
        """SELECT count(*) FROM pg_namespace CROSS JOIN aclexplode(nspacl) AS given
           WHERE nspname = $1 AND pg_get_userbyid(given.grantee) = $2""",
        schema.name,
        f"{schema.name}_worker",
    )
    return bool(found)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
