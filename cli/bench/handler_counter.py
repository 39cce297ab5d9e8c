"""Count handler calls, and record when the first one started and when each third was reached."""

import asyncio
import math
import time
from itertools import pairwise


class HandlerCounter:
    """The only code inside the measured loop: an addition and two comparisons per handler call."""

    def __init__(self, total: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """`loop`: the event loop that waits for `total_reached`, if handlers run in threads."""
        self.total = total
        self._loop = loop
        self.count = 0
        self.total_reached = asyncio.Event()
        self._thirds = [-(-total // 3), -(-2 * total // 3), total]
        self._next_third: float = self._thirds[0]
        self._times: list[tuple[int, float]] = []

    def add(self, jobs: int = 1) -> None:
        """Record that a handler started, with this number of jobs."""
        if not self.count:
            self._times.append((0, time.perf_counter()))
        self.count += jobs
        if self.count >= self._next_third:
            self._record(time.perf_counter())

    def seconds(self, ended: float) -> float:
        """Return the seconds from the first handler's start to `ended`."""
        return ended - self._times[0][1]

    def thirds(self, ended: float) -> list[float | None]:
        """Return the jobs per second of each third. A third that was passed in one step is None."""
        points = [*self._times, (self.total, ended)]
        return [
            round((count - before) / (at - started), 1) if count > before and at > started else None
            for (before, started), (count, at) in pairwise(points)
        ]

    def _record(self, now: float) -> None:
        while self._thirds and self.count >= self._thirds[0]:
            self._thirds.pop(0)
            if self._thirds:
                self._times.append((min(self.count, self.total), now))
            elif self._loop is None:
                self.total_reached.set()
            else:
                self._loop.call_soon_threadsafe(self.total_reached.set)
        self._next_third = self._thirds[0] if self._thirds else math.inf
