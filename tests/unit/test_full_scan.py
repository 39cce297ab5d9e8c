"""When claims and promotions scan from the beginning."""

import pytest

from awa_py.store.full_scan import COST_RATIO, FullScanSchedule

INTERVAL_S = 1.0


@pytest.fixture
def schedule() -> FullScanSchedule:
    return FullScanSchedule(INTERVAL_S)


def record(
    schedule: FullScanSchedule, *, at: float, full: bool = True, too_little: bool = False, took_s: float = 0.001
) -> None:
    schedule.record(full=full, found_too_little=too_little, began=at - took_s, ended=at)


def test_first_scan_is_full(schedule: FullScanSchedule) -> None:
    assert schedule.is_due(0.0)


def test_full_scan_is_repeated_at_the_interval(schedule: FullScanSchedule) -> None:
    record(schedule, at=10.0)
    assert not schedule.is_due(10.0 + INTERVAL_S - 0.01)
    assert schedule.is_due(10.0 + INTERVAL_S)


def test_scan_from_the_cursor_does_not_delay_the_full_scan(schedule: FullScanSchedule) -> None:
    record(schedule, at=10.0)
    for tenth in range(1, 10):
        record(schedule, at=10 + tenth / 10, full=False)
    assert schedule.is_due(11.0)


def test_slow_full_scan_is_followed_by_a_long_pause(schedule: FullScanSchedule) -> None:
    record(schedule, at=10.0, took_s=0.5)
    pause_s = COST_RATIO * 0.5
    assert not schedule.is_due(10.0 + pause_s - 0.1)
    assert schedule.is_due(10.0 + pause_s)


def test_scan_that_found_too_little_is_followed_by_a_full_one(schedule: FullScanSchedule) -> None:
    record(schedule, at=10.0, took_s=0.01)
    record(schedule, at=10.05, full=False, too_little=True)
    assert not schedule.is_due(10.19)
    assert schedule.allowed_at == pytest.approx(10.2)
    assert schedule.is_due(10.21)


@pytest.mark.parametrize("too_little", [True, False])
def test_full_scans_take_at_most_one_twentieth_of_the_time(schedule: FullScanSchedule, too_little: bool) -> None:
    now, took_s, spent_s = 0.0, 0.2, 0.0
    while now < 100:
        full = schedule.is_due(now)
        cost_s = took_s if full else 0.001
        spent_s += took_s if full else 0.0
        now += cost_s
        record(schedule, at=now, full=full, too_little=too_little, took_s=cost_s)
        now += 0.05
    assert 100 / COST_RATIO / 2 < spent_s <= 100 / COST_RATIO + took_s
