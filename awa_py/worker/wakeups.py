"""Whether a worker wants to be woken.

As a network card does: interrupts while it is quiet, polling under load. A wake-up costs whoever enqueues a lock that
all producers share; a worker that is woken a thousand times a second finds the jobs just as soon by looking.
"""

import time

WINDOW_S = 0.1
BUSY_RATE = 1_000.0  # wake-ups or jobs a second
QUIET_RATE = 500.0
BUSY_POLL_S = 0.005


class Wakeups:
    """Counts what happens, and says when the bell should be hung up or taken down."""

    def __init__(self) -> None:
        self.hung = False  # as far as the database knows
        self._rings = 0
        self._jobs = 0
        self._rate = 0.0
        self._began = time.monotonic()

    def rang(self) -> None:
        self._rings += 1

    def claimed(self, jobs: int) -> None:
        self._jobs += jobs

    @property
    def annoys(self) -> bool:
        """Whether it rings, or could ring, so often that looking is better."""
        self._measure()
        return self._rate > BUSY_RATE

    @property
    def is_missed(self) -> bool:
        """Whether it is so quiet that a bell is better than looking."""
        self._measure()
        return self._rate < QUIET_RATE

    def _measure(self) -> None:
        now = time.monotonic()
        if now - self._began >= WINDOW_S:
            self._rate = max(self._rings, self._jobs) / (now - self._began)
            self._rings = self._jobs = 0
            self._began = now
