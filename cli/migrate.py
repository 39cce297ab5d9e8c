"""awa migrate"""

import sys
from typing import Annotated

import typer

from awa_py.db import migrations as schema
from awa_py.db.migrations import Migration, MigrationStatus
from awa_py.db.roles import role_names
from awa_py.text import count

from .environment import Environment
from .output import print_json, print_table, say
from .parsing import JsonOption


async def migrate(
    env: Environment,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print what the database lacks as an SQL script; change nothing.")
    ] = False,
    from_version: Annotated[
        int | None,
        typer.Option(
            "--from",
            metavar="VERSION",
            min=0,
            help="With --sql: the version to start from (0: none). Needs no database.",
        ),
    ] = None,
    to_version: Annotated[
        int | None,
        typer.Option(
            "--to", metavar="VERSION", min=1, help="With --sql: the version to end with. Default: the newest."
        ),
    ] = None,
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
    if (from_version, to_version) != (None, None) and (roles or not sql):
        raise typer.BadParameter("use --from and --to with --sql and without --roles")
    if sql and roles:
        sys.stdout.write(schema.roles_script(env.schema))
    elif sql:
        await _print_script(env, from_version, to_version)
    elif status:
        _show_steps(await schema.status(await env.database()), as_json=as_json)
    else:
        database = await env.database()
        applied = await schema.migrate(database, roles=roles)
        _show_applied(applied, env.schema.name, await schema.installed_version(database), as_json=as_json)
        if roles and not as_json:
            _show_roles(role_names(env.schema))


async def _print_script(env: Environment, from_version: int | None, to_version: int | None) -> None:
    """Print the migrations between two versions, by default from the database's to this program's."""
    newest = schema.needed_version()
    last = newest if to_version is None else to_version
    if last > newest:
        raise typer.BadParameter(f"--to {last}: this program has the versions up to {newest}")
    if from_version is not None and from_version > last:
        raise typer.BadParameter(f"--from {from_version} is newer than version {last}")
    if from_version is not None:
        start = from_version
    elif env.has_database:
        start = await schema.installed_version(await env.database())
    else:
        start = 0
        _note("no database is named, so this is the whole schema: name one, or use --from VERSION, for an upgrade")
    text = schema.script(env.schema, from_version=start, to_version=last)
    if not text:
        _note(f'schema "{env.schema.name}" is at version {start}: nothing to do')
    sys.stdout.write(text)


def _note(sentence: str) -> None:
    """Print to standard error, because standard output is the script."""
    typer.echo(f"awa: {sentence}", err=True)


def _show_steps(steps: list[MigrationStatus], *, as_json: bool) -> None:
    if as_json:
        print_json(steps)
        return
    print_table(
        [
            {
                "version": f"{step.version:04}",
                "name": step.name,
                "compatible": "yes" if step.compatible else "no",
                "applied": f"{step.applied_at:%Y-%m-%d %H:%M:%S %Z}" if step.applied_at else "not yet",
            }
            for step in steps
        ],
        empty="no migrations",
    )


def _show_roles(names: list[str]) -> None:
    say(f"roles: {', '.join(names)}")
    say(f'to use a role, grant it to a login: GRANT "{names[1]}" TO login')


def _show_applied(applied: list[Migration], name: str, version: int, *, as_json: bool) -> None:
    if as_json:
        print_json([{"version": migration.version, "name": migration.name} for migration in applied])
        return
    for migration in applied:
        say(f"applied {migration.version:04} {migration.name}")
    changes = count(len(applied), "migration") if applied else "nothing to do"
    say(f'schema "{name}" is at version {version}: {changes}')
