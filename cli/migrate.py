"""awa migrate"""

import sys
from typing import Annotated

import typer

from awa_py.db import migrations as schema
from awa_py.db.migrations import Migration, MigrationStatus
from awa_py.text import count

from .environment import Environment
from .output import print_json, print_table, say
from .parsing import JsonOption


async def migrate(
    env: Environment,
    sql: Annotated[bool, typer.Option("--sql", help="Print the schema as an SQL script; change nothing.")] = False,
    status: Annotated[bool, typer.Option("--status", help="List the migrations; change nothing.")] = False,
    roles: Annotated[
        bool,
        typer.Option(
            "--roles",
            help="Also create the roles SCHEMA_owner, _worker, _producer, _reader. With --sql: print only their SQL.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create or upgrade the database's schema."""
    if sql and status:
        raise typer.BadParameter("use either --sql or --status")
    if roles and status:
        raise typer.BadParameter("use either --roles or --status")
    if sql:
        sys.stdout.write(schema.roles_script(env.schema) if roles else schema.script(env.schema))
    elif status:
        _show_steps(await schema.status(await env.database()), as_json=as_json)
    else:
        applied = await schema.migrate(await env.database(), roles=roles)
        _show_applied(applied, env.schema.name, as_json=as_json)
        if roles and not as_json:
            _show_roles(schema.role_names(env.schema))


def _show_steps(steps: list[MigrationStatus], *, as_json: bool) -> None:
    if as_json:
        print_json(steps)
        return
    print_table(
        [
            {
                "version": f"{step.version:04}",
                "name": step.name,
                "applied": f"{step.applied_at:%Y-%m-%d %H:%M:%S %Z}" if step.applied_at else "not yet",
            }
            for step in steps
        ],
        empty="no migrations",
    )


def _show_roles(names: list[str]) -> None:
    say(f"roles: {', '.join(names)}")
    say(f'to use a role, grant it to a login: GRANT "{names[1]}" TO login')


def _show_applied(applied: list[Migration], name: str, *, as_json: bool) -> None:
    if as_json:
        print_json([{"version": migration.version, "name": migration.name} for migration in applied])
        return
    for migration in applied:
        say(f"applied {migration.version:04} {migration.name}")
    changes = count(len(applied), "migration") if applied else "nothing to do"
    say(f'schema "{name}" is at version {schema.needed_version()}: {changes}')
