"""The roles of a schema, and its owner, as migrations need them."""

from importlib.resources import files

import asyncpg

from awa_py.connections import Connection
from awa_py.db.schema import Schema
from awa_py.errors import SchemaError
from awa_py.text import describe


def role_names(schema: Schema) -> list[str]:
    """Return the names of the roles that `create_roles` creates."""
    return [f"{schema.name}_{role}" for role in ("owner", "worker", "producer", "reader")]


def roles_sql(schema: Schema) -> str:
    """Return the SQL that creates the roles."""
    return _read("roles.sql", schema)


def grants_sql(schema: Schema) -> str:
    """Return the SQL that sets the rights of the roles."""
    return _read("grants.sql", schema)


async def create_roles(connection: Connection, schema: Schema) -> None:
    """Create the roles that are missing, and give the schema to its owner."""
    await connection.execute("RESET ROLE")  # CREATEROLE is a right of the login, not of the owner
    try:
        await connection.execute(roles_sql(schema))
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaError(
            f"cannot create the roles of schema {schema.name!r}: {describe(error)} Migrate as a superuser, or as the "
            "schema's owner with CREATEROLE; `awa migrate --roles --sql` prints the SQL to apply by hand"
        ) from error


async def has_roles(connection: Connection, schema: Schema) -> bool:
    """Return whether the roles have rights on this schema. Another database may have roles of the same names."""
    found = await connection.fetchval(
        """SELECT count(*) FROM pg_namespace CROSS JOIN aclexplode(nspacl) AS granted
           WHERE nspname = $1 AND pg_get_userbyid(granted.grantee) = $2""",
        schema.name,
        f"{schema.name}_worker",
    )
    return bool(found)


async def set_role_to_owner(connection: Connection, schema: Schema) -> None:
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


def _read(name: str, schema: Schema) -> str:
    return schema.qualify((files("awa_schema") / name).read_text(encoding="utf-8"))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
