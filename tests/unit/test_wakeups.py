"""When a worker subscribes to wake-ups, with a clock that the test advances."""

import pytest

from awa_py.worker.claiming.wakeups import BUSY_RATE, IDLE_RATE, WINDOW_S, Wakeups
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock().install(monkeypatch, "awa_py.worker.claiming.wakeups")


def pass_window(clock: Clock, wakeups: Wakeups, *, jobs_per_s: float = 0, wakeups_per_s: float = 0) -> None:
    clock.now += WINDOW_S
    wakeups.claimed(round(jobs_per_s * WINDOW_S))
    for _ in range(round(wakeups_per_s * WINDOW_S)):
        wakeups.received()


def test_new_worker_prefers_wakeups(clock: Clock) -> None:
    wakeups = Wakeups()
    assert not wakeups.subscribed
    assert wakeups.prefers_wakeups
    assert not wakeups.prefers_polling


@pytest.mark.parametrize("load", ["jobs_per_s", "wakeups_per_s"])
def test_busy_worker_prefers_polling(clock: Clock, load: str) -> None:
    wakeups = Wakeups()
    pass_window(clock, wakeups, **{load: 2 * BUSY_RATE})
    assert wakeups.prefers_polling
    assert not wakeups.prefers_wakeups


def test_job_and_its_wakeup_are_counted_once(clock: Clock) -> None:
    wakeups = Wakeups()
    pass_window(clock, wakeups, jobs_per_s=0.8 * BUSY_RATE, wakeups_per_s=0.8 * BUSY_RATE)
    assert not wakeups.prefers_polling


def test_load_between_both_rates_changes_nothing(clock: Clock) -> None:
    wakeups = Wakeups()
    pass_window(clock, wakeups, jobs_per_s=(BUSY_RATE + IDLE_RATE) / 2)
    assert not wakeups.prefers_polling
    assert not wakeups.prefers_wakeups


def test_rate_is_measured_at_the_end_of_a_window(clock: Clock) -> None:
    wakeups = Wakeups()
    wakeups.claimed(1_000_000)
    clock.now += WINDOW_S * 0.9
    assert not wakeups.prefers_polling
    clock.now += WINDOW_S * 0.2
    assert wakeups.prefers_polling


def test_rate_counts_only_the_last_window(clock: Clock) -> None:
    wakeups = Wakeups()
    pass_window(clock, wakeups, jobs_per_s=10 * BUSY_RATE, wakeups_per_s=10 * BUSY_RATE)
    assert wakeups.prefers_polling
    pass_window(clock, wakeups)
    assert wakeups.prefers_wakeups
    assert not wakeups.prefers_polling


def test_one_burst_after_a_long_pause_is_no_load(clock: Clock) -> None:
    wakeups = Wakeups()
    clock.now += 60
    wakeups.claimed(500)
    assert not wakeups.prefers_polling
