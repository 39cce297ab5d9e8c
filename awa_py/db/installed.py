"""What a schema of the database contains: the migrations that were applied to it, or something that is not awa's."""

from dataclasses import dataclass
from datetime import datetime

import asyncpg

from awa_py.connections import Connection
from awa_py.db.schema import Schema
from awa_py.db.search_path import SET_LOCAL_SEARCH_PATH
from awa_py.errors import SchemaForeign


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedMigration:
    """A row of `awa.schema_version`. This program may not have the migration, if a newer one applied it."""

    version: int
    name: str
    compatible: bool
    awa_version: str
    applied_at: datetime


async def list_applied(connection: Connection, schema: Schema) -> list[AppliedMigration]:
    """Return the migrations that were applied, in order; none if the schema is missing or empty.

    Raise SchemaForeign if the schema contains something that awa did not create.
    """
    if await connection.fetchval("SELECT pg_catalog.to_regclass($1)", f'"{schema.name}".schema_version') is None:
        rows = []
    else:
        query = "SELECT version, name, compatible, awa_version, applied_at FROM awa.schema_version ORDER BY version"
        try:
            rows = await connection.fetch(schema.qualify(query))
        except asyncpg.UndefinedColumnError:  # another program, with a table of the same name
            raise _foreign(schema) from None
    if not rows and await _has_relations(connection, schema):
        raise _foreign(schema)
    return [AppliedMigration(**dict(row)) for row in rows]


async def current_version(connection: Connection, schema: Schema) -> int:
    """Return the version of the schema in the database; 0: there is none."""
    return version_of(await list_applied(connection, schema))


def version_of(applied: list[AppliedMigration]) -> int:
    """Return the version of a schema with these migrations."""
    return applied[-1].version if applied else 0


async def _has_relations(connection: Connection, schema: Schema) -> bool:
    """Return whether the schema has tables, views or sequences, except those of extensions."""
    async with connection.transaction():
        await connection.execute(SET_LOCAL_SEARCH_PATH)
        found = await connection.fetchval(
            """SELECT EXISTS (
                   SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
                   WHERE nspname = $1 AND NOT EXISTS (
                       SELECT FROM pg_depend
                       WHERE classid = 'pg_class'::regclass AND objid = c.oid AND deptype = 'e'))""",
            schema.name,
        )
    return bool(found)


def _foreign(schema: Schema) -> SchemaForeign:
    return SchemaForeign(
        f"schema {schema.name!r} of this database belongs to another program: choose another name with --schema or "
        "AWA_SCHEMA (in Python: App(schema=…))"
    )
