"""How many jobs of a queue are claimed before they have a slot.

Claiming a job early gains nothing if it takes a second: another worker might run it sooner. Thousands of jobs that take
no time at all have to be claimed, run and written in large batches that overlap. The recent rate tells the two apart:
the worker claims ahead what it will run within a moment, and not more.
"""

import time

from awa_py.worker.in_flight import QueueSlots

AHEAD_S = 0.05
UNWRITTEN_S = 0.5
SMALLEST_CLAIM_S = 0.01
MAX_AHEAD = 2_000
MAX_UNWRITTEN = 4_000
MAX_SMALLEST_CLAIM = 500
WINDOW_S = 0.02
HALF_LIFE_S = 0.1  # the measured rate falls by half in this time: a short pause of the database changes it little


class Prefetch:
    """The recent rate of one queue on this worker, and what follows from it."""

    __slots__ = ("_finished", "_measured_at", "_rate", "_slots")

    def __init__(self, slots: QueueSlots) -> None:
        self._slots = slots
        self._finished = slots.finished
        self._measured_at = time.monotonic()
        self._rate = 0.0

    @property
    def jobs(self) -> int:
        """The number of jobs that may wait for a slot."""
        return min(MAX_AHEAD, int(self._measure() * AHEAD_S))

    @property
    def unwritten(self) -> int:
        """The number of outcomes that may be waiting to be written before claims slow down."""
        return min(MAX_UNWRITTEN, int(self._measure() * UNWRITTEN_S))

    @property
    def smallest_claim(self) -> int:
        """The number of jobs that make a claim worthwhile: what comes free within a moment anyway."""
        return max(1, min(MAX_SMALLEST_CLAIM, int(self._measure() * SMALLEST_CLAIM_S)))

    def _measure(self) -> float:
        elapsed_s = time.monotonic() - self._measured_at
        if elapsed_s >= WINDOW_S:
            finished = self._slots.finished
            self._rate = max((finished - self._finished) / elapsed_s, self._rate * 0.5 ** (elapsed_s / HALF_LIFE_S))
            self._finished = finished
            self._measured_at += elapsed_s
        return self._rate
