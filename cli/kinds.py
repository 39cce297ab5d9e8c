"""awa kinds …"""

from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from awa_py import durations
from awa_py.declaring import declare_schedules
from awa_py.errors import UnknownKind
from awa_py.store import kinds as store
from awa_py.store.kinds import KindRow

from .decorators import command
from .environment import Environment, checked
from .output import Fields, Row, ago, compact_json, print_fields, print_json, print_table, say, timestamp
from .parsing import JsonOption

app = typer.Typer(
    help="List, show, declare and delete kinds: the options and arguments of their jobs.", no_args_is_help=True
)

Kind = Annotated[str, typer.Argument(metavar="KIND", help="Kind of jobs: the name of their handler.")]


@command(app, "awa kinds list", name="list")
async def list_kinds(env: Environment, as_json: JsonOption = False) -> None:
    """List the kinds that workers have declared."""
    async with env.session() as session:
        kinds = await store.list_kinds(session)
        now = await session.now()
    if as_json:
        print_json(kinds)
    else:
        print_table([_row(kind, now) for kind in kinds], empty="no kinds: a worker declares its kinds when it starts")


@command(app, "awa kinds show send_email")
async def show(env: Environment, kind: Kind, as_json: JsonOption = False) -> None:
    """Show what is declared about a kind."""
    async with env.session() as session:
        found = await store.list_kinds(session, kind)
        now = await session.now()
    if not found:
        raise _unknown(kind)
    if as_json:
        print_json(found[0])
    else:
        print_fields(_fields(found[0], now))


@command(app, "awa kinds sync tasks:app")
async def sync(
    env: Environment,
    spec: Annotated[str, typer.Argument(metavar="APP", envvar="AWA_APP", help="The app, as module:attribute.")],
    as_json: JsonOption = False,
) -> None:
    """Declare the kinds and schedules of an app, and make its version the newest.

    Workers do so when they start, except that a version which was replaced cannot come back. Run this after a rollback,
    or before the first worker of a deploy starts.
    """
    loaded = env.load(spec)
    declarations = loaded.declarations()
    async with checked(await env.connect(loaded)) as opened, opened.session() as session:
        declared = await store.declare_kinds(session, declarations, as_newest=True)
        schedules = await declare_schedules(session, declarations.schedules, as_newest=True)
    kinds = [kind.kind for kind in declared if kind.is_written]
    if as_json:
        print_json({"version": declarations.version, "kinds": kinds, "schedules": schedules})
    else:
        written = ", ".join([*kinds, *(f"schedule {name}" for name in schedules)])
        say(f"version {declarations.version} is the newest; changed: {written or 'nothing'}")


@command(app, "awa kinds delete send_email")
async def delete(env: Environment, kind: Kind) -> None:
    """Delete what is declared about a kind. Its jobs stay, and the next worker that has the kind declares it again."""
    async with env.session() as session:
        if not await store.delete_kind(session, kind):
            raise _unknown(kind)
    say(f'kind "{kind}" is no longer declared')


def _unknown(kind: str) -> UnknownKind:
    return UnknownKind(f'nobody has declared the kind "{kind}": see `awa kinds list`')


def _row(kind: KindRow, now: datetime) -> Row:
    return {
        "kind": kind.kind,
        "queue": kind.queue or kind.default_queue,
        "priority": kind.priority,
        "attempts": kind.max_attempts,
        "timeout": Text("" if kind.timeout is None else durations.text(kind.timeout)),
        "key": kind.concurrency_key,
        "unique": _uniqueness(kind),
        "version": kind.version,
        "declared": Text(ago(kind.declared_at, now)),
    }


def _fields(kind: KindRow, now: datetime) -> Fields:
    keyed = kind.concurrency_key is not None
    return {
        "kind": kind.kind,
        "queue": kind.queue or f"that of a route, else {kind.default_queue or 'default'}",
        "priority": kind.priority,
        "max attempts": kind.max_attempts,
        "timeout": None if kind.timeout is None else durations.text(kind.timeout),
        "delay": None if kind.delay is None else durations.text(kind.delay),
        "tags": ", ".join(kind.tags or ()),
        "metadata": None if kind.metadata is None else compact_json(kind.metadata),
        "concurrency key": kind.concurrency_key,
        "concurrency limit": kind.concurrency_limit if keyed else None,
        "ordered": ("yes" if kind.ordered else "no") if keyed else None,
        "unique": _uniqueness(kind),
        "arguments": _arguments(kind),
        "version": kind.version,
        "declared": timestamp(kind.declared_at, now),
    }


def _uniqueness(kind: KindRow) -> str | None:
    if kind.unique_states is None:
        return None
    by = "one key" if kind.unique_key is not None else ", ".join(kind.unique_by or ()) or "all arguments"
    return by if kind.unique_for is None else f"{by} for {durations.text(kind.unique_for)}"


def _arguments(kind: KindRow) -> list[str]:
    schema = kind.args_schema or {}
    required = schema.get("required", ())
    lines = [
        f"{name}{'' if name in required else ' (optional)'}: {compact_json(each)}"
        for name, each in schema.get("properties", {}).items()
    ]
    return lines if schema.get("additionalProperties") is False else [*lines, "any others"]
