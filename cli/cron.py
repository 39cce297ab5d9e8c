"""awa cron …"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any

import typer
from rich.text import Text

from awa_py import durations
from awa_py.errors import InvalidSchedule, UnknownSchedule
from awa_py.model.registry import CronDefinition
from awa_py.model.schedule import Schedule
from awa_py.store import schedules as store
from awa_py.store.schedules import NEVER, ScheduleRow
from awa_py.store.session import Session

from .environment import Environment, command
from .output import Fields, Row, ago, compact_json, print_fields, print_json, print_table, say, stamp
from .parsing import JsonOption, ScheduleName, parse_moment, parse_object, parse_queue

app = typer.Typer(help="Look at cron schedules, preview, pause, trigger and change them.", no_args_is_help=True)


class Misfire(StrEnum):
    ONE = "one"
    SKIP = "skip"
    ALL = "all"


TimezoneOption = Annotated[str | None, typer.Option(metavar="ZONE", help="An IANA name, such as Europe/Berlin.")]


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
    """Show a schedule."""
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
    expression: Annotated[str, typer.Argument(metavar="EXPR", help='When, such as "*/15 * * * *" or @daily.')],
    kind: Annotated[str, typer.Argument(metavar="KIND", help="The kind of job to enqueue.")],
    args: Annotated[
        dict | None,  # type: ignore[type-arg]
        typer.Argument(metavar="JSON", parser=parse_object, help="Its arguments."),
    ] = None,
    timezone: TimezoneOption = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", parser=parse_queue, metavar="NAME", help="The job's queue.")
    ] = None,
    priority: Annotated[int | None, typer.Option(min=1, max=4, metavar="N", help="1 is first.")] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=32767, metavar="N", help="How often it is tried.")
    ] = None,
    misfire: Annotated[
        Misfire, typer.Option(metavar="POLICY", help="What a downtime missed: one, skip or all.")
    ] = Misfire.ONE,
) -> None:
    """Add or change a schedule."""
    if Schedule(expression, timezone or "UTC").never_fires:
        raise InvalidSchedule(f'cron expression "{expression}" never fires: no date fits it')
    job = env.load(None).new(kind, args, queue=queue, priority=priority, max_attempts=max_attempts)
    definition = CronDefinition.from_job(
        job, name=name, expression=expression, timezone=timezone or "UTC", misfire=misfire.value
    )
    async with env.session() as session:
        changed = await store.upsert_schedule(session, **asdict(definition))
    say(f'schedule "{name}" ' + ("is set" if changed else "was the same already"))


@command(app, 'awa cron preview "30 2 * * *" --timezone Europe/Berlin --count 5')
async def preview(
    env: Environment,
    what: Annotated[str, typer.Argument(metavar="NAME|EXPR", help="A schedule's name, or a cron expression.")],
    times: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=1, max=1000, help="How many fire times.")
    ] = 10,
    timezone: TimezoneOption = None,
    after: Annotated[
        datetime | None, typer.Option(parser=parse_moment, metavar="TIME", help="From then on, instead of now.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print when a schedule fires next, and where clocks change in between."""
    if " " in what.strip() or what.startswith("@"):
        schedule = Schedule(what, timezone or "UTC")
    else:
        async with env.session() as session:
            found = await _find(session, what)
        schedule = Schedule(found.expression, timezone or found.timezone)
    now = datetime.now(UTC)
    fires = [schedule.local(fire) for fire in schedule.upcoming(after or now, times)]
    if not fires:
        raise InvalidSchedule(f'cron expression "{schedule.expression}" never fires: no date fits it')
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
    """Pause a schedule. What it misses meanwhile is not made up for."""
    async with env.session() as session:
        _must_exist(await store.pause_schedule(session, name, paused=True), name)
    say(f'schedule "{name}" is paused')


@command(app, "awa cron resume digest")
async def resume(env: Environment, name: ScheduleName) -> None:
    """Let a paused schedule go on."""
    async with env.session() as session:
        _must_exist(await store.pause_schedule(session, name, paused=False), name)
    say(f'schedule "{name}" goes on')


@command(app, "awa cron trigger digest")
async def trigger(env: Environment, name: ScheduleName) -> None:
    """Enqueue a schedule's job now, and print its id."""
    async with env.session() as session:
        job_id = await store.trigger_schedule(session, name)
        _must_exist(job_id is not None, name)
    say(str(job_id))


@command(app, "awa cron delete digest")
async def delete(env: Environment, name: ScheduleName) -> None:
    """Delete a schedule. Its jobs stay."""
    async with env.session() as session:
        _must_exist(await store.delete_schedule(session, name), name)
    say(f'schedule "{name}" is deleted')


async def _find(session: Session, name: str) -> ScheduleRow:
    found = await store.list_schedules(session, name)
    _must_exist(bool(found), name)
    return found[0]


def _must_exist(exists: bool, name: str) -> None:
    if not exists:
        raise UnknownSchedule(f'there is no schedule "{name}": `awa cron list` shows those that are')


def _clock_changes(start: datetime, fires: Sequence[datetime]) -> list[timedelta | None]:
    """For each fire, by how much the clock was changed since the one before."""
    offsets = [moment.utcoffset() or timedelta() for moment in (start, *fires)]
    return [later - sooner or None for sooner, later in pairwise(offsets)]


def _preview_rows(
    schedule: Schedule, fires: Sequence[datetime], changes: Sequence[timedelta | None], now: datetime
) -> list[Row]:
    to_the_second = any(fire.second for fire in fires)
    return [
        {
            schedule.timezone: Text(_clock(fire, to_the_second)),
            "local time": Text(_clock(fire.astimezone(), to_the_second)),
            "": Text(ago(fire, now)),
            " ": Text("" if change is None else _change(change), style="yellow"),
        }
        for fire, change in zip(fires, changes, strict=True)
    ]


def _change(change: timedelta) -> str:
    return f"clocks went {'forward' if change > timedelta(0) else 'back'} {durations.text(abs(change))}"


def _clock(moment: datetime, to_the_second: bool) -> str:
    offset = f"{moment:%z}"
    seconds = f":{moment:%S}" if to_the_second else ""
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
    """The next fire time; where no leader has worked it out yet, we do."""
    if schedule.paused or not schedule.enabled:
        return None
    if schedule.next_at is not None:
        return schedule.next_at
    try:
        return Schedule(schedule.expression, schedule.timezone).next(now) or NEVER
    except InvalidSchedule:  # written in SQL: the leader will disable it, and say why
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
        **{name.replace("_", " "): compact_json(value) for name, value in options.items()},
        "misfire": schedule.misfire,
        "status": _status(schedule),
        "last fired": stamp(schedule.last_enqueued_at, now),
        "next": stamp(_next(schedule, now), now),
        "created": stamp(schedule.created_at, now),
        "changed": stamp(schedule.updated_at, now),
    }
