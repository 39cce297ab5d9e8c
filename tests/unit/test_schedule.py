"""Cron schedules: when they fire (A8), and clock changes."""

import pickle
import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import pytz
from croniter import croniter
from hypothesis import example, given, settings
from hypothesis import strategies as st

from awa_py.errors import InvalidSchedule
from awa_py.model.schedule import Schedule

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
LONG_AGO = datetime(1900, 1, 1, tzinfo=UTC)
BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
CASABLANCA, APIA = "Africa/Casablanca", "Pacific/Apia"
# fmt: off
CLOCK_CHANGES = [
    (BERLIN, "2024-03-31"), (BERLIN, "2024-10-27"), (NEW_YORK, "2024-03-10"), (NEW_YORK, "2024-11-03"),
    (LORD_HOWE, "2024-04-06"), (LORD_HOWE, "2024-10-05"), (CASABLANCA, "2024-03-10"),
    (CASABLANCA, "2024-04-14"), (APIA, "2011-12-30"), (APIA, "2012-03-31"), (APIA, "2012-09-29"),
]
EXPRESSIONS = [
    "* * * * * *", "*/7 */13 * * * *", "30 59 1-3 * * *", "59 59 23 31 12 *", "* * * * *", "*/15 * * * *",
    "0 */2 * * *", "30 * 30 12 *", "30 2 * * *", "30 2,3 * * *", "15 22-2 * JAN-MAR *", "0 0 * * *",
    "@weekly", "0 0 31 * *", "0 0 29 2 *", "0 12 L * *", "0 9 * * MON#2", "30 1 1 * SUN",
]
# fmt: on
ZONES = [*dict(CLOCK_CHANGES), "UTC", "Asia/Kathmandu", "Europe/Dublin", "America/Havana"]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def zoneinfo(name: str) -> ZoneInfo:
    with pytz.open_resource(name) as file:  # type: ignore[attr-defined]  # the same data as awa
        return ZoneInfo.from_file(file)


@pytest.mark.parametrize(
    ("zone", "expression", "start", "expected"),
    [
        # Gaps of one hour: 2:00 to 3:00.
        (BERLIN, "30 2 * * *", "2024-03-30T00:00", "30 02:30+0100, 31 03:00+0200, 01 02:30+0200"),
        (BERLIN, "0 3 * * *", "2024-03-30T00:00", "30 03:00+0100, 31 03:00+0200, 01 03:00+0200"),
        (BERLIN, "30 2,3 * * *", "2024-03-31T00:00", "31 03:00+0200, 31 03:30+0200, 01 02:30+0200"),
        (BERLIN, "15,45 2 * * *", "2024-03-31T00:00", "31 03:00+0200, 01 02:15+0200, 01 02:45+0200"),
        (BERLIN, "*/30 * * * *", "2024-03-31T00:00", "31 01:30+0100, 31 03:00+0200, 31 03:30+0200"),
        (BERLIN, "45 * * * *", "2024-03-31T00:00", "31 01:45+0100, 31 03:45+0200, 31 04:45+0200"),
        (BERLIN, "0 */2 * * *", "2024-03-31T00:00", "31 03:00+0200, 31 04:00+0200, 31 06:00+0200"),
        (NEW_YORK, "30 2 * * *", "2024-03-10T05:00", "10 03:00-0400, 11 02:30-0400, 12 02:30-0400"),
        # Folds of one hour: 2:00 to 3:00, in New York 1:00 to 2:00.
        (BERLIN, "30 2 * * *", "2024-10-26T12:00", "27 02:30+0200, 28 02:30+0100, 29 02:30+0100"),
        (BERLIN, "30 2 * * *", "2024-10-27T01:00", "28 02:30+0100, 29 02:30+0100, 30 02:30+0100"),
        (BERLIN, "0 * * * *", "2024-10-26T23:00", "27 02:00+0200, 27 02:00+0100, 27 03:00+0100"),
        (BERLIN, "0 0-23 * * *", "2024-10-26T23:00", "27 02:00+0200, 27 02:00+0100, 27 03:00+0100"),
        (BERLIN, "*/15 * * * *", "2024-10-27T00:30", "27 02:45+0200, 27 02:00+0100, 27 02:15+0100"),
        (BERLIN, "0 1-5 * * *", "2024-10-26T23:00", "27 02:00+0200, 27 03:00+0100, 27 04:00+0100"),
        (BERLIN, "0 */2 * * *", "2024-10-26T23:00", "27 02:00+0200, 27 02:00+0100, 27 04:00+0100"),
        (NEW_YORK, "30 1 * * *", "2024-11-03T04:00", "03 01:30-0400, 04 01:30-0500, 05 01:30-0500"),
        (NEW_YORK, "30 * * * *", "2024-11-03T04:30", "03 01:30-0400, 03 01:30-0500, 03 02:30-0500"),
        # A step that leaves one hour is a daily job.
        ("America/Havana", "0 */24 * * *", "2024-11-03T03:00", "03 00:00-0400, 04 00:00-0500, 05 00:00-0500"),
        # Half an hour: skipped from 2:00, repeated from 1:30.
        (LORD_HOWE, "15 2 * * *", "2024-10-05T12:00", "06 02:30+1100, 07 02:15+1100, 08 02:15+1100"),
        (LORD_HOWE, "0 * * * *", "2024-10-05T14:00", "06 01:00+1030, 06 03:00+1100, 06 04:00+1100"),
        (LORD_HOWE, "45 1 * * *", "2024-04-06T12:00", "07 01:45+1100, 08 01:45+1030, 09 01:45+1030"),
        (LORD_HOWE, "45 * * * *", "2024-04-06T14:00", "07 01:45+1100, 07 01:45+1030, 07 02:45+1030"),
        # Set back for Ramadan, from 3:00, and forward after it, from 2:00.
        (CASABLANCA, "30 2 * * *", "2024-03-10T00:00", "10 02:30+0100, 11 02:30+0000, 12 02:30+0000"),
        (CASABLANCA, "30 * * * *", "2024-03-10T01:00", "10 02:30+0100, 10 02:30+0000, 10 03:30+0000"),
        (CASABLANCA, "30 2 * * *", "2024-04-13T12:00", "14 03:00+0100, 15 02:30+0100, 16 02:30+0100"),
        # A whole day, 30 December 2011, that Samoa did not have; and a common fold, from 4:00.
        (APIA, "0 10 * * *", "2011-12-29T12:00", "29 10:00-1000, 31 00:00+1400, 31 10:00+1400"),
        (APIA, "0 0 * * *", "2011-12-29T09:00", "29 00:00-1000, 31 00:00+1400, 01 00:00+1400"),
        (APIA, "0 * * * *", "2011-12-30T08:00", "29 23:00-1000, 31 00:00+1400, 31 01:00+1400"),
        (APIA, "30 3 * * *", "2012-03-31T12:00", "01 03:30+1400, 02 03:30+1300, 03 03:30+1300"),
        (APIA, "30 * * * *", "2012-03-31T13:00", "01 03:30+1400, 01 03:30+1300, 01 04:30+1300"),
    ],
)
def test_schedule_handles_clock_changes(zone: str, expression: str, start: str, expected: str) -> None:  # A8
    schedule = Schedule(expression, zone)
    fires = schedule.upcoming(utc(start), 3)
    local = [fire.astimezone(zoneinfo(zone)) for fire in fires]
    assert ", ".join(f"{fire:%d %H:%M%z}" for fire in local) == expected
    assert schedule.missed(after=utc(start), until=fires[-1], limit=10) == fires


def fires_by_search(schedule: Schedule, start: datetime, end: datetime) -> list[datetime]:
    """Return the fire times, found minute by minute, of an expression that restricts only minutes and hours."""
    (minutes, hours, *_), _ = croniter.expand(schedule.expression)
    zone, fires = zoneinfo(schedule.timezone), []

    def wall(moment: datetime) -> datetime:
        return moment.astimezone(zone).replace(tzinfo=None, fold=0)

    def matches(wall: datetime) -> bool:
        return (minutes == ["*"] or wall.minute in minutes) and (hours == ["*"] or wall.hour in hours)

    moment, shown = start, wall(start)  # `shown` is the latest time that the clock has shown
    while (moment := moment + MINUTE) <= end:
        due = schedule.expression.split()[1].startswith("*") and matches(wall(moment))
        while shown < wall(moment):
            shown += MINUTE
            due = due or (hours != ["*"] and matches(shown))
        if due:
            fires.append(moment)
    return fires


@pytest.mark.parametrize("expression", ["30 2 * * *", "*/20 1-3 * * *", "45 * * * *", "30 */2 * * *"])
@pytest.mark.parametrize(("zone", "day"), CLOCK_CHANGES)
def test_schedule_agrees_with_a_search_minute_by_minute(zone: str, day: str, expression: str) -> None:  # A8
    schedule = Schedule(expression, zone)
    start, end = utc(day) - timedelta(hours=12), utc(day) + timedelta(hours=36)
    expected = fires_by_search(schedule, start, end)
    assert schedule.upcoming(start, len(expected)) == expected
    assert schedule.missed(after=start, until=end, limit=10_000) == expected


def test_clock_changes_after_2037_are_known() -> None:  # where pytz's own tables end
    assert Schedule("0 12 * * *", BERLIN).next(utc("2050-07-01")) == utc("2050-07-01T10:00")


instants = st.one_of(
    st.datetimes(datetime(1975, 1, 1), datetime(2120, 1, 1), timezones=st.just(UTC)),
    st.tuples(st.sampled_from(CLOCK_CHANGES), st.floats(-1e5, 1e5)).map(
        lambda near: utc(near[0][1]) + timedelta(seconds=near[1])
    ),
)


@settings(deadline=None)
@given(st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), instants)
@example("*/15 * * * *", BERLIN, utc("2024-10-27T00:59:59.5"))
def test_forward_and_backward_searches_agree(expression: str, zone: str, moment: datetime) -> None:  # A8
    schedule = Schedule(expression, zone)
    fires = schedule.upcoming(moment, 12)
    assert all(fire.tzinfo is UTC and fire.microsecond == 0 for fire in fires)
    assert all(a < b for a, b in zip([moment, *fires], fires, strict=False))
    for fire in fires:
        assert schedule.latest(after=fire - SECOND, until=fire) == fire
        assert schedule.next(fire - SECOND) == fire
    assert schedule.missed(after=moment, until=fires[-1], limit=99) == fires
    assert schedule.missed(after=moment, until=fires[-1], limit=5) == fires[-5:]

    latest = schedule.latest(after=LONG_AGO, until=moment)
    assert latest is not None
    assert latest <= moment
    assert schedule.next(latest) == fires[0]


def test_six_fields_start_with_seconds() -> None:
    assert Schedule("30 0 9 * * *").next(utc("2024-06-01")) == utc("2024-06-01T09:00:30")
    assert Schedule("*/10 * * * * *").next(utc("2024-06-01T00:00:50")) == utc("2024-06-01T00:01:00")
    assert Schedule("0 30 9 * * MON").next(utc("2024-06-01")) == utc("2024-06-03T09:30:00")


def test_latest_includes_its_end_and_excludes_its_start() -> None:  # A8
    schedule, noon = Schedule("0 12 * * *"), utc("2024-06-01T12:00")
    half = timedelta(milliseconds=500)
    assert schedule.latest(after=noon - SECOND, until=noon) == noon
    assert schedule.latest(after=noon - half, until=noon + half) == noon
    assert schedule.latest(after=noon, until=noon + half) is None
    assert schedule.latest(after=noon + half, until=noon + MINUTE) is None
    assert schedule.latest(after=noon - MINUTE, until=noon - half) is None
    assert schedule.latest(after=noon + MINUTE, until=noon - MINUTE) is None
    assert schedule.next(noon - half) == noon
    assert schedule.next(noon) == noon + timedelta(days=1)


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "* * * 31 2 *"])
def test_impossible_date_never_fires(expression: str) -> None:
    schedule, now = Schedule(expression), utc("2024-06-01")
    assert schedule.never_fires
    assert schedule.next(now) is None
    assert schedule.latest(after=LONG_AGO, until=now) is None
    assert schedule.upcoming(now, 3) == schedule.missed(after=LONG_AGO, until=now, limit=3) == []


@pytest.mark.parametrize(
    ("expression", "start", "expected"),
    [
        ("0 0 29 2 *", "2096-03-01", "2104-02-29"),  # 2100 is no leap year
        ("0 0 * 2 MON#5", "2072-03-01", "2112-02-29"),
        ("0 0 L 2 *", "2024-02-01", "2024-02-29"),
        ("0 0 * * L5", "2024-06-01", "2024-06-28"),
        ("0 0 15W * *", "2024-06-01", "2024-06-14"),
        ("0 0 * JAN TUE", "2024-06-01", "2025-01-07"),
        # Either day is enough, even if the other one never comes.
        ("0 0 30 2 MON", "2024-06-01", "2025-02-03"),
        ("0 0 1 * MON#2", "2024-07-15", "2024-08-01"),
        # Sunday is 0 and 7, with five fields and with six.
        ("0 0 * * 7", "2024-06-03", "2024-06-09"),
        ("0 0 0 * * 7", "2024-06-03", "2024-06-09"),
        ("0 0 0 * * 6-7", "2024-06-08", "2024-06-09"),
        ("@annually", "2024-06-01", "2025-01-01"),
        ("@yearly", "2024-06-01", "2025-01-01"),
        ("@monthly", "2024-06-01", "2024-07-01"),
        ("@weekly", "2024-06-03", "2024-06-09"),
        ("@daily", "2024-06-01", "2024-06-02"),
        (" @Midnight ", "2024-06-01", "2024-06-02"),
        ("@hourly", "2024-06-01", "2024-06-01T01:00"),
    ],
)
def test_expression_fires_at_the_expected_times(expression: str, start: str, expected: str) -> None:
    schedule = Schedule(expression)
    assert not schedule.never_fires
    assert schedule.next(utc(start)) == utc(expected)
    assert schedule.latest(after=utc(start), until=utc(expected)) == utc(expected)


def test_schedule_ends_with_the_calendar() -> None:
    assert Schedule("0 0 1 1 *").next(utc("9999-06-01")) is None


def test_schedules_are_equal_by_value() -> None:
    schedule = Schedule("0 9 * * *", BERLIN)
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert len({schedule, Schedule("0 9 * * *", BERLIN), Schedule("0 9 * * *")}) == 2


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "it has no fields; use five"),
        ("* * * * * * 2030", "it has 7 fields"),
        ("@reboot", "unknown alias; use one of @yearly, "),
        ("61 * * * *", '"61" is not a valid minute; use 0-59'),
        ("60 * * * * *", '"60" is not a valid second; use 0-59'),
        ("0 24 * * *", '"24" is not a valid hour; use 0-23'),
        ("0 0 0 * *", '"0" is not a valid day of the month; use 1-31'),
        ("0 0 0 0 * *", '"0" is not a valid day of the month'),
        ("0 0 * FOO *", '"FOO" is not a valid month; use 1-12 or JAN-DEC'),
        ("0 0 * * 8", '"8" is not a valid day of the week; use 0-7 or SUN-SAT'),
        ("*/0 * * * *", '"*/0" is not a valid minute'),
        ("9" * 5000 + " * * * *", '9" is not a valid minute'),
        ("R * * * *", '"R" chooses the minute at random'),
        ("0 0 r(1-5) * * *", '"r(1-5)" chooses the hour at random'),
        ("H/15 * * * *", '"H/15" chooses the minute at random or by hash'),
        ("0 9-9 * * *", 'the hour "9-9" has a range that ends where it starts; use "9"'),
    ],
)
def test_invalid_expression_is_rejected_with_the_reason(expression: str, problem: str) -> None:  # A8
    with pytest.raises(InvalidSchedule) as error:
        Schedule(expression)
    assert str(error.value).startswith(f'cron expression "{expression}": ')
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Europe/Berln", 'did you mean "Europe/Berlin"?'),
        ("tokyo", 'did you mean "Asia/Tokyo"?'),
        ("New York", 'did you mean "America/New_York"?'),
        ("CEST", "use an IANA name"),
        ("../../etc/passwd", "use an IANA name"),
        ("", "use an IANA name"),
        ("Zürich!", "is unknown"),
    ],
)
def test_unknown_timezone_is_rejected_with_a_suggestion(name: str, hint: str) -> None:  # A8
    with pytest.raises(InvalidSchedule) as error:
        Schedule("@daily", name)
    assert f'timezone "{name}" is unknown; ' in str(error.value)
    assert hint in str(error.value)


def test_naive_datetime_is_rejected() -> None:
    schedule, naive, aware = Schedule("@daily"), datetime(2024, 1, 1), utc("2024-01-01")
    with pytest.raises(ValueError, match="after=2024-01-01 00:00:00 has no timezone") as error:
        schedule.next(naive)
    assert not isinstance(error.value, InvalidSchedule)  # the schedule must not be disabled for it
    with pytest.raises(ValueError, match="until="):
        schedule.latest(after=aware, until=naive)


@pytest.mark.parametrize("days", [30, 3650])
def test_long_downtime_takes_one_search_step(monkeypatch: pytest.MonkeyPatch, days: int) -> None:  # A8
    schedule, now = Schedule("* * * * * *", BERLIN), utc("2024-06-01T12:00:00.25")
    steps, get_prev = [], croniter.get_prev

    def counted(self: object, *args: object, **options: object) -> object:
        steps.append(1)
        return get_prev(self, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(croniter, "get_prev", counted)
    began = time.perf_counter()
    assert schedule.latest(after=now - timedelta(days=days), until=now) == utc("2024-06-01T12:00:00")
    # It takes 0.1 ms. Walking 30 days takes minutes; 2 s tells the two apart even on a starved CI machine.
    assert time.perf_counter() - began < 2
    assert len(steps) == 1
