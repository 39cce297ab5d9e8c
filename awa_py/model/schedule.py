"""When a cron schedule fires.

croniter reads the expression and searches plain wall-clock time, where every step is exact and one step
is enough; this module then maps wall-clock time to instants. Handing croniter a timezone instead would make
a daily job fire twice where a clock is set back.

What happens where clocks change depends on the hour field:

| hours                             | skipped time (gap)                  | repeated time (fold)        |
|-----------------------------------|-------------------------------------|-----------------------------|
| fixed: `2`, `2,3`, `1-5`          | fires once, at the end of the gap   | once, at the first reading  |
| stepped: `*/2`                    | fires once, at the end of the gap   | at both readings            |
| every hour: `*`, `*/1`, `0-23`    | goes on at its pace, nothing is due | at both readings            |

Fires that fall on the same instant are one fire.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytz
from croniter import croniter

from awa_py.errors import InvalidSchedule

_SECOND = timedelta(seconds=1)
_HOUR, _DAY, _WEEKDAY = 1, 2, 4

_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_FIELDS = (
    ("minute", "0-59"),
    ("hour", "0-23"),
    ("day of the month", "1-31 or L, the last day"),
    ("month", "1-12 or JAN-DEC"),
    ("day of the week", "0-7 or SUN-SAT, MON#2 for the second Monday, L5 for the last Friday"),
    ("second", "0-59"),
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a cron schedule fires, in its own timezone.

    `expression` has five fields: minute, hour, day of the month, month, day of the week. A sixth one, for
    seconds, comes FIRST, as in Quartz, Spring and robfig/cron: `30 0 9 * * MON` is Monday at 9:00:30.
    Names (MON, JAN), `L`, `#`, `W` and the aliases from @hourly to @yearly are understood. When both the
    day of the month and the day of the week are given, either one is enough, as in cron.

    `timezone` is an IANA name. Every datetime that goes in is aware; every one that comes out is in UTC,
    but for `local`.
    """

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        _plan(self.expression)
        _zone(self.timezone)

    @property
    def never_fires(self) -> bool:
        """Whether no date fits, as with `0 0 30 2 *`."""
        return not _plan(self.expression).arms

    def latest(self, *, after: datetime, until: datetime) -> datetime | None:
        """The latest fire time in (after, until]; one backward step, whatever the distance."""
        start = _aware(after, "after")
        fire = self._nearest(_aware(until, "until"), back=True)
        return fire if fire is not None and fire > start else None

    def missed(self, *, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """The latest `limit` fire times in (after, until], oldest first."""
        fires: list[datetime] = []
        while len(fires) < limit and (fire := self.latest(after=after, until=until)):
            fires.append(fire)
            until = fire - _SECOND
        return fires[::-1]

    def next(self, after: datetime) -> datetime | None:
        """The first fire time > after, or None when it never fires."""
        return self._nearest(_aware(after, "after"), back=False)

    def upcoming(self, after: datetime, count: int) -> list[datetime]:
        """The first `count` fire times > after."""
        fires: list[datetime] = []
        while len(fires) < count and (fire := self.next(after)):
            fires.append(fire)
            after = fire
        return fires

    def local(self, moment: datetime) -> datetime:
        """The moment on the schedule's own clock."""
        return _aware(moment, "moment").astimezone(_zone(self.timezone))

    def _nearest(self, moment: datetime, *, back: bool) -> datetime | None:
        """The last fire ≤ moment, or the first fire > moment."""
        zone = _zone(self.timezone)
        # Fires are whole seconds, so a fraction decides nothing.
        moment = moment.replace(microsecond=0)
        wall = moment.astimezone(zone).replace(tzinfo=None, fold=0)
        edges = {wall + _SECOND}
        first, second = _readings(wall, zone)
        if first != second:
            # Inside a fold, time order is not wall-clock order: the nearest fire may belong to the other
            # reading, whose candidates are next to the fold's ends.
            seam = _seam(first, second, zone)
            edges |= {seam.low, seam.high}
        fires = (fire for edge in edges for fire in self._fires_at(edge, back=back))
        return (max if back else min)((fire for fire in fires if (fire <= moment) == back), default=None)

    def _fires_at(self, edge: datetime, *, back: bool) -> Iterator[datetime]:
        """The instants of the matching wall-clock time that is nearest to `edge`: none, one or two."""
        plan, zone = _plan(self.expression), _zone(self.timezone)
        wall = plan.nearest(edge, back=back)
        if wall is None:
            return
        first, second = _readings(wall, zone)
        if first <= second:
            yield first
            if plan.repeats:
                yield second
            return
        gap = _seam(first, second, zone)
        if plan.every_hour:
            yield from self._fires_at(gap.low if back else gap.high, back=back)
        else:
            yield gap.moment


@dataclass(frozen=True, slots=True)
class _Plan:
    """An expression, parsed."""

    # One search each; the schedule is their union.
    arms: "tuple[croniter[datetime], ...]"
    every_hour: bool
    # Whether both readings of a repeated hour count.
    repeats: bool

    def nearest(self, edge: datetime, *, back: bool) -> datetime | None:
        """The last matching wall-clock time < edge, or the first one ≥ edge."""
        found = []
        for arm in self.arms:
            # A search moves croniter's cursor, and the cached plan is shared between threads.
            search = copy(arm)
            try:
                if back:
                    found.append(search.get_prev(start_time=edge))
                else:
                    found.append(search.get_next(start_time=edge - _SECOND))
            except (ValueError, OverflowError):  # the calendar ends: datetime knows the years 1 to 9999
                continue
        return (max if back else min)(found, default=None)


class _Seam(NamedTuple):
    """Where a clock jumps: the instant, and the wall-clock times between which it jumps."""

    moment: datetime
    low: datetime
    high: datetime


def _readings(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """The two instants that a wall-clock time may mean (PEP 495).

    They are equal but for a fold, where the first is the earlier one, and a gap, where it is the later one.
    """
    first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    return first, second


def _seam(first: datetime, second: datetime, zone: ZoneInfo) -> _Seam:
    """The jump between two differing readings; neither zoneinfo nor pytz tells where their jumps are."""
    start, end = min(first, second), max(first, second)
    before = start.astimezone(zone).utcoffset() or timedelta()

    def jumped(seconds: int) -> bool:
        return (start + timedelta(seconds=seconds)).astimezone(zone).utcoffset() != before

    seconds = bisect_left(range(int((end - start).total_seconds())), True, key=jumped)
    moment = start + timedelta(seconds=seconds)
    old = moment.replace(tzinfo=None) + before
    new = moment.astimezone(zone).replace(tzinfo=None, fold=0)
    return _Seam(moment, min(old, new), max(old, new))


def _aware(moment: datetime, name: str) -> datetime:
    # Not InvalidSchedule: the caller is at fault, and no schedule should be disabled for it.
    if moment.tzinfo is None:
        raise ValueError(f"{name}={moment} has no timezone; pass an aware datetime, as datetime.now(UTC) is")
    return moment.astimezone(UTC)


@lru_cache(maxsize=1024)
def _plan(expression: str) -> _Plan:
    def bad(problem: str) -> InvalidSchedule:
        return InvalidSchedule(f'cron expression "{expression}": {problem}')

    alias = expression.strip().lower()
    if alias.startswith("@") and alias not in _ALIASES:
        raise bad(f"there is no such alias; use one of {', '.join(_ALIASES)}")
    fields = _ALIASES.get(alias, expression).split()
    if len(fields) not in (5, 6):
        raise bad(
            f"it has {len(fields) or 'no'} fields; write five (minute, hour, day of the month, month, "
            'day of the week), such as "*/15 * * * *", or six with the seconds first'
        )
    second, five = fields[:-5], fields[-5:]
    for (name, allowed), field in zip(_FIELDS, five + second, strict=False):
        if problem := _problem(field, name, allowed):
            raise bad(problem)

    minute, hour, day, month, weekday = five
    # With six fields croniter knows Sunday as 0 only. A number after / or # is no day.
    weekday = re.sub(r"(?<![/#\d])7(?!\d)", "0", weekday)
    # croniter's own union lets `0 0 30 2 MON` never fire, and drops the 1st from `0 0 1 * MON#2`.
    either = day not in ("*", "?") and weekday not in ("*", "?")
    arms = [
        # croniter wants the seconds last.
        croniter(" ".join([minute, hour, *days, *second]), datetime(2000, 1, 1), ret_type=datetime)
        for days in ([(day, month, "*"), ("*", month, weekday)] if either else [(day, month, weekday)])
    ]
    hours = croniter.expand(f"* {hour} * * *")[0][1]
    every_hour = "*" in hours
    return _Plan(
        arms=tuple(arm for arm in arms if _ever_fires(arm)),
        every_hour=every_hour,
        # `*/24` is a daily schedule in disguise.
        repeats=every_hour or (hour.startswith("*") and len(hours) > 1),
    )


def _problem(field: str, name: str, allowed: str) -> str | None:
    """What is wrong with one field, and what to do about it."""
    if re.match(r"[hr]\b", field, re.IGNORECASE):
        return f'"{field}" picks the {name} by chance or by hash, which would not last; choose from {allowed}'
    if same := re.search(r"(?<!\w)(\w+)-\1(?!\w)", field):
        # croniter takes 9-9 for a full circle, cron for 9.
        return f'the {name} "{field}" has a range that ends where it starts; write "{same[1]}" or "*"'
    columns = {key: "*" for key, _ in _FIELDS[:5]} | {"minute" if name == "second" else name: field}
    try:
        croniter.expand(" ".join(columns.values()))
    except ValueError:
        return f'"{field}" is no {name}; use {allowed}, a list (1,3), a range (1-5), a step (*/2) or *'
    return None


def _ever_fires(arm: "croniter[datetime]") -> bool:
    """Whether any date fits; the rarest one, a given weekday on 29 February, comes within 40 years."""
    try:
        copy(arm).get_next()
    except ValueError:  # croniter gives up after 50 years
        return False
    return True


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    """The zone, by pytz's names and data, which do not depend on the host.

    zoneinfo computes with them, since pytz's own tables end in 2037.
    """
    try:
        key = pytz.timezone(name).zone
    except pytz.UnknownTimeZoneError:
        names = {zone.lower(): zone for zone in pytz.common_timezones}
        names |= {zone.rpartition("/")[2]: names[zone] for zone in names}  # a city alone
        close = get_close_matches(name.lower().replace(" ", "_"), names, n=1, cutoff=0.75)
        hint = f'did you mean "{names[close[0]]}"?' if close else 'use an IANA name, such as "Europe/Berlin"'
        raise InvalidSchedule(f'timezone "{name}" is unknown; {hint}') from None
    with pytz.open_resource(key) as file:  # type: ignore[attr-defined]  # public, but not in the stubs
        return ZoneInfo.from_file(file, key=key)
