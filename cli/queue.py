"""awa queue …"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated

import typer
from rich.text import Text

from awa_py.errors import UnknownQueue
from awa_py.job import State
from awa_py.store import queues as store
from awa_py.store.queues import QueueRow
from awa_py.store.session import Session
from awa_py.wording import count, relative, rough

from .environment import Environment, command
from .output import Fields, Row, length, print_fields, print_json, print_table, say, stamp
from .parsing import DEFAULT, JsonOption, QueueName, YesOption, parse_duration, parse_setting

app = typer.Typer(help="Look at queues, tune, pause, resume and purge them.", no_args_is_help=True)

PURGE_BATCH = 5_000
PURGED = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE)
HEADERS = {  # short, for eighty columns
    State.AVAILABLE: "ready",
    State.RUNNING: "run",
    State.SCHEDULED: "later",
    State.RETRYABLE: "retry",
    State.FAILED: "failed",
    State.COMPLETED: "done",
}


@command(app, "awa queue list", name="list")
async def list_queues(env: Environment, as_json: JsonOption = False) -> None:
    """List the queues that have settings or jobs."""
    async with env.session() as session:
        queues = await store.list_queues(session, staleness=env.settings.heartbeat_staleness)
        now = await session.now()
    if as_json:
        print_json(queues)
    else:
        print_table(rows(queues, now), empty="no queues")


@command(app, "awa queue show email")
async def show(env: Environment, name: QueueName, as_json: JsonOption = False) -> None:
    """Show a queue: its settings and its jobs."""
    async with env.session() as session:
        queue = await _find(session, env, name)
        now = await session.now()
    if as_json:
        print_json(queue)
    else:
        print_fields(_fields(queue, now))


@command(app, "awa queue set email --backoff-base 10s --timeout default", name="set")
async def set_queue(
    env: Environment,
    name: QueueName,
    backoff: Annotated[
        bool | None,
        typer.Option("--backoff/--no-backoff", help="Whether failed attempts wait before the next, ever longer."),
    ] = None,
    backoff_base: Annotated[
        str | None, typer.Option(parser=parse_setting, metavar="DURATION", help="The first wait.")
    ] = None,
    backoff_max: Annotated[
        str | None, typer.Option(parser=parse_setting, metavar="DURATION", help="The longest wait.")
    ] = None,
    retention_completed: Annotated[
        str | None, typer.Option(parser=parse_setting, metavar="DURATION", help="How long to keep completed jobs.")
    ] = None,
    retention_failed: Annotated[
        str | None,
        typer.Option(parser=parse_setting, metavar="DURATION", help="How long to keep failed and cancelled jobs."),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(parser=parse_setting, metavar="DURATION", help="How long an attempt may take.")
    ] = None,
    staleness: Annotated[
        str | None,
        typer.Option(parser=parse_setting, metavar="DURATION", help="How long a silent worker counts as alive."),
    ] = None,
) -> None:
    """Tune a queue: what is not named stays, `default` sets the default again."""
    durations: dict[str, timedelta | str | None] = {
        "backoff_base": backoff_base,
        "backoff_max": backoff_max,
        "completed_retention": retention_completed,
        "failed_retention": retention_failed,
        "timeout": timeout,
        "staleness": staleness,
    }
    settings: dict[str, timedelta | bool | None] = {
        column: None if value == DEFAULT else _checked(column, value)
        for column, value in durations.items()
        if value is not None
    }
    if backoff is not None:
        settings["backoff_enabled"] = backoff
    if not settings:
        raise typer.BadParameter("nothing to set: name an option, such as --timeout 5m")
    async with env.session() as session:
        await store.set_queue(session, name, settings)
        queue = await _find(session, env, name)
        now = await session.now()
    print_fields(_fields(queue, now))


@command(app, "awa queue pause email --for 10m")
async def pause(
    env: Environment,
    name: QueueName,
    period: Annotated[
        timedelta | None,
        typer.Option("--for", parser=parse_duration, metavar="DURATION", help="For how long; else until resumed."),
    ] = None,
) -> None:
    """Pause a queue: nothing is claimed from it, and what runs goes on."""
    async with env.session() as session:
        await store.pause_queue(session, name, paused=True, period=period)
    say(f'queue "{name}" is paused' + ("" if period is None else f" for {length(period)}"))


@command(app, "awa queue resume email")
async def resume(env: Environment, name: QueueName) -> None:
    """Let a paused queue go on."""
    async with env.session() as session:
        await store.pause_queue(session, name, paused=False)
    say(f'queue "{name}" goes on')


@command(app, "awa queue purge email --yes")
async def purge(env: Environment, name: QueueName, yes: YesOption = False) -> None:
    """Delete what waits in a queue: available, scheduled and retryable jobs."""
    async with env.session() as session:
        queue = await _find(session, env, name)
        waiting = sum(queue.counts.get(state, 0) for state in PURGED)
        if waiting and not yes:
            typer.confirm(f'Delete {count(waiting, "waiting job")} of queue "{name}" for good?', abort=True)
        purged = 0
        while batch := await store.purge_queue(session, name, limit=PURGE_BATCH):
            purged += batch
    say(f'queue "{name}": {count(purged, "job")} deleted')


def rows(queues: Sequence[QueueRow], now: datetime) -> list[Row]:
    """The table of queues."""
    return [
        {
            "queue": queue.name,
            **{header: queue.counts.get(state, 0) for state, header in HEADERS.items()},
            "workers": queue.workers,
            "oldest": Text(_age(queue.oldest_available_s)),
            "status": _status(queue, now),
        }
        for queue in queues
    ]


async def _find(session: Session, env: Environment, name: str) -> QueueRow:
    found = await store.list_queues(session, name, staleness=env.settings.heartbeat_staleness)
    if not found:
        raise UnknownQueue(f'there is no queue "{name}": it has neither settings nor jobs')
    return found[0]


def _checked(column: str, value: timedelta | str | None) -> timedelta:
    assert isinstance(value, timedelta)
    if not value and not column.endswith("_retention"):
        raise typer.BadParameter(f"{column.replace('_', ' ')} must be longer than 0")
    return value


def _fields(queue: QueueRow, now: datetime) -> Fields:
    return {
        "queue": queue.name,
        "status": _status(queue, now),
        **{state: queue.counts[state] for state in State if state in queue.counts},
        "oldest available": _age(queue.oldest_available_s),
        "workers": queue.workers,
        "backoff": "on" if queue.backoff_enabled else "off",
        "backoff base": length(queue.backoff_base),
        "backoff max": length(queue.backoff_max),
        "retention completed": length(queue.completed_retention),
        "retention failed": length(queue.failed_retention),
        "timeout": length(queue.timeout),
        "staleness": length(queue.staleness),
        "changed": stamp(queue.updated_at, now),
    }


def _status(queue: QueueRow, now: datetime) -> Text:
    if not queue.paused:
        return Text("open", style="green")
    until = "" if queue.paused_until is None else f", resumes {relative(queue.paused_until - now)}"
    return Text(f"paused{until}", style="yellow")


def _age(seconds: float | None) -> str:
    return "" if seconds is None else rough(timedelta(seconds=max(0.0, seconds)))
