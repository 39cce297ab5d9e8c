"""Rates: parse and format."""

import contextlib
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awa_py.errors import AwaError, ConfigError
from awa_py.model.rates import MAX_COUNT, MAX_PERIOD, Rate


@pytest.mark.parametrize(
    ("written", "count", "period", "text"),
    [
        ("100/s", 100, timedelta(seconds=1), "100/s"),
        ("10/m", 10, timedelta(minutes=1), "10/m"),
        ("5000/h", 5000, timedelta(hours=1), "5000/h"),
        ("1/d", 1, timedelta(days=1), "1/d"),
        ("50/60s", 50, timedelta(minutes=1), "50/m"),
        ("50/90s", 50, timedelta(seconds=90), "50/1m30s"),
        ("1/250ms", 1, timedelta(milliseconds=250), "1/250ms"),
        ("3/2", 3, timedelta(seconds=2), "3/2s"),
        ("  7 / 2h\n", 7, timedelta(hours=2), "7/2h"),
        (f"{MAX_COUNT}/s", MAX_COUNT, timedelta(seconds=1), f"{MAX_COUNT}/s"),
    ],
)
def test_parse_accepts_common_forms(written: str, count: int, period: timedelta, text: str) -> None:
    rate = Rate.parse(written)
    assert rate == Rate(count, period)
    assert str(rate) == text


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("fast", '"fast" is not a rate: write 100/s'),
        ("", '"" is not a rate'),
        ("100", '"100" is not a rate'),
        ("/s", '"/s" is not a rate'),
        ("100/", '"100/" is not a rate'),
        ("1.5/s", '"1.5/s" is not a rate'),
        ("-1/s", '"-1/s" is not a rate'),
        ("\N{ARABIC-INDIC DIGIT ONE}/s", "is not a rate"),
        ("1/s/m", '"1/s/m" is not a rate: "s/m" is not a duration'),
        ("100/parsec", '"100/parsec" is not a rate: "parsec" is not a duration'),
        ("0/s", "a rate of 0 allows nothing"),
        ("5/0s", "a rate's period of 0s is too short"),
        ("5/366d", "a rate's period of 366d is too long: it is at most 365 days"),
        (f"{MAX_COUNT + 1}/s", f"it is at most {MAX_COUNT}"),
        ("9" * 5000 + "/s", "is not a rate"),
    ],
)
def test_parse_rejects_other_text_with_the_reason(written: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Rate.parse(written)
    assert message in str(error.value)
    assert len(str(error.value)) < 250


def test_constructor_rejects_invalid_rates() -> None:
    with pytest.raises(ConfigError):
        Rate(0, timedelta(seconds=1))
    with pytest.raises(ConfigError):
        Rate(1, timedelta(0))


def test_per_second_divides_count_by_period() -> None:
    assert Rate(5000, timedelta(hours=1)).per_second == pytest.approx(1.3888, abs=0.001)


@given(
    count=st.integers(1, MAX_COUNT),
    period=st.timedeltas(min_value=timedelta(microseconds=1), max_value=MAX_PERIOD),
)
def test_parse_reads_back_the_text_of_a_rate(count: int, period: timedelta) -> None:
    rate = Rate(count, period)
    assert Rate.parse(str(rate)) == rate


@given(st.text())
def test_any_text_is_a_rate_or_a_clear_error(written: str) -> None:
    with contextlib.suppress(AwaError):
        assert Rate.parse(written).count >= 1
