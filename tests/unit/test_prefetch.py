"""How many jobs are claimed ahead of their slots, with a clock that the test advances."""

import pytest

from awa_py.worker.claiming.prefetch import (
    AHEAD_S,
    HALF_LIFE_S,
    MAX_AHEAD,
    MAX_SMALLEST_CLAIM,
    MAX_UNWRITTEN,
    SMALLEST_CLAIM_S,
    UNWRITTEN_S,
    WINDOW_S,
    Prefetch,
)
from awa_py.worker.in_flight import QueueSlots
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock().install(monkeypatch, "awa_py.worker.claiming.prefetch")


@pytest.fixture
def slots() -> QueueSlots:
    return QueueSlots(100)


@pytest.fixture
def prefetch(clock: Clock, slots: QueueSlots) -> Prefetch:
    return Prefetch(slots)


def run(prefetch: Prefetch, slots: QueueSlots, clock: Clock, *, rate: float, windows: int = 5) -> None:
    """Finish jobs at this rate for some windows; the last one ends now."""
    for _ in range(windows):
        clock.now += 1.5 * WINDOW_S
        slots.finished += round(rate * 1.5 * WINDOW_S)
        _ = prefetch.jobs


def test_nothing_is_prefetched_before_a_job_has_finished(prefetch: Prefetch, clock: Clock) -> None:
    clock.now += 10 * WINDOW_S
    assert (prefetch.jobs, prefetch.smallest_claim) == (0, 1)


def test_prefetch_follows_the_rate(prefetch: Prefetch, slots: QueueSlots, clock: Clock) -> None:
    run(prefetch, slots, clock, rate=10_000)
    assert prefetch.jobs == pytest.approx(10_000 * AHEAD_S, rel=0.02)
    assert prefetch.smallest_claim == pytest.approx(10_000 * SMALLEST_CLAIM_S, rel=0.02)


@pytest.mark.parametrize("rate", [1, 5, 19])
def test_slow_jobs_are_not_prefetched(prefetch: Prefetch, slots: QueueSlots, clock: Clock, rate: int) -> None:
    clock.now += 1
    slots.finished += rate
    assert (prefetch.jobs, prefetch.smallest_claim) == (0, 1)


def test_prefetch_is_bounded(prefetch: Prefetch, slots: QueueSlots, clock: Clock) -> None:
    run(prefetch, slots, clock, rate=10_000_000)
    assert (prefetch.jobs, prefetch.smallest_claim) == (MAX_AHEAD, MAX_SMALLEST_CLAIM)


def test_smallest_claim_always_fits_into_the_prefetch(prefetch: Prefetch, slots: QueueSlots, clock: Clock) -> None:
    for rate in (0, 10, 100, 1_000, 10_000, 100_000):
        run(prefetch, slots, clock, rate=rate)
        assert prefetch.smallest_claim <= max(1, prefetch.jobs)


def test_rate_stays_the_same_within_a_window(prefetch: Prefetch, slots: QueueSlots, clock: Clock) -> None:
    run(prefetch, slots, clock, rate=10_000)
    before = prefetch.jobs
    clock.now += WINDOW_S * 0.9
    assert prefetch.jobs == before


def test_rate_halves_in_its_half_life(prefetch: Prefetch, slots: QueueSlots, clock: Clock) -> None:
    run(prefetch, slots, clock, rate=10_000)
    before = prefetch.jobs
    clock.now += HALF_LIFE_S
    assert prefetch.jobs == pytest.approx(before / 2, rel=0.02)
    for _ in range(20):
        clock.now += HALF_LIFE_S
        _ = prefetch.jobs
    assert (prefetch.jobs, prefetch.smallest_claim, prefetch.unwritten) == (0, 1, 0)


def test_number_of_unwritten_outcomes_is_bounded(prefetch: Prefetch, slots: QueueSlots, clock: Clock) -> None:
    run(prefetch, slots, clock, rate=1_000)
    assert prefetch.unwritten == pytest.approx(1_000 * UNWRITTEN_S, rel=0.02)
    run(prefetch, slots, clock, rate=10_000_000)
    assert prefetch.unwritten == MAX_UNWRITTEN


def test_long_pause_lowers_the_rate(prefetch: Prefetch, slots: QueueSlots, clock: Clock) -> None:
    clock.now += 60
    slots.finished += 1_000
    assert prefetch.jobs == int(1_000 / 60 * AHEAD_S) == 0
