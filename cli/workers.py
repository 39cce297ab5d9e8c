"""awa workers …"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated

import typer
from rich.text import Text

from awa_py.observability import worker_lookup
from awa_py.store import workers as store
from awa_py.store.session import Session
from awa_py.store.workers import WorkerRow
from awa_py.text import escape, short_duration

from .decorators import command, default_command
from .environment import Environment
from .output import Row, ago, print_json, print_table, say
from .parsing import JsonOption

app = typer.Typer(help="List workers, stop them, or make them quiet.")

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="LABEL", help="A label, an id or its beginning; with a star at the end: all that begin with it."
    ),
]


@default_command(app, "awa workers --json")
async def workers(env: Environment, as_json: JsonOption = False) -> None:
    """List the workers and what they do, or send them a command."""
    async with env.session() as session:
        found = await _list_workers(session, env)
        now = await session.now()
    if as_json:
        print_json(found)
    else:
        print_table([_row(worker, now) for worker in found], empty="no workers")


@command(app, "awa workers stop mail-worker-1.4-7f3a")
async def stop(env: Environment, names: Names) -> None:
    """Stop workers as SIGTERM does: running jobs may finish."""
    await _command(env, names, "stop", stop=True)


@command(app, "awa workers quiet 'mail-*'")
async def quiet(env: Environment, names: Names) -> None:
    """Make workers quiet: they claim nothing, and running jobs finish."""
    await _command(env, names, "be quiet", quiet=True)


@command(app, "awa workers resume 'mail-*'")
async def resume(env: Environment, names: Names) -> None:
    """Make quiet workers claim again."""
    await _command(env, names, "resume", quiet=False)


async def _command(
    env: Environment, names: Sequence[str], action: str, *, quiet: bool | None = None, stop: bool = False
) -> None:
    async with env.session() as session:
        known = await _list_workers(session, env)
        found = {worker.id: worker for name in names for worker in worker_lookup.find_workers(known, name)}
        reached = await store.command_workers(session, list(found), quiet=quiet, stop=stop)
    for worker in found.values():
        who = f"worker {worker.name} ({worker.hostname}:{worker.pid})"
        if worker.id not in reached:
            say(f"{who} has already ended")
        elif worker.stopping and not stop:
            say(f"{who} is already stopping")
        elif not worker.alive:
            silence = short_duration(timedelta(seconds=worker.silent_s))
            say(f"{who} will {action} when it responds: its last heartbeat was {silence} ago")
        else:
            say(f"{who} will {action}")


async def _list_workers(session: Session, env: Environment) -> list[WorkerRow]:
    return await store.list_workers(
        session, staleness=min(env.settings.share_staleness, env.settings.heartbeat_staleness)
    )


def _row(worker: WorkerRow, now: datetime) -> Row:
    shares = (f"{queue} {share['slots']}/{share['max_workers']}" for queue, share in worker.slots.items())
    return {
        "worker": Text(escape(worker.label or str(worker.id)[:8])),
        "host": f"{worker.hostname}:{worker.pid}",
        "version": worker.version,
        "queues": ", ".join(worker.queues),
        "slots": ", ".join(shares),
        "kinds": len(worker.kinds),
        "busy": Text(f"{worker.running}/{worker.concurrency}"),
        "started": Text(ago(worker.started_at, now)),
        "heartbeat": Text(ago(worker.heartbeat_at, now)),
        "status": _status(worker),
    }


def _status(worker: WorkerRow) -> Text:
    if not worker.alive:
        return Text("silent", style="red")
    if worker.stopping:
        return Text("stopping", style="yellow")
    return Text("quiet", style="yellow") if worker.quiet else Text("alive", style="green")
