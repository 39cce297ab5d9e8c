"""When a worker wants to be woken, by a clock of the test's own."""

import pytest

from awa_py.worker.wakeups import BUSY_RATE, QUIET_RATE, WINDOW_S, Wakeups
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock().install(monkeypatch, "awa_py.worker.wakeups")


def pass_window(clock: Clock, bell: Wakeups, *, jobs: float = 0, rings: float = 0) -> None:
    """A window with so many jobs and wake-ups a second."""
    clock.now += WINDOW_S
    bell.claimed(round(jobs * WINDOW_S))
    for _ in range(round(rings * WINDOW_S)):
        bell.rang()


def test_a_worker_that_begins_wants_to_be_woken(clock: Clock) -> None:
    bell = Wakeups()
    assert not bell.hung
    assert bell.is_missed
    assert not bell.annoys


@pytest.mark.parametrize("what", ["jobs", "rings"])
def test_load_of_either_kind_annoys(clock: Clock, what: str) -> None:
    bell = Wakeups()
    pass_window(clock, bell, **{what: 2 * BUSY_RATE})
    assert bell.annoys
    assert not bell.is_missed


def test_jobs_and_their_wake_ups_are_not_counted_twice(clock: Clock) -> None:
    bell = Wakeups()
    pass_window(clock, bell, jobs=0.8 * BUSY_RATE, rings=0.8 * BUSY_RATE)
    assert not bell.annoys


def test_between_the_two_rates_all_stays_as_it_is(clock: Clock) -> None:
    bell = Wakeups()
    pass_window(clock, bell, jobs=(BUSY_RATE + QUIET_RATE) / 2)
    assert not bell.annoys
    assert not bell.is_missed


def test_nothing_is_said_before_a_window_is_over(clock: Clock) -> None:
    bell = Wakeups()
    bell.claimed(1_000_000)
    clock.now += WINDOW_S * 0.9
    assert not bell.annoys
    clock.now += WINDOW_S * 0.2
    assert bell.annoys


def test_a_window_counts_only_what_happened_in_it(clock: Clock) -> None:
    bell = Wakeups()
    pass_window(clock, bell, jobs=10 * BUSY_RATE, rings=10 * BUSY_RATE)
    assert bell.annoys
    pass_window(clock, bell)
    assert bell.is_missed
    assert not bell.annoys


def test_one_burst_after_a_long_rest_does_not_annoy(clock: Clock) -> None:
    bell = Wakeups()
    clock.now += 60
    bell.claimed(500)
    assert not bell.annoys
