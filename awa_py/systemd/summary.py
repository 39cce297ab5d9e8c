"""A one-line summary of a process for `systemctl status`: totals and the completion rate."""

import time
from collections.abc import Callable

from awa_py.observability.metrics import ProcessStats


class Summary:
    """Returns the summary when called, with the rate since the previous call."""

    def __init__(self, stats: Callable[[], ProcessStats], *details: str) -> None:
        self._stats = stats
        self._details = details
        self._previous = (0, time.monotonic())

    def __call__(self) -> str:
        """Return e.g. `3 running, 120 done (2.1/s), 1 failed; queues default, email; leader`."""
        stats, now = self._stats(), time.monotonic()
        (done_before, before), self._previous = self._previous, (stats.done, now)
        rate = (stats.done - done_before) / max(now - before, 0.001)
        failed = f", {stats.failed} failed" if stats.failed else ""
        words = [f"{stats.running} running, {stats.done} done ({max(rate, 0.0):.1f}/s){failed}", *self._details]
        return "; ".join([*words, "leader"] if stats.is_leader else words)
