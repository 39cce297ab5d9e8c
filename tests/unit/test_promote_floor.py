"""From which due time the next promotion looks, by a clock of the test's own."""

from datetime import UTC, datetime, timedelta

from awa_py.maintenance.promote import FULL_SCAN_INTERVAL_S, FULL_SCAN_SHARE, Floor
from awa_py.store.maintenance import Promoted

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def saw(
    floor: Floor, jobs: int, *, at: float, full: bool = True, took_s: float = 0.001, settled_until: datetime = NOON
) -> float | None:
    return floor.saw(Promoted(jobs, None, settled_until), full=full, began=at - took_s, ended=at)


def test_the_first_scan_is_from_the_beginning() -> None:
    assert Floor().since(0.0) is None


def test_the_next_begins_where_the_last_has_come_to() -> None:
    floor = Floor()
    saw(floor, 1000, at=10.0)
    assert floor.since(10.1) == NOON
    saw(floor, 1000, at=10.2, full=False, settled_until=NOON + timedelta(seconds=1))
    assert floor.since(10.3) == NOON + timedelta(seconds=1)


def test_many_late_ones_that_a_full_scan_finds_take_the_floor_down() -> None:
    """Else only a batch of them would be promoted at each full scan."""
    floor = Floor()
    saw(floor, 1000, at=10.0)
    late = NOON - timedelta(hours=1)
    saw(floor, 1000, at=12.0, settled_until=late)
    assert floor.since(12.1) == late


def test_everything_is_looked_at_again_every_two_seconds_however_much_is_found() -> None:
    floor = Floor()
    saw(floor, 1000, at=10.0)
    for tenth in range(1, 20):
        assert floor.since(10 + tenth / 10) is not None
        saw(floor, 1000, at=10 + tenth / 10, full=False)
    assert floor.since(10.0 + FULL_SCAN_INTERVAL_S) is None


def test_a_slow_full_scan_is_paid_for_with_a_long_rest() -> None:
    floor = Floor()
    saw(floor, 1, at=10.0, took_s=0.5)
    rest_s = FULL_SCAN_SHARE * 0.5
    assert floor.since(10.0 + rest_s - 0.1) == NOON
    assert floor.since(10.0 + rest_s) is None


def test_where_nothing_was_found_the_next_scan_is_full_once_it_may_be() -> None:
    floor = Floor()
    saw(floor, 1, at=10.0, took_s=0.01)
    again_s = saw(floor, 0, at=10.05, full=False)
    assert again_s is not None
    assert abs(again_s - 0.15) < 1e-6
    assert floor.since(10.19) == NOON
    assert floor.since(10.05 + again_s + 1e-6) is None


def test_nobody_has_to_come_back_soon_after_a_full_scan_or_a_find() -> None:
    floor = Floor()
    assert saw(floor, 0, at=10.0) is None
    assert saw(floor, 1, at=10.1, full=False) is None


def test_even_where_nothing_is_ever_found_full_scans_take_no_more_than_a_twentieth_of_the_time() -> None:
    floor = Floor()
    now, took_s, spent_s = 0.0, 0.2, 0.0
    while now < 100:
        full = floor.since(now) is None
        cost_s = took_s if full else 0.001
        spent_s += took_s if full else 0.0
        now += cost_s
        saw(floor, 0, at=now, full=full, took_s=cost_s)
        now += 0.05
    assert 100 / FULL_SCAN_SHARE / 2 < spent_s <= 100 / FULL_SCAN_SHARE + took_s
