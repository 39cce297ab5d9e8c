"""awa queue …"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Annotated

import typer
from rich.text import Text

from awa_py.errors import UnknownQueue
from awa_py.model.job import MAX_DURATION, State
from awa_py.model.rates import Rate
from awa_py.store import queues as store
from awa_py.store.queues import QueueRow, Setting
from awa_py.store.session import Session
from awa_py.store.workers import QueueWorker, list_queue_workers
from awa_py.text import count, relative_time, short_duration

from .environment import Environment, command
from .output import Fields, Row, length, print_fields, print_json, print_table, say, stamp
from .parsing import (
    DEFAULT,
    OFF,
    JsonOption,
    QueueName,
    YesOption,
    parse_aging,
    parse_count,
    parse_duration,
    parse_moment,
    parse_rate,
    parse_setting,
)

app = typer.Typer(help="Look at queues, tune, pause, resume, unthrottle and purge them.", no_args_is_help=True)

PURGE_BATCH = 5_000
MAY_BE_0 = {"completed_retention", "failed_retention", "aging"}
PURGED = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE)
HEADERS = {  # short, for eighty columns
    State.AVAILABLE: "ready",
    State.RUNNING: "run",
    State.SCHEDULED: "later",
    State.RETRYABLE: "retry",
    State.FAILED: "failed",
    State.COMPLETED: "done",
}
LIMITS: dict[str, Callable[[QueueRow], str]] = {
    "max": lambda queue: str(queue.max_workers or ""),
    "rate": lambda queue: str(queue.rate or ""),
    "aging": lambda queue: "" if queue.aging is None else _aging(queue),
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
    """Show a queue: its settings, its jobs, and who serves it."""
    async with env.session() as session:
        queue = await _find(session, env, name)
        workers = await list_queue_workers(session, name, staleness=env.settings.heartbeat_staleness)
        now = await session.now()
    if as_json:
        columns = {field.name: getattr(queue, field.name) for field in fields(queue)}
        print_json({**columns, "distribution": workers})
    else:
        print_fields(_fields(queue, now))
        if workers:
            say("")
            print_table([_place(worker) for worker in workers], empty="")


@command(app, "awa queue set email --max-workers 8 --rate 100/s --timeout default", name="set")
async def set_queue(
    env: Environment,
    name: QueueName,
    max_workers: Annotated[
        str | None,
        typer.Option(parser=parse_count, metavar="N", help="How many of its jobs run at once, in the whole cluster."),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(parser=parse_rate, metavar="RATE", help="How many of its jobs begin in a time: 100/s, 5000/h."),
    ] = None,
    aging: Annotated[
        str | None,
        typer.Option(
            parser=parse_aging, metavar="DURATION", help="How long a job waits before it moves up a priority; or off."
        ),
    ] = None,
    fair: Annotated[
        bool | None,
        typer.Option("--fair/--no-fair", help="Whether keys take turns, however many jobs each has."),
    ] = None,
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
    named: dict[str, timedelta | Rate | int | str | None] = {
        "max_workers": max_workers,
        "rate": rate,
        "aging": aging,
        "backoff_base": backoff_base,
        "backoff_max": backoff_max,
        "completed_retention": retention_completed,
        "failed_retention": retention_failed,
        "timeout": timeout,
        "staleness": staleness,
    }
    settings: dict[str, Setting] = {
        column: None if value == DEFAULT else _checked(column, value)
        for column, value in named.items()
        if value is not None
    }
    if backoff is not None:
        settings["backoff_enabled"] = backoff
    if fair is not None:
        settings["fair"] = fair
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
    until: Annotated[
        datetime | None,
        typer.Option(parser=parse_moment, metavar="TIME", help="Until when: 2026-12-01T09:00+01:00."),
    ] = None,
) -> None:
    """Pause a queue: nothing is claimed from it, and what runs goes on."""
    if period is not None and until is not None:
        raise typer.BadParameter("--for and --until say the same: give one of them")
    if period == timedelta(0):
        raise typer.BadParameter("a pause must be longer than 0")
    async with env.session() as session:
        if until is not None:
            _check_end(until, await session.now())
        await store.pause_queue(session, name, paused=True, period=period, until=until)
    if period is not None:
        say(f'queue "{name}" is paused for {length(period)}')
    else:
        say(f'queue "{name}" is paused' + ("" if until is None else f" until {until.isoformat()}"))


@command(app, "awa queue resume email")
async def resume(env: Environment, name: QueueName) -> None:
    """Let a paused queue go on."""
    async with env.session() as session:
        await store.pause_queue(session, name, paused=False)
    say(f'queue "{name}" goes on')


@command(app, "awa queue unthrottle email")
async def unthrottle(env: Environment, name: QueueName) -> None:
    """Let a throttled queue go on at once, and forget how often it was."""
    async with env.session() as session:
        hastened = await store.unthrottle_queue(session, name)
    if hastened is None:
        raise UnknownQueue(f'there is no queue "{name}" that was ever throttled')
    say(f'queue "{name}" goes on' + (f": {count(hastened, 'job')} waited for that" if hastened else ""))


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
    """The table of queues; limits that none has take no column."""
    shown = {header: text for header, text in LIMITS.items() if any(text(queue) for queue in queues)}
    return [
        {
            "queue": queue.name,
            **{header: queue.counts.get(state, 0) for state, header in HEADERS.items()},
            "workers": queue.workers,
            **{header: Text(text(queue)) for header, text in shown.items()},
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


def _checked(column: str, value: timedelta | Rate | int | str | None) -> Setting:
    assert not isinstance(value, str)
    if value == timedelta(0) and column not in MAY_BE_0:
        raise typer.BadParameter(f"{column.replace('_', ' ')} must be longer than 0")
    return value


def _fields(queue: QueueRow, now: datetime) -> Fields:
    return {
        "queue": queue.name,
        "status": _status(queue, now),
        **{state: queue.counts[state] for state in State if state in queue.counts},
        "oldest available": _age(queue.oldest_available_s),
        "workers": queue.workers,
        "max workers": "unlimited" if queue.max_workers is None else queue.max_workers,
        "rate": str(queue.rate or "unlimited"),
        "throttled": _throttled(queue, now),
        "aging": _aging(queue),
        "fair": "on" if queue.fair else "off",
        "backoff": "on" if queue.backoff_enabled else "off",
        "backoff base": length(queue.backoff_base),
        "backoff max": length(queue.backoff_max),
        "retention completed": length(queue.completed_retention),
        "retention failed": length(queue.failed_retention),
        "timeout": length(queue.timeout),
        "staleness": length(queue.staleness),
        "changed": stamp(queue.updated_at, now),
    }


def _check_end(until: datetime, now: datetime) -> None:
    if until <= now:
        passed = now.astimezone(until.tzinfo).isoformat(timespec="seconds")
        raise typer.BadParameter(f"--until has passed: it is {passed} already")
    if until - now > MAX_DURATION:
        raise typer.BadParameter(f"--until is too far away: {MAX_DURATION.days} days at the most")


def _place(worker: QueueWorker) -> Row:
    return {
        "worker": worker.label or str(worker.id)[:8],
        "host": f"{worker.hostname}:{worker.pid}",
        "slots": Text("" if worker.slots is None else str(worker.slots)),
        "running": worker.running,
        "id": Text(str(worker.id)),
    }


def _aging(queue: QueueRow) -> str:
    return length(queue.aging) if queue.aging is None or queue.aging else OFF


def _throttled(queue: QueueRow, now: datetime) -> str | None:
    """Until when, how often in a row and why; nothing where that is over and forgotten."""
    if not queue.throttled and not queue.throttles:
        return None
    until = "until" if queue.throttled else "no longer, since"
    words = f"{until} {stamp(queue.throttled_until, now)}, {count(queue.throttles, 'time')} in a row"
    return f"{words}: {queue.throttle_reason}" if queue.throttle_reason else words


def _status(queue: QueueRow, now: datetime) -> Text:
    if queue.throttled and not queue.paused and queue.throttled_until is not None:
        return Text(f"throttled, goes on {relative_time(queue.throttled_until - now)}", style="yellow")
    if not queue.paused:
        return Text("open", style="green")
    until = "" if queue.paused_until is None else f", resumes {relative_time(queue.paused_until - now)}"
    return Text(f"paused{until}", style="yellow")


def _age(seconds: float | None) -> str:
    return "" if seconds is None else short_duration(timedelta(seconds=max(0.0, seconds)))
