"""Counts handlers as they begin, and remembers when the first one did, and when each third was reached."""

import asyncio
import math
import time
from itertools import pairwise


class Stopwatch:
    """All that measuring does inside the measured loop: an addition and two comparisons for each handler."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.count = 0
        self.reached = asyncio.Event()  # as many handlers as expected have begun
        self._marks = [-(-total // 3), -(-2 * total // 3), total]
        self._next: float = self._marks[0]
        self._passed: list[tuple[int, float]] = []

    def handled(self, jobs: int = 1) -> None:
        """A handler has begun, with so many jobs."""
        if not self.count:
            self._passed.append((0, time.perf_counter()))
        self.count += jobs
        if self.count >= self._next:
            self._mark(time.perf_counter())

    def seconds(self, ended: float) -> float:
        """From the first handler's start to that moment."""
        return ended - self._passed[0][1]

    def thirds(self, ended: float) -> list[float | None]:
        """Jobs a second in each third, the last one up to that moment; None for a third that went by in one step."""
        points = [*self._passed, (self.total, ended)]
        return [
            round((count - before) / (at - began), 1) if count > before and at > began else None
            for (before, began), (count, at) in pairwise(points)
        ]

    def _mark(self, now: float) -> None:
        while self._marks and self.count >= self._marks[0]:
            self._marks.pop(0)
            if self._marks:
                self._passed.append((min(self.count, self.total), now))
            else:
                self.reached.set()
        self._next = self._marks[0] if self._marks else math.inf
