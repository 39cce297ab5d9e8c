"""Parse and format durations such as "250ms", "30s", "10m", "1h30m", "7d", or a number of seconds."""

import math
import re
from datetime import timedelta
from decimal import Decimal

from awa_py.errors import InvalidDuration

Duration = timedelta | int | float | str
MAX_DURATION = timedelta(days=365_000)  # awa.is_duration has the same limit

_UNITS_US = {
    "w": 7 * 86_400_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_SECONDS = re.compile(_NUMBER)
_PARTS = re.compile("".join(rf"(?:(?P<{unit}>{_NUMBER}){unit})?" for unit in _UNITS_US))
_SHOWN_CHARACTERS = 60


def parse(value: Duration) -> timedelta:
    """Return the duration, rounded to microseconds, or raise InvalidDuration."""
    try:
        duration = _read(value)
    except OverflowError:
        duration = timedelta.max
    if duration is None:
        raise InvalidDuration(f"{_show(value)} is not a duration: write 250ms, 30s, 10m, 1h or 7d")
    if duration < timedelta(0):
        raise InvalidDuration(f"{_show(value)} is negative: a duration is zero or more")
    if duration > MAX_DURATION:
        raise InvalidDuration(f"{_show(value)} is too long: a duration is at most {MAX_DURATION.days} days")
    return duration


def text(value: timedelta) -> str:
    """Return the short form, which `parse` reads back exactly: "1h30m", "250ms", "7d", "0s"."""
    if value < timedelta(0):
        return f"-{text(-value)}"
    minutes, seconds = divmod(value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{count}{unit}" for count, unit in ((value.days, "d"), (hours, "h"), (minutes, "m")) if count]
    if seconds:
        parts.append(f"{_decimal(seconds, value.microseconds, digits=6)}s")
    elif value.microseconds:
        parts.append(f"{_decimal(*divmod(value.microseconds, 1000), digits=3)}ms")
    return "".join(parts) or "0s"


def _read(value: object) -> timedelta | None:
    match value:
        case timedelta():
            return value
        case str():
            return _read_text(value.strip())
        case bool():
            return None
        case int():
            return timedelta(seconds=value)
        case float() if not math.isnan(value) and not math.isinf(value):
            return timedelta(seconds=value)
        case _:
            return None


def _read_text(text: str) -> timedelta | None:
    if _SECONDS.fullmatch(text):
        return _microseconds(Decimal(text) * _UNITS_US["s"])
    parts = _PARTS.fullmatch(text)
    if not text or parts is None:
        return None
    return _microseconds(
        sum(
            (Decimal(count) * _UNITS_US[unit] for unit, count in parts.groupdict().items() if count),
            start=Decimal(0),
        )
    )


def _microseconds(count: Decimal) -> timedelta:
    return timedelta(microseconds=round(count))


def _decimal(whole: int, fraction: int, *, digits: int) -> str:
    return f"{whole}.{fraction:0{digits}d}".rstrip("0").rstrip(".")


def _show(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= _SHOWN_CHARACTERS else f'"{value[:_SHOWN_CHARACTERS]}…"'
    if isinstance(value, timedelta):
        return text(value)
    try:
        shown = repr(value)
    except ValueError:  # Python does not print integers of more than 4,300 digits
        return "that number"
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}…"
