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
from awa_py.text import short_duration

from .environment import Environment, command, default_command
from .output import Row, ago, print_json, print_table, say
from .parsing import JsonOption

app = typer.Typer(help="List the workers; stop them, or have them be quiet.")

Names = Annotated[
    list[str],
    typer.Argument(metavar="LABEL", help="A label, an id or its beginning; with a star at the end: all that begin so."),
]


@default_command(app, "awa workers --json")
async def workers(env: Environment, as_json: JsonOption = False) -> None:
    """List the workers, and what they do; or tell them something."""
    async with env.session() as session:
        found = await _all(session, env)
        now = await session.now()
    if as_json:
        print_json(found)
    else:
        print_table([_row(worker, now) for worker in found], empty="no workers")


@command(app, "awa workers stop mail-worker-1.4-7f3a")
async def stop(env: Environment, names: Names) -> None:
    """Stop workers, as SIGTERM does: running jobs may finish."""
    await _tell(env, names, "stops", stop=True)


@command(app, "awa workers quiet 'mail-*'")
async def quiet(env: Environment, names: Names) -> None:
    """Have workers claim nothing; running jobs finish."""
    await _tell(env, names, "is quiet", quiet=True)


@command(app, "awa workers resume 'mail-*'")
async def resume(env: Environment, names: Names) -> None:
    """Have quiet workers claim again."""
    await _tell(env, names, "goes on", quiet=False)


async def _tell(
    env: Environment, names: Sequence[str], what: str, *, quiet: bool | None = None, stop: bool = False
) -> None:
    async with env.session() as session:
        known = await _all(session, env)
        meant = {worker.id: worker for name in names for worker in worker_lookup.find_workers(known, name)}
        told = await store.command_workers(session, list(meant), quiet=quiet, stop=stop)
    for worker in meant.values():
        who = f"worker {worker.name} ({worker.hostname}:{worker.pid})"
        if worker.id not in told:
            say(f"{who} has left meanwhile")
        elif worker.stopping and not stop:
            say(f"{who} stops: nothing changes that")
        elif not worker.alive:
            say(f"{who} {what}, once it is heard of: it has been silent for {short_duration(_silence(worker))}")
        else:
            say(f"{who} {what}")


async def _all(session: Session, env: Environment) -> list[WorkerRow]:
    return await store.list_workers(
        session, staleness=min(env.settings.share_staleness, env.settings.heartbeat_staleness)
    )


def _row(worker: WorkerRow, now: datetime) -> Row:
    parts = (f"{queue} {part['slots']}/{part['max_workers']}" for queue, part in worker.slots.items())
    return {
        "worker": Text(worker.label or str(worker.id)[:8]),
        "host": f"{worker.hostname}:{worker.pid}",
        "version": worker.version,
        "queues": ", ".join(worker.queues),
        "slots": ", ".join(parts),
        "kinds": len(worker.kinds),
        "busy": Text(f"{worker.running}/{worker.concurrency}"),
        "started": Text(ago(worker.started_at, now)),
        "beat": Text(ago(worker.heartbeat_at, now)),
        "status": _status(worker),
    }


def _status(worker: WorkerRow) -> Text:
    if not worker.alive:
        return Text("silent", style="red")
    if worker.stopping:
        return Text("stopping", style="yellow")
    return Text("quiet", style="yellow") if worker.quiet else Text("alive", style="green")


def _silence(worker: WorkerRow) -> timedelta:
    return timedelta(seconds=worker.silent_s)
