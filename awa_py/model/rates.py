"""Rates as people write them: "100/s", "10/m", "5000/h", "1/d", "50/90s"."""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from awa_py import durations
from awa_py.errors import ConfigError, InvalidDuration

MAX_COUNT = 2**31 - 1  # the largest integer in the database
MAX_PERIOD = timedelta(days=365)

_UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_WRITTEN = re.compile(r"\s*(?P<count>[0-9]+)\s*/\s*(?P<period>\S+)\s*")
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Rate:
    """A count per period. `str` returns a text that `parse` reads: "100/s", "50/1m30s"."""

    count: int
    period: timedelta

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"a rate of {self.count} allows nothing: it must be 1 or more")
        if self.count > MAX_COUNT:
            raise ConfigError(f"a rate of {self.count} is too high: it is at most {MAX_COUNT}")
        if self.period <= timedelta(0):
            raise ConfigError(
                f"a rate's period of {durations.text(self.period)} is too short: it must be longer than 0"
            )
        if self.period > MAX_PERIOD:
            raise ConfigError(f"a rate's period of {durations.text(self.period)} is too long: it is at most 365 days")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a text such as "100/s", or raise ConfigError."""
        written = _WRITTEN.fullmatch(text)
        if written is None or len(written["count"]) > _SHOWN_CHARACTERS:
            raise ConfigError(f"{_show(text)} is not a rate: write 100/s, 10/m, 5000/h or 50/90s")
        try:
            period = _UNITS.get(written["period"]) or durations.parse(written["period"])
        except InvalidDuration as error:
            raise ConfigError(f"{_show(text)} is not a rate: {error}") from None
        return cls(int(written["count"]), period)

    @property
    def per_second(self) -> float:
        return self.count / self.period.total_seconds()

    def __str__(self) -> str:
        unit = next((name for name, length in _UNITS.items() if length == self.period), None)
        return f"{self.count}/{unit or durations.text(self.period)}"


def _show(text: str) -> str:
    return f'"{text}"' if len(text) <= _SHOWN_CHARACTERS else f'"{text[:_SHOWN_CHARACTERS]}…"'
