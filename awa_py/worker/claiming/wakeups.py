"""Choose between wake-ups and polling by load, as a network card does: interrupts when idle, polling when busy.

A wake-up costs the producer a lock that all producers share. A worker that would be woken a thousand times a second
finds the jobs just as soon by polling.
"""

import time

WINDOW_S = 0.1
BUSY_RATE = 1_000.0  # wake-ups or jobs per second
IDLE_RATE = 500.0
BUSY_POLL_S = 0.005


class Wakeups:
    """Measures the load, and says when to subscribe to wake-ups and when to unsubscribe."""

    def __init__(self) -> None:
        self.subscribed = False  # as far as the database knows
        self._wakeups = 0
        self._jobs = 0
        self._rate = 0.0
        self._began = time.monotonic()

    def received(self) -> None:
        """Count a wake-up."""
        self._wakeups += 1

    def claimed(self, jobs: int) -> None:
        """Count claimed jobs."""
        self._jobs += jobs

    @property
    def prefers_polling(self) -> bool:
        self._measure()
        return self._rate > BUSY_RATE

    @property
    def prefers_wakeups(self) -> bool:
        self._measure()
        return self._rate < IDLE_RATE

    def _measure(self) -> None:
        now = time.monotonic()
        if now - self._began >= WINDOW_S:
            self._rate = max(self._wakeups, self._jobs) / (now - self._began)
            self._wakeups = self._jobs = 0
            self._began = now
