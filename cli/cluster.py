"""awa leader, awa stats"""

import asyncio
import sys
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, NoReturn

import typer
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from awa_py.model.job import State
from awa_py.store import election, jobs, queues
from awa_py.store.election import Leader
from awa_py.store.jobs import JobCounts
from awa_py.store.queues import QueueRow, WorkerRow
from awa_py.store.session import Session
from awa_py.text import count

from .environment import Environment
from .lately import MINUTE, show_lately
from .output import Row, ago, console, group, print_fields, print_json, say, show, stamp, state_text, table
from .parsing import JsonOption, parse_duration
from .queue import rows as queue_rows

WINDOW = timedelta(minutes=1)
REDRAW_S = 1.0
NOBODY = "nobody leads: start `awa worker` or `awa maintenance`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The whole queue at one moment."""

    now: datetime
    jobs: JobCounts
    queues: list[QueueRow]
    workers: list[WorkerRow]
    leader: Leader | None

    @classmethod
    async def of(cls, session: Session, *, staleness: timedelta) -> "Overview":
        return cls(
            now=await session.now(),
            jobs=await jobs.count_jobs(session, window=WINDOW),
            queues=await queues.list_queues(session, staleness=staleness),
            workers=await queues.list_workers(session, staleness=staleness),
            leader=await election.get_leader(session),
        )


async def leader(env: Environment, as_json: JsonOption = False) -> None:
    """Show who leads."""
    async with env.session() as session:
        found = await election.get_leader(session)
        now = await session.now()
    if as_json:
        print_json(found)
    elif found is None:
        say(NOBODY)
    else:
        print_fields(
            {
                "worker": str(found.worker_id),
                "host": found.hostname,
                "pid": found.pid,
                "epoch": found.epoch,
                "elected": stamp(found.elected_at, now),
            }
        )


def stats(
    env: Environment,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again every second, until Ctrl-C.")] = False,
    since: Annotated[
        timedelta | None,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="What ended since then instead: how many, how fast, how many failed; 1h, 7d.",
        ),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", metavar="NAME", help="Only of this queue; with --since.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", "-k", metavar="NAME", help="Only of this kind; with --since.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Count the jobs by state and by queue; or, by queue and kind, what ended in the last hours."""
    if since is not None:
        if watch:
            raise typer.BadParameter("use either --since or --watch: the minutes are rolled up once a minute")
        if since < MINUTE:
            raise typer.BadParameter("--since is 1m or more: what ended is counted by the minute")
        env.run(show_lately(env, since, queue=queue, kind=kind, as_json=as_json))
        return
    if queue is not None or kind is not None:
        raise typer.BadParameter("--queue and --kind go with --since")
    with suppress(KeyboardInterrupt) if watch else nullcontext():  # Ctrl-C is how watching ends
        env.run(_stats(env, watch=watch, as_json=as_json))


async def _stats(env: Environment, *, watch: bool, as_json: bool) -> None:
    staleness = env.settings.heartbeat_staleness
    async with env.session() as session:
        if watch:
            await _watch(session, staleness, as_json=as_json)
        overview = await Overview.of(session, staleness=staleness)
    if as_json:
        print_json(_numbers(overview))
    else:
        show(_picture(overview, console().width))


async def _watch(session: Session, staleness: timedelta, *, as_json: bool) -> NoReturn:
    """One picture in one place; or a line of JSON a second."""
    out = console()
    with nullcontext() if as_json else Live(console=out, auto_refresh=False) as live:
        while True:
            overview = await Overview.of(session, staleness=staleness)
            if live is None:
                print_json(_numbers(overview), compact=True)
                sys.stdout.flush()
            else:
                live.update(_picture(overview, out.width), refresh=True)
            await asyncio.sleep(REDRAW_S)


def _numbers(overview: Overview) -> dict[str, Any]:
    return {
        "states": {state: overview.jobs.by_state.get(state, 0) for state in State},
        "last_minute": {"completed": overview.jobs.completed, "failed_or_cancelled": overview.jobs.dead},
        "queues": overview.queues,
        "workers": sum(worker.alive for worker in overview.workers),
        "leader": overview.leader,
    }


def _picture(overview: Overview, width: int) -> RenderableType:
    alive = [worker for worker in overview.workers if worker.alive]
    slots = sum(worker.concurrency for worker in alive)
    led = overview.leader
    lines = [
        f"last minute: {overview.jobs.completed:,} completed, {overview.jobs.dead:,} failed or cancelled",
        f"workers: {len(alive)}, with {count(slots, 'slot')}",
        NOBODY if led is None else f"leader: {led.hostname}:{led.pid}, elected {ago(led.elected_at, overview.now)}",
    ]
    states: list[Row] = [{"state": state_text(state), "jobs": overview.jobs.by_state.get(state, 0)} for state in State]
    parts: list[RenderableType] = [table(states, width)]
    if overview.queues:
        parts.append(table(queue_rows(overview.queues, overview.now), width))
    return group(*parts, Text("\n".join(lines)))
