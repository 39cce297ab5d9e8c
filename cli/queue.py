"""awa queue …"""

from dataclasses import fields
from datetime import datetime, timedelta
from typing import Annotated

import typer

from awa_py.durations import MAX_DURATION
from awa_py.errors import UnknownQueue
from awa_py.model.job import State
from awa_py.model.rates import Rate
from awa_py.store import queues as store
from awa_py.store.queues import QueueRow, Setting
from awa_py.store.session import Session
from awa_py.store.workers import list_queue_workers
from awa_py.text import count

from .decorators import command
from .environment import Environment
from .output import duration_text, print_fields, print_json, print_table, say
from .parsing import (
    DEFAULT,
    JsonOption,
    QueueName,
    YesOption,
    parse_aging,
    parse_count,
    parse_duration,
    parse_rate,
    parse_setting,
    parse_time,
)
from .queue_output import queue_fields, queue_rows, worker_row

app = typer.Typer(help="List, show, set, pause, resume, unthrottle and purge queues.", no_args_is_help=True)

PURGE_BATCH_SIZE = 5_000
MAY_BE_ZERO = {"completed_retention", "failed_retention", "aging"}
PURGED_STATES = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE)


@command(app, "awa queue list", name="list")
async def list_queues(env: Environment, as_json: JsonOption = False) -> None:
    """List the queues that have settings or jobs."""
    async with env.session() as session:
        queues = await store.list_queues(session, staleness=env.settings.heartbeat_staleness)
        now = await session.now()
    if as_json:
        print_json(queues)
    else:
        print_table(queue_rows(queues, now), empty="no queues")


@command(app, "awa queue show email")
async def show(env: Environment, name: QueueName, as_json: JsonOption = False) -> None:
    """Show one queue: its settings, its jobs and its workers."""
    async with env.session() as session:
        queue = await _find(session, env, name)
        workers = await list_queue_workers(session, name, staleness=env.settings.heartbeat_staleness)
        now = await session.now()
    if as_json:
        columns = {field.name: getattr(queue, field.name) for field in fields(queue)}
        print_json({**columns, "distribution": workers})
    else:
        print_fields(queue_fields(queue, now))
        if workers:
            say("")
            print_table([worker_row(worker) for worker in workers], empty="")


@command(app, "awa queue set email --max-workers 8 --rate 100/s --timeout default", name="set")
async def set_queue(
    env: Environment,
    name: QueueName,
    max_workers: Annotated[
        str | None,
        typer.Option(
            parser=parse_count, metavar="N", help="Maximum of its jobs that run at once in the whole cluster."
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            parser=parse_rate, metavar="RATE", help="Maximum of its jobs that start in a period, e.g. 100/s or 5000/h."
        ),
    ] = None,
    aging: Annotated[
        str | None,
        typer.Option(
            parser=parse_aging, metavar="DURATION", help="Time after which a waiting job moves up one priority, or off."
        ),
    ] = None,
    fair: Annotated[
        bool | None,
        typer.Option("--fair/--no-fair", help="Let concurrency keys take turns, however many jobs each has."),
    ] = None,
    durable_claims: Annotated[
        bool | None,
        typer.Option(
            "--durable-claims/--no-durable-claims",
            help="Wait for the disk with each claim, so that a crash of PostgreSQL cannot undo it.",
        ),
    ] = None,
    backoff: Annotated[
        bool | None,
        typer.Option("--backoff/--no-backoff", help="Wait longer after each failed attempt."),
    ] = None,
    backoff_base: Annotated[
        str | None, typer.Option(parser=parse_setting, metavar="DURATION", help="Delay after the first failed attempt.")
    ] = None,
    backoff_max: Annotated[
        str | None, typer.Option(parser=parse_setting, metavar="DURATION", help="Longest delay.")
    ] = None,
    retention_completed: Annotated[
        str | None, typer.Option(parser=parse_setting, metavar="DURATION", help="How long to keep completed jobs.")
    ] = None,
    retention_failed: Annotated[
        str | None,
        typer.Option(parser=parse_setting, metavar="DURATION", help="How long to keep failed and cancelled jobs."),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(parser=parse_setting, metavar="DURATION", help="Time limit of an attempt.")
    ] = None,
    staleness: Annotated[
        str | None,
        typer.Option(
            parser=parse_setting,
            metavar="DURATION",
            help="Time without heartbeat after which a running job is rescued.",
        ),
    ] = None,
) -> None:
    """Change settings of a queue. The value `default` restores the default."""
    given: dict[str, timedelta | Rate | int | str | None] = {
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
        for column, value in given.items()
        if value is not None
    }
    if backoff is not None:
        settings["backoff_enabled"] = backoff
    if fair is not None:
        settings["fair"] = fair
    if durable_claims is not None:
        settings["durable_claims"] = durable_claims
    if not settings:
        raise typer.BadParameter("nothing to set: use an option such as --timeout 5m")
    async with env.session() as session:
        await store.set_queue(session, name, settings)
        queue = await _find(session, env, name)
        now = await session.now()
    print_fields(queue_fields(queue, now))


@command(app, "awa queue pause email --for 10m")
async def pause(
    env: Environment,
    name: QueueName,
    period: Annotated[
        timedelta | None,
        typer.Option(
            "--for",
            parser=parse_duration,
            metavar="DURATION",
            help="Resume after this time. Default: only by `awa queue resume`.",
        ),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(parser=parse_time, metavar="TIME", help="Resume at this time, e.g. 2026-12-01T09:00+01:00."),
    ] = None,
) -> None:
    """Pause a queue: no job is claimed from it, and running jobs continue."""
    if period is not None and until is not None:
        raise typer.BadParameter("use either --for or --until")
    if period == timedelta(0):
        raise typer.BadParameter("a pause must be longer than 0")
    async with env.session() as session:
        if until is not None:
            _check_until(until, await session.now())
        await store.pause_queue(session, name, paused=True, period=period, until=until)
    if period is not None:
        say(f'queue "{name}" is paused for {duration_text(period)}')
    else:
        say(f'queue "{name}" is paused' + ("" if until is None else f" until {until.isoformat()}"))


@command(app, "awa queue resume email")
async def resume(env: Environment, name: QueueName) -> None:
    """Resume a paused queue."""
    async with env.session() as session:
        await store.pause_queue(session, name, paused=False)
    say(f'queue "{name}" is resumed')


@command(app, "awa queue unthrottle email")
async def unthrottle(env: Environment, name: QueueName) -> None:
    """End the throttling of a queue now, and reset its count."""
    async with env.session() as session:
        released = await store.unthrottle_queue(session, name)
    if released is None:
        raise UnknownQueue(f'there is no queue "{name}" that was throttled')
    say(f'queue "{name}" is not throttled' + (f": {count(released, 'job')} released" if released else ""))


@command(app, "awa queue purge email --yes")
async def purge(env: Environment, name: QueueName, yes: YesOption = False) -> None:
    """Delete the available, scheduled and retryable jobs of a queue. Durable jobs that wait are left alone."""
    async with env.session() as session:
        queue = await _find(session, env, name)
        jobs = sum(queue.counts.get(state, 0) for state in PURGED_STATES)
        if jobs and not yes:
            typer.confirm(f'Permanently delete {count(jobs, "job")} of queue "{name}"?', abort=True)
        purged = 0
        while batch := await store.purge_queue(session, name, limit=PURGE_BATCH_SIZE):
            purged += batch
    say(f'queue "{name}": {count(purged, "job")} deleted')


async def _find(session: Session, env: Environment, name: str) -> QueueRow:
    found = await store.list_queues(session, name, staleness=env.settings.heartbeat_staleness)
    if not found:
        raise UnknownQueue(f'there is no queue "{name}": it has neither settings nor jobs')
    return found[0]


def _checked(column: str, value: timedelta | Rate | int | str | None) -> Setting:
    assert not isinstance(value, str)
    if value == timedelta(0) and column not in MAY_BE_ZERO:
        raise typer.BadParameter(f"{column.replace('_', ' ')} must be longer than 0")
    return value


def _check_until(until: datetime, now: datetime) -> None:
    if until <= now:
        passed = now.astimezone(until.tzinfo).isoformat(timespec="seconds")
        raise typer.BadParameter(f"--until is in the past: the database's time is {passed}")
    if until - now > MAX_DURATION:
        raise typer.BadParameter(f"--until is too far in the future: the maximum is {MAX_DURATION.days} days")
