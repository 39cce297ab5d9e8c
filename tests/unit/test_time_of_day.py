"""`ctx.sleep_until("09:00", timezone=…)`: the time of day in a timezone, with cron's rules for changing clocks."""

from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from awa_py import InvalidStep
from awa_py.model.durable_context import DurableContext

AUCKLAND = ZoneInfo(
    "Pacific/Auckland"
)  # its clocks skip 02:00 to 03:00 on 27 September 2026, and repeat it on 4 April 2027


class FakeRun:
    """A run that only names calls."""

    def take_name(self, name: str) -> str:
        return name

    def return_name(self, name: str, numbered: str) -> None: ...

    def perform(self, call: Any) -> Any: ...

    def perform_in_thread(self, call: Any) -> Any: ...

    def idempotency_key(self, name: str) -> str:
        return name

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        raise NotImplementedError

    def complete(self, result: object) -> None: ...


class FakeContext(DurableContext):
    def _begin_run(self) -> FakeRun:
        return FakeRun()


def next_fire(text: str, timezone: str | None, now: datetime) -> datetime:
    timer = FakeContext().sleep_until(text, timezone=timezone)
    assert timer.schedule is not None
    fire = timer.schedule.next(now)
    assert fire is not None
    return fire


@pytest.mark.parametrize(
    ("text", "now", "expected"),
    [
        ("09:00", datetime(2026, 5, 3, 8, 59, tzinfo=AUCKLAND), datetime(2026, 5, 3, 9, tzinfo=AUCKLAND)),
        ("09:00", datetime(2026, 5, 3, 9, 0, tzinfo=AUCKLAND), datetime(2026, 5, 4, 9, tzinfo=AUCKLAND)),
        ("09:00:30", datetime(2026, 5, 3, 9, 0, tzinfo=AUCKLAND), datetime(2026, 5, 3, 9, 0, 30, tzinfo=AUCKLAND)),
        # A day with a change of the clocks has 23 or 25 hours.
        ("09:00", datetime(2026, 9, 26, 9, 0, tzinfo=AUCKLAND), datetime(2026, 9, 27, 9, tzinfo=AUCKLAND)),
        ("09:00", datetime(2027, 4, 3, 9, 0, tzinfo=AUCKLAND), datetime(2027, 4, 4, 9, tzinfo=AUCKLAND)),
        # A time that the clocks skip is the end of the gap, and a repeated one is the first of the two.
        ("02:30", datetime(2026, 9, 26, 12, tzinfo=AUCKLAND), datetime(2026, 9, 27, 3, tzinfo=AUCKLAND)),
        ("02:30", datetime(2027, 4, 3, 12, tzinfo=AUCKLAND), datetime(2027, 4, 4, 2, 30, fold=0, tzinfo=AUCKLAND)),
    ],
)
def test_time_of_day_is_that_of_the_timezone(text: str, now: datetime, expected: datetime) -> None:
    assert next_fire(text, "Pacific/Auckland", now.astimezone(UTC)) == expected.astimezone(UTC)


def test_time_of_day_is_utc_by_default() -> None:
    now = datetime(2026, 5, 3, 12, tzinfo=UTC)
    assert next_fire("09:00", None, now) == datetime(2026, 5, 4, 9, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "9 o'clock", "24:00", "09:00+02:00", "09:00:00.5", "2026-05-03 09:00", "-09:00"])
def test_text_that_is_no_time_of_day_is_refused(text: str) -> None:
    with pytest.raises(InvalidStep, match="sleep_until: "):
        FakeContext().sleep_until(text)
