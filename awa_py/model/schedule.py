"""Cron schedules: when they fire.

croniter parses the expression and searches in wall-clock time without a timezone, where one exact step is enough. This
module then maps wall-clock time to instants. With a timezone, croniter would let a daily job fire twice when the clock
is set back.

What happens when clocks change depends on the hour field:

| hours                             | skipped time (gap)                  | repeated time (fold)        |
|-----------------------------------|-------------------------------------|-----------------------------|
| fixed: `2`, `2,3`, `1-5`          | fires once, at the end of the gap   | once, at the first reading  |
| stepped: `*/2`                    | fires once, at the end of the gap   | at both readings            |
| every hour: `*`, `*/1`, `0-23`    | does not fire for the skipped time  | at both readings            |

Fire times at the same instant are one fire.
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
    """A cron expression and the timezone in which it is evaluated.

    `expression` has five fields: minute, hour, day of the month, month, day of the week. A sixth one, for
    seconds, comes FIRST, as in Quartz, Spring and robfig/cron: `30 0 9 * * MON` is Monday at 9:00:30.
    Names (MON, JAN), `L`, `#`, `W` and the aliases from @hourly to @yearly are supported. If both the day of the
    month and the day of the week are given, either one is enough, as in cron.

    `timezone` is an IANA name. Datetimes must be aware. Results are in UTC, except those of `local`.
    """

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        _parse(self.expression)
        _zone(self.timezone)

    @property
    def never_fires(self) -> bool:
        """Whether no date matches, as with `0 0 30 2 *`."""
        return not _parse(self.expression).searches

    def latest(self, *, after: datetime, until: datetime) -> datetime | None:
        """Return the latest fire time in (after, until]. It takes one backward step, whatever the distance."""
        start = _aware(after, "after")
        fire = self._nearest(_aware(until, "until"), back=True)
        return fire if fire is not None and fire > start else None

    def missed(self, *, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """Return the latest `limit` fire times in (after, until], oldest first."""
        fires: list[datetime] = []
        while len(fires) < limit and (fire := self.latest(after=after, until=until)):
            fires.append(fire)
            until = fire - _SECOND
        return fires[::-1]

    def next(self, after: datetime) -> datetime | None:
        """Return the first fire time > after, or None if it never fires."""
        return self._nearest(_aware(after, "after"), back=False)

    def upcoming(self, after: datetime, count: int) -> list[datetime]:
        """Return the first `count` fire times > after."""
        fires: list[datetime] = []
        while len(fires) < count and (fire := self.next(after)):
            fires.append(fire)
            after = fire
        return fires

    def local(self, moment: datetime) -> datetime:
        """Return the moment in the schedule's timezone."""
        return _aware(moment, "moment").astimezone(_zone(self.timezone))

    def _nearest(self, moment: datetime, *, back: bool) -> datetime | None:
        """Return the last fire time ≤ moment, or the first one > moment."""
        zone = _zone(self.timezone)
        # Fire times are whole seconds, so a fraction does not matter.
        moment = moment.replace(microsecond=0)
        wall = moment.astimezone(zone).replace(tzinfo=None, fold=0)
        edges = {wall + _SECOND}
        first, second = _readings(wall, zone)
        if first != second:
            # Inside a fold, time order is not wall-clock order: the nearest fire time may belong to the other
            # reading, whose candidates are next to the fold's ends.
            change = _clock_change(first, second, zone)
            edges |= {change.low, change.high}
        fires = (fire for edge in edges for fire in self._fires_at(edge, back=back))
        return (max if back else min)((fire for fire in fires if (fire <= moment) == back), default=None)

    def _fires_at(self, edge: datetime, *, back: bool) -> Iterator[datetime]:
        """Yield the instants of the matching wall-clock time that is nearest to `edge`: none, one or two."""
        expression, zone = _parse(self.expression), _zone(self.timezone)
        wall = expression.nearest(edge, back=back)
        if wall is None:
            return
        first, second = _readings(wall, zone)
        if first <= second:
            yield first
            if expression.repeats:
                yield second
            return
        gap = _clock_change(first, second, zone)
        if expression.every_hour:
            yield from self._fires_at(gap.low if back else gap.high, back=back)
        else:
            yield gap.moment


@dataclass(frozen=True, slots=True)
class _Expression:
    """A parsed expression."""

    # The schedule is the union of these.
    searches: "tuple[croniter[datetime], ...]"
    every_hour: bool
    # Whether both readings of a repeated hour count.
    repeats: bool

    def nearest(self, edge: datetime, *, back: bool) -> datetime | None:
        """Return the last matching wall-clock time < edge, or the first one ≥ edge."""
        found = []
        for shared in self.searches:
            # A search moves croniter's cursor, and the cached expression is shared between threads.
            search = copy(shared)
            try:
                if back:
                    found.append(search.get_prev(start_time=edge))
                else:
                    found.append(search.get_next(start_time=edge - _SECOND))
            except (ValueError, OverflowError):  # the end of the calendar: datetime has the years 1 to 9999
                continue
        return (max if back else min)(found, default=None)


class _ClockChange(NamedTuple):
    """The instant of a clock change, and the wall-clock times before and after it."""

    moment: datetime
    low: datetime
    high: datetime


def _readings(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return the two instants that a wall-clock time may mean (PEP 495).

    They are equal, except in a fold, where the first is the earlier one, and in a gap, where it is the later one.
    """
    first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    return first, second


def _clock_change(first: datetime, second: datetime, zone: ZoneInfo) -> _ClockChange:
    """Find the clock change between two different readings; neither zoneinfo nor pytz can list clock changes."""
    start, end = min(first, second), max(first, second)
    before = start.astimezone(zone).utcoffset() or timedelta()

    def is_after(seconds: int) -> bool:
        return (start + timedelta(seconds=seconds)).astimezone(zone).utcoffset() != before

    seconds = bisect_left(range(int((end - start).total_seconds())), True, key=is_after)
    moment = start + timedelta(seconds=seconds)
    old = moment.replace(tzinfo=None) + before
    new = moment.astimezone(zone).replace(tzinfo=None, fold=0)
    return _ClockChange(moment, min(old, new), max(old, new))


def _aware(moment: datetime, name: str) -> datetime:
    # Not InvalidSchedule: this is the caller's mistake, and must not disable the schedule.
    if moment.tzinfo is None:
        raise ValueError(f"{name}={moment} has no timezone; pass an aware datetime, e.g. datetime.now(UTC)")
    return moment.astimezone(UTC)


@lru_cache(maxsize=1024)
def _parse(expression: str) -> _Expression:
    def bad(problem: str) -> InvalidSchedule:
        return InvalidSchedule(f'cron expression "{expression}": {problem}')

    alias = expression.strip().lower()
    if alias.startswith("@") and alias not in _ALIASES:
        raise bad(f"unknown alias; use one of {', '.join(_ALIASES)}")
    fields = _ALIASES.get(alias, expression).split()
    if len(fields) not in (5, 6):
        raise bad(
            f"it has {len(fields) or 'no'} fields; use five (minute, hour, day of the month, month, "
            'day of the week), such as "*/15 * * * *", or six with the seconds first'
        )
    second, five = fields[:-5], fields[-5:]
    for (name, allowed), field in zip(_FIELDS, five + second, strict=False):
        if problem := _problem(field, name, allowed):
            raise bad(problem)

    minute, hour, day, month, weekday = five
    # With six fields croniter accepts Sunday only as 0. A number after / or # is not a day.
    weekday = re.sub(r"(?<![/#\d])7(?!\d)", "0", weekday)
    # croniter's own union never fires for `0 0 30 2 MON`, and drops the 1st from `0 0 1 * MON#2`.
    either = day not in ("*", "?") and weekday not in ("*", "?")
    searches = [
        # croniter expects the seconds last.
        croniter(" ".join([minute, hour, *days, *second]), datetime(2000, 1, 1), ret_type=datetime)
        for days in ([(day, month, "*"), ("*", month, weekday)] if either else [(day, month, weekday)])
    ]
    hours = croniter.expand(f"* {hour} * * *")[0][1]
    every_hour = "*" in hours
    return _Expression(
        searches=tuple(search for search in searches if _ever_fires(search)),
        every_hour=every_hour,
        # `*/24` is a daily schedule.
        repeats=every_hour or (hour.startswith("*") and len(hours) > 1),
    )


def _problem(field: str, name: str, allowed: str) -> str | None:
    """Return what is wrong with a field and what to do about it, or None."""
    if re.match(r"[hr]\b", field, re.IGNORECASE):
        return f'"{field}" chooses the {name} at random or by hash, which is not stable; use {allowed}'
    if same := re.search(r"(?<!\w)(\w+)-\1(?!\w)", field):
        # croniter reads 9-9 as a full circle, cron as 9.
        return f'the {name} "{field}" has a range that ends where it starts; use "{same[1]}" or "*"'
    columns = {key: "*" for key, _ in _FIELDS[:5]} | {"minute" if name == "second" else name: field}
    try:
        croniter.expand(" ".join(columns.values()))
    except ValueError:
        return f'"{field}" is not a valid {name}; use {allowed}, a list (1,3), a range (1-5), a step (*/2) or *'
    return None


def _ever_fires(search: "croniter[datetime]") -> bool:
    """Return whether any date matches. The rarest, a given weekday on 29 February, comes within 40 years."""
    try:
        copy(search).get_next()
    except ValueError:  # croniter gives up after 50 years
        return False
    return True


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    """Return the zone with pytz's names and data, which do not depend on the host.

    zoneinfo does the computation, because pytz's own tables end in 2037.
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
