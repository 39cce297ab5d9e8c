"""Whatever is written as a cron expression or a timezone: a schedule, or one clear error, in bounded time."""

import time
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from awa_py import durations
from awa_py.errors import InvalidDuration, InvalidSchedule
from awa_py.model.schedule import Schedule
from tests.fuzz import cases

NOW = datetime(2024, 2, 28, 23, 59, 30, tzinfo=UTC)
TIMEOUT_S = 10.0
PARTS = ("*", "0", "5", "31", "59", "60", "99", "-1", "1-5", "5-1", "*/2", "*/0", "1-59/7", "1,2,3", "1,", ",", "L",
         "L2", "l", "W", "15W", "?", "#", "1#3", "mon#2", "MON", "JAN", "jan-mar", "H", "R", "R(1-5)", "H/5",
         "2000", "1e3",
         "٣", "", "0x1", "*" * 50, "1-2-3", "1//2", "@daily", "%", "\x00", "\u202e")  # fmt: skip
FIELDS = st.one_of(st.sampled_from(PARTS), st.text("0123456789*,/-LW#?@HRamonj", max_size=8))
EXPRESSIONS = st.one_of(
    st.lists(FIELDS, min_size=5, max_size=7).map(" ".join), st.lists(FIELDS, max_size=9).map(" ".join), st.text()
)
TIMEZONES = st.one_of(st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Apia", "Asia/Kathmandu"]), st.text(max_size=20))


@cases(3_000)
@given(EXPRESSIONS, TIMEZONES)
def test_expression_is_a_schedule_or_an_error(expression: str, timezone: str) -> None:
    began = time.monotonic()
    try:
        schedule = Schedule(expression, timezone)
        if not schedule.never_fires:
            next_at = schedule.next(NOW)
            assert next_at is None or next_at > NOW
            latest = schedule.latest(after=NOW - timedelta(days=400), until=NOW)
            assert latest is None or NOW - timedelta(days=400) < latest <= NOW
    except InvalidSchedule:
        pass
    assert time.monotonic() - began < TIMEOUT_S, (expression, timezone)


@cases(5_000)
@given(st.one_of(st.text(), st.text("0123456789.wdhmse+- ", max_size=12), st.integers(), st.floats(), st.booleans()))
def test_text_is_a_duration_or_an_error(value: str | float) -> None:
    try:
        duration = durations.parse(value)
    except InvalidDuration:
        return
    assert durations.parse(durations.text(duration)) == duration
