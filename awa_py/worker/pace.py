"""How far ahead of its slots a queue's jobs are claimed.

A job that takes a second gains nothing by being claimed early: another worker might take it. A thousand jobs that
take no time at all must be claimed, run and written in large batches that overlap. The recent rate tells which of
the two a queue holds: it claims ahead what will be gone within a blink, and not more.
"""

import time

AHEAD_S = 0.05
CHUNK_S = 0.01
MAX_AHEAD = 2_000
MAX_CHUNK = 500
WINDOW_S = 0.02


class Pace:
    """The recent rate of one queue on this worker."""

    __slots__ = ("_began", "_rate", "ended")

    def __init__(self) -> None:
        self.ended = 0  # in this window
        self._began = time.monotonic()
        self._rate = 0.0

    def ahead(self) -> int:
        """How many jobs may be claimed beyond the free slots."""
        return min(MAX_AHEAD, int(self._measure() * AHEAD_S))

    def chunk(self) -> int:
        """How many slots should come free before a claim is worth its while: what ends within a moment anyway."""
        return max(1, min(MAX_CHUNK, int(self._measure() * CHUNK_S)))

    def _measure(self) -> float:
        now = time.monotonic()
        if now - self._began >= WINDOW_S:
            self._rate = self.ended / (now - self._began)
            self.ended = 0
            self._began = now
        return self._rate
