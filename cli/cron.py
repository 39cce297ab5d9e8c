"""awa cron …"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any

import typer
from rich.text import Text

from awa_py import durations
from awa_py.declaring import check_arguments
from awa_py.errors import InvalidSchedule, UnknownSchedule
from awa_py.model.registry import CronDefinition
from awa_py.model.schedule import Schedule
from awa_py.store import schedules as store
from awa_py.store.schedules import NEVER, ScheduleRow
from awa_py.store.session import Session

from .decorators import command
from .enqueue import warn_if_undeclared
from .environment import Environment
from .output import Fields, Row, ago, compact_json, print_fields, print_json, print_table, say, timestamp
from .parsing import JsonOption, ScheduleName, parse_object, parse_queue, parse_time

app = typer.Typer(
    help="List, show, set, preview, pause, resume, trigger and delete cron schedules.",
    no_args_is_help=True,
)


class Misfire(StrEnum):
    ONE = "one"
    SKIP = "skip"
    ALL = "all"


TimezoneOption = Annotated[
    str | None,
    typer.Option(metavar="ZONE", help="Time zone, e.g. Europe/Berlin. Default: the schedule's, else UTC."),
]


@command(app, "awa cron list", name="list")
async def list_schedules(env: Environment, as_json: JsonOption = False) -> None:
    """List the schedules."""
    async with env.session() as session:
        schedules = await store.list_schedules(session)
        now = await session.now()
    if as_json:
        print_json(schedules)
    else:
        print_table([_row(schedule, now) for schedule in schedules], empty="no schedules")


@command(app, "awa cron show digest")
async def show(env: Environment, name: ScheduleName, as_json: JsonOption = False) -> None:
    """Show one schedule."""
    async with env.session() as session:
        schedule = await _find(session, name)
        now = await session.now()
    if as_json:
        print_json(schedule)
    else:
        print_fields(_fields(schedule, now))


@command(app, 'awa cron set digest "0 9 * * *" digest --timezone Europe/Berlin', name="set")
async def set_schedule(
    env: Environment,
    name: ScheduleName,
    expression: Annotated[str, typer.Argument(metavar="EXPR", help='Cron expression, e.g. "*/15 * * * *" or @daily.')],
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of the job to enqueue.")],
    args: Annotated[
        dict | None,  # type: ignore[type-arg]
        typer.Argument(metavar="JSON", parser=parse_object, help="Arguments of the job, as an object."),
    ] = None,
    timezone: TimezoneOption = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", parser=parse_queue, metavar="NAME", help="Queue of the job.")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(min=1, max=4, metavar="N", help="Priority, from 1 (first) to 4."),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=32767, metavar="N", help="Maximum number of attempts.")
    ] = None,
    misfire: Annotated[
        Misfire,
        typer.Option(metavar="POLICY", help="What to do about fire times that were missed: fire one, skip or all."),
    ] = Misfire.ONE,
) -> None:
    """Add or change a schedule.

    Its jobs are as their code declares them, except for the options that are given here.
    """
    if Schedule(expression, timezone or "UTC").never_fires:
        raise InvalidSchedule(f'cron expression "{expression}" never fires: no date matches it')
    job = env.load(None).new(kind, args, queue=queue, priority=priority, max_attempts=max_attempts)
    definition = CronDefinition.from_job(
        job, name=name, expression=expression, timezone=timezone or "UTC", misfire=misfire.value
    )
    async with env.session() as session:
        await check_arguments(session, job)
        changed = await store.upsert_schedule(session, definition)
        await warn_if_undeclared(session, kind)
    say(f'schedule "{name}" ' + ("is set" if changed else "is unchanged"))


@command(app, 'awa cron preview "30 2 * * *" --timezone Europe/Berlin --count 5')
async def preview(
    env: Environment,
    what: Annotated[str, typer.Argument(metavar="NAME|EXPR", help="A schedule's name, or a cron expression.")],
    times: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=1, max=1000, help="Number of fire times.")
    ] = 10,
    timezone: TimezoneOption = None,
    after: Annotated[
        datetime | None, typer.Option(parser=parse_time, metavar="TIME", help="Start at this time instead of now.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the next fire times of a schedule, and the clock changes between them."""
    if " " in what.strip() or what.startswith("@"):
        schedule = Schedule(what, timezone or "UTC")
    else:
        async with env.session() as session:
            found = await _find(session, what)
        schedule = Schedule(found.expression, timezone or found.timezone)
    now = datetime.now(UTC)
    fires = [schedule.local(fire) for fire in schedule.upcoming(after or now, times)]
    if not fires:
        raise InvalidSchedule(f'cron expression "{schedule.expression}" never fires: no date matches it')
    changes = _clock_changes(schedule.local(after or now), fires)
    if as_json:
        print_json(
            [
                {"at": fire, "local_at": fire.astimezone(), "clock_change": change}
                for fire, change in zip(fires, changes, strict=True)
            ]
        )
    else:
        print_table(_preview_rows(schedule, fires, changes, now), empty="")


@command(app, "awa cron pause digest")
async def pause(env: Environment, name: ScheduleName) -> None:
    """Pause a schedule. Fire times during the pause are lost."""
    async with env.session() as session:
        _must_exist(await store.pause_schedule(session, name, paused=True), name)
    say(f'schedule "{name}" is paused')


@command(app, "awa cron resume digest")
async def resume(env: Environment, name: ScheduleName) -> None:
    """Resume a paused schedule."""
    async with env.session() as session:
        _must_exist(await store.pause_schedule(session, name, paused=False), name)
    say(f'schedule "{name}" is resumed')


@command(app, "awa cron trigger digest")
async def trigger(env: Environment, name: ScheduleName) -> None:
    """Enqueue the job of a schedule now and print its id."""
    async with env.session() as session:
        job_id = await store.trigger_schedule(session, name)
        _must_exist(job_id is not None, name)
    say(str(job_id))


@command(app, "awa cron delete digest")
async def delete(
    env: Environment,
    name: ScheduleName,
    force: Annotated[
        bool, typer.Option("--force", help="Also delete one that was declared in code. If it still is, it comes back.")
    ] = False,
) -> None:
    """Delete a schedule. Its jobs are kept."""
    async with env.session() as session:
        _must_exist(await store.delete_schedule(session, name, even_if_declared=force), name)
    say(f'schedule "{name}" is deleted')


async def _find(session: Session, name: str) -> ScheduleRow:
    found = await store.list_schedules(session, name)
    _must_exist(bool(found), name)
    return found[0]


def _must_exist(exists: bool, name: str) -> None:
    if not exists:
        raise UnknownSchedule(f'there is no schedule "{name}": see `awa cron list`')


def _clock_changes(start: datetime, fires: Sequence[datetime]) -> list[timedelta | None]:
    """Return for each fire time how far the clock was changed since the previous one."""
    offsets = [moment.utcoffset() or timedelta() for moment in (start, *fires)]
    return [later - sooner or None for sooner, later in pairwise(offsets)]


def _preview_rows(
    schedule: Schedule, fires: Sequence[datetime], changes: Sequence[timedelta | None], now: datetime
) -> list[Row]:
    with_seconds = any(fire.second for fire in fires)
    return [
        {
            schedule.timezone: Text(_clock(fire, with_seconds)),
            "local time": Text(_clock(fire.astimezone(), with_seconds)),
            "": Text(ago(fire, now)),
            " ": Text("" if change is None else _change(change), style="yellow"),
        }
        for fire, change in zip(fires, changes, strict=True)
    ]


def _change(change: timedelta) -> str:
    return f"clocks went {'forward' if change > timedelta(0) else 'back'} {durations.text(abs(change))}"


def _clock(moment: datetime, with_seconds: bool) -> str:
    offset = f"{moment:%z}"
    seconds = f":{moment:%S}" if with_seconds else ""
    return f"{moment:%a %Y-%m-%d %H:%M}{seconds} {offset[:3]}:{offset[3:5]}"


def _row(schedule: ScheduleRow, now: datetime) -> Row:
    return {
        "name": schedule.name,
        "schedule": schedule.expression,
        "timezone": schedule.timezone,
        "kind": schedule.kind,
        "last": Text(ago(schedule.last_enqueued_at, now)),
        "next": Text(ago(_next(schedule, now), now)),
        "status": _status(schedule),
    }


def _next(schedule: ScheduleRow, now: datetime) -> datetime | None:
    """Return the next fire time. Compute it if no leader has done so yet."""
    if schedule.paused or not schedule.enabled:
        return None
    if schedule.next_at is not None:
        return schedule.next_at
    try:
        return Schedule(schedule.expression, schedule.timezone).next(now) or NEVER
    except InvalidSchedule:  # it was written with SQL; the leader will disable it and record the reason
        return NEVER


def _status(schedule: ScheduleRow) -> str:
    if not schedule.enabled:
        return f"disabled: {schedule.last_error}"
    return "paused" if schedule.paused else "on"


def _fields(schedule: ScheduleRow, now: datetime) -> Fields:
    options: dict[str, Any] = schedule.options
    return {
        "name": schedule.name,
        "schedule": schedule.expression,
        "timezone": schedule.timezone,
        "kind": schedule.kind,
        "args": compact_json(schedule.args),
        **{name.replace("_", " "): compact_json(value) for name, value in options.items() if name != "as_given"},
        "set by": "an operator" if schedule.version is None else f"version {schedule.version} of the app",
        "misfire": schedule.misfire,
        "status": _status(schedule),
        "last fired": timestamp(schedule.last_enqueued_at, now),
        "next": timestamp(_next(schedule, now), now),
        "created": timestamp(schedule.created_at, now),
        "changed": timestamp(schedule.updated_at, now),
    }
