"""How far ahead jobs are claimed, by a clock of the test's own."""

import pytest

from awa_py.worker.prefetch import (
    AHEAD_S,
    CHUNK_S,
    HALF_LIFE_S,
    MAX_AHEAD,
    MAX_CHUNK,
    MAX_UNWRITTEN,
    UNWRITTEN_S,
    WINDOW_S,
    Prefetch,
)
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock().install(monkeypatch, "awa_py.worker.prefetch")


def run(pace: Prefetch, clock: Clock, *, rate: float, windows: int = 5) -> None:
    """Jobs end at that rate for a while; a new window begins at the end."""
    for _ in range(windows):
        clock.now += 1.5 * WINDOW_S
        pace.ended += round(rate * 1.5 * WINDOW_S)
        pace.ahead()


def test_nothing_is_claimed_ahead_before_anything_has_ended(clock: Clock) -> None:
    pace = Prefetch()
    clock.now += 10 * WINDOW_S
    assert (pace.ahead(), pace.chunk()) == (0, 1)


def test_what_will_be_gone_within_a_blink_is_claimed_ahead(clock: Clock) -> None:
    pace = Prefetch()
    run(pace, clock, rate=10_000)
    assert pace.ahead() == pytest.approx(10_000 * AHEAD_S, rel=0.02)
    assert pace.chunk() == pytest.approx(10_000 * CHUNK_S, rel=0.02)


@pytest.mark.parametrize("rate", [1, 5, 19])
def test_jobs_that_take_their_time_are_not_claimed_ahead(clock: Clock, rate: int) -> None:
    pace = Prefetch()
    clock.now += 1
    pace.ended = rate
    assert (pace.ahead(), pace.chunk()) == (0, 1)


def test_there_is_a_limit(clock: Clock) -> None:
    pace = Prefetch()
    run(pace, clock, rate=10_000_000)
    assert (pace.ahead(), pace.chunk()) == (MAX_AHEAD, MAX_CHUNK)


def test_a_claim_that_is_worth_its_while_always_fits_into_what_may_be_claimed(clock: Clock) -> None:
    pace = Prefetch()
    for rate in (0, 10, 100, 1_000, 10_000, 100_000):
        run(pace, clock, rate=rate)
        assert pace.chunk() <= max(1, pace.ahead())


def test_within_a_window_the_last_rate_stands(clock: Clock) -> None:
    pace = Prefetch()
    run(pace, clock, rate=10_000)
    before = pace.ahead()
    clock.now += WINDOW_S * 0.9
    assert pace.ahead() == before


def test_a_pause_is_not_a_change_of_pace_but_a_long_one_is(clock: Clock) -> None:
    pace = Prefetch()
    run(pace, clock, rate=10_000)
    before = pace.ahead()
    clock.now += HALF_LIFE_S
    assert pace.ahead() == pytest.approx(before / 2, rel=0.02)
    for _ in range(20):
        clock.now += HALF_LIFE_S
        pace.ahead()
    assert (pace.ahead(), pace.chunk(), pace.unwritten()) == (0, 1, 0)


def test_what_is_on_its_way_to_the_database_holds_up_others_only_when_it_is_much(clock: Clock) -> None:
    pace = Prefetch()
    run(pace, clock, rate=1_000)
    assert pace.unwritten() == pytest.approx(1_000 * UNWRITTEN_S, rel=0.02)
    run(pace, clock, rate=10_000_000)
    assert pace.unwritten() == MAX_UNWRITTEN


def test_a_long_rest_is_part_of_the_rate(clock: Clock) -> None:
    pace = Prefetch()
    clock.now += 60
    pace.ended += 1_000
    assert pace.ahead() == int(1_000 / 60 * AHEAD_S) == 0
