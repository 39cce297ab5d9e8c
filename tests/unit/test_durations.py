"""Durations: parse and format."""

import contextlib
import math
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from awa_py import durations
from awa_py.durations import MAX_DURATION
from awa_py.errors import InvalidDuration


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("30s", timedelta(seconds=30)),
        ("10m", timedelta(minutes=10)),
        ("1h", timedelta(hours=1)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(weeks=2)),
        ("1h30m", timedelta(minutes=90)),
        ("1w2d3h4m5s6ms", timedelta(weeks=1, days=2, hours=3, minutes=4, seconds=5, milliseconds=6)),
        ("1m250ms", timedelta(minutes=1, milliseconds=250)),
        ("1.5h", timedelta(minutes=90)),
        ("0.1s", timedelta(microseconds=100_000)),
        ("0.001ms", timedelta(microseconds=1)),
        ("0", timedelta(0)),
        ("0s", timedelta(0)),
        ("90", timedelta(seconds=90)),
        ("1.5", timedelta(seconds=1.5)),
        ("007s", timedelta(seconds=7)),
        ("  10m\n", timedelta(minutes=10)),
        ("365000d", timedelta(days=365_000)),
        (0, timedelta(0)),
        (90, timedelta(seconds=90)),
        (0.25, timedelta(milliseconds=250)),
        (-0.0, timedelta(0)),
        (timedelta(minutes=3), timedelta(minutes=3)),
        (MAX_DURATION, MAX_DURATION),
    ],
)
def test_parse_accepts_common_forms(written: durations.Duration, expected: timedelta) -> None:
    assert durations.parse(written) == expected


@pytest.mark.parametrize(
    "written",
    [
        "10 parsecs",
        "",
        "   ",
        "m",
        "10x",
        "10 m",
        "1h 30m",
        "30m1h",
        "1h1h",
        "1h30",
        "1,5h",
        "1.h",
        ".5h",
        "1e3s",
        "+5s",
        "30S",
        "5M",
        "nan",
        "inf",
        "infs",
        "٣s",
        "²s",
        "1_000s",
        "10s\x00",
    ],
)
def test_parse_rejects_other_text(written: str) -> None:
    with pytest.raises(InvalidDuration) as error:
        durations.parse(written)
    assert str(error.value) == f'"{written}" is not a duration: write 250ms, 30s, 10m, 1h or 7d'


@pytest.mark.parametrize("value", [True, False, None, [], b"30s", math.nan, math.inf, -math.inf, 3j, object], ids=repr)
def test_parse_rejects_other_types(value: object) -> None:
    with pytest.raises(InvalidDuration, match="is not a duration: write 250ms, 30s, 10m, 1h or 7d"):
        durations.parse(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(-1, "-1"), (-0.5, "-0.5"), (timedelta(microseconds=-1), "-0.001ms"), (timedelta.min, "-999999999d")],
)
def test_parse_rejects_negative_durations(value: durations.Duration, shown: str) -> None:
    with pytest.raises(InvalidDuration) as error:
        durations.parse(value)
    assert str(error.value) == f"{shown} is negative: a duration is zero or more"


def test_parse_rejects_text_with_a_minus_sign() -> None:
    with pytest.raises(InvalidDuration, match=r'^"-5s" is not a duration'):
        durations.parse("-5s")


@pytest.mark.parametrize(
    "value",
    ["365001d", "999999999d24h", "9" * 5000, "9" * 5000 + "d", 10**15, 10**5000, -(10**5000), 1e300],
    ids=["days", "sum", "seconds text", "days text", "int", "huge int", "huge negative int", "float"],
)
def test_parse_rejects_durations_that_are_too_long(value: durations.Duration) -> None:
    with pytest.raises(InvalidDuration, match="is too long: a duration is at most 365000 days") as error:
        durations.parse(value)
    assert len(str(error.value)) < 140


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (timedelta(0), "0s"),
        (timedelta(milliseconds=250), "250ms"),
        (timedelta(seconds=30), "30s"),
        (timedelta(seconds=60), "1m"),
        (timedelta(seconds=90), "1m30s"),
        (timedelta(minutes=90), "1h30m"),
        (timedelta(days=7), "7d"),
        (timedelta(days=100), "100d"),
        (timedelta(days=1, seconds=1), "1d1s"),
        (timedelta(seconds=1.5), "1.5s"),
        (timedelta(seconds=10), "10s"),
        (timedelta(milliseconds=100), "100ms"),
        (timedelta(microseconds=1500), "1.5ms"),
        (timedelta(microseconds=1), "0.001ms"),
        (timedelta(seconds=1, microseconds=1), "1.000001s"),
        (timedelta(minutes=1, milliseconds=250), "1m250ms"),
        (timedelta(seconds=-30), "-30s"),
    ],
)
def test_text_is_the_short_form(value: timedelta, expected: str) -> None:
    assert durations.text(value) == expected


@given(st.timedeltas(min_value=timedelta(0), max_value=MAX_DURATION))
@example(MAX_DURATION)
@example(timedelta(microseconds=1))
def test_parse_reads_back_the_text_exactly(value: timedelta) -> None:
    assert durations.parse(durations.text(value)) == value


@given(st.text())
def test_any_text_is_a_duration_or_a_clear_error(written: str) -> None:
    with contextlib.suppress(InvalidDuration):
        assert durations.parse(written) >= timedelta(0)
