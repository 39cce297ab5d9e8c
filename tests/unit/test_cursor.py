"""Where the next claim begins, by a clock of the test's own."""

from typing import Any, cast

from awa_py.db.types import Record
from awa_py.worker.claiming.cursor import FULL_SCAN_INTERVAL_S, FULL_SCAN_SHARE, SLACK, Cursor

EVERYWHERE = [0, 0, 0, 0]


def row(pos: int, priority: int = 2) -> Record:
    found: dict[str, Any] = {"pos": pos, "priority": priority}
    return cast(Record, found)


def scanned(cursor: Cursor, *rows: Record, at: float, full: bool = True, took_s: float = 0.001) -> None:
    cursor.saw(rows, full=full, began=at - took_s, ended=at)


def test_the_first_scan_is_everywhere() -> None:
    assert Cursor().above(0.0) == (EVERYWHERE, True)


def test_the_next_begins_a_little_below_what_was_seen_for_each_priority() -> None:
    cursor = Cursor()
    scanned(cursor, row(5000, priority=1), row(70_000, priority=3), row(60_000, priority=3), at=10.0)
    assert cursor.above(10.1) == ([5000 - SLACK, 0, 70_000 - SLACK, 0], False)


def test_it_never_begins_below_zero_and_never_goes_back() -> None:
    cursor = Cursor()
    scanned(cursor, row(SLACK // 2), at=10.0)
    assert cursor.above(10.1) == (EVERYWHERE, False)
    scanned(cursor, row(9000), at=10.1, full=False)
    scanned(cursor, row(8500), at=10.2, full=False)
    assert cursor.above(10.3)[0][1] == 9000 - SLACK


def test_everywhere_is_looked_at_again_every_second() -> None:
    cursor = Cursor()
    scanned(cursor, row(9000), at=10.0)
    assert not cursor.above(10.0 + FULL_SCAN_INTERVAL_S - 0.01)[1]
    assert cursor.above(10.0 + FULL_SCAN_INTERVAL_S) == (EVERYWHERE, True)


def test_a_short_scan_does_not_put_the_full_one_off() -> None:
    cursor = Cursor()
    scanned(cursor, row(9000), at=10.0)
    for tenth in range(1, 10):
        scanned(cursor, row(9000 + tenth), at=10 + tenth / 10, full=False)
    assert cursor.above(11.0)[1]


def test_a_slow_full_scan_is_paid_for_with_a_long_rest() -> None:
    cursor = Cursor()
    scanned(cursor, row(9000), at=10.0, took_s=0.5)
    rest_s = FULL_SCAN_SHARE * 0.5
    assert not cursor.above(10.0 + rest_s - 0.1)[1]
    assert cursor.above(10.0 + rest_s)[1]


def test_where_nothing_was_found_the_next_scan_is_everywhere_once_it_may_be() -> None:
    cursor = Cursor()
    scanned(cursor, row(9000), at=10.0, took_s=0.01)
    scanned(cursor, at=10.05, full=False)
    assert not cursor.may_scan_fully(10.19)
    assert not cursor.above(10.19)[1]
    assert cursor.may_scan_fully(10.21)
    assert cursor.above(10.21) == (EVERYWHERE, True)


def test_even_an_idle_worker_scans_fully_no_more_than_a_twentieth_of_the_time() -> None:
    cursor = Cursor()
    now, took_s, spent_s = 0.0, 0.2, 0.0
    while now < 100:
        _, full = cursor.above(now)
        cost_s = took_s if full else 0.001
        spent_s += took_s if full else 0.0
        now += cost_s
        cursor.saw([], full=full, began=now - cost_s, ended=now)
        now += 0.05
    assert spent_s <= 100 / FULL_SCAN_SHARE + took_s


def test_the_last_claim_is_noted() -> None:
    cursor = Cursor()
    scanned(cursor, at=12.5)
    assert cursor.last_claim == 12.5
