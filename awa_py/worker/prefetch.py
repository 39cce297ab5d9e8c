"""How far ahead of its slots a queue's jobs are claimed.

A job that takes a second gains nothing by being claimed early: another worker might take it. A thousand jobs that
take no time at all must be claimed, run and written in large batches that overlap. The recent rate tells which of
the two a queue holds: it claims ahead what will be gone within a blink, and not more.
"""

import time

AHEAD_S = 0.05
UNWRITTEN_S = 0.5
CHUNK_S = 0.01
MAX_AHEAD = 2_000
MAX_UNWRITTEN = 4_000
MAX_CHUNK = 500
WINDOW_S = 0.02
HALF_LIFE_S = 0.1  # a pause of the database's is not a change of pace: the rate falls by half in that time


class Prefetch:
    """The recent rate of one queue on this worker."""

    __slots__ = ("_began", "_rate", "ended")

    def __init__(self) -> None:
        self.ended = 0  # in this window
        self._began = time.monotonic()
        self._rate = 0.0

    def ahead(self) -> int:
        """How many jobs may wait for a slot."""
        return min(MAX_AHEAD, int(self._measure() * AHEAD_S))

    def unwritten(self) -> int:
        """How many jobs may wait for being written, before they hold up others: a slow disk must not slow us down."""
        return min(MAX_UNWRITTEN, int(self._measure() * UNWRITTEN_S))

    def chunk(self) -> int:
        """How much room makes a claim worth its while: what comes free within a moment anyway."""
        return max(1, min(MAX_CHUNK, int(self._measure() * CHUNK_S)))

    def _measure(self) -> float:
        elapsed_s = time.monotonic() - self._began
        if elapsed_s >= WINDOW_S:
            self._rate = max(self.ended / elapsed_s, self._rate * 0.5 ** (elapsed_s / HALF_LIFE_S))
            self.ended = 0
            self._began += elapsed_s
        return self._rate
