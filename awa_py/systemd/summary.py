"""The stats of a process for a person who looks: totals, and how fast they grow."""

import time
from collections.abc import Callable

from awa_py.observability.metrics import ProcessStats


class Summary:
    """Each time that it is asked, it says how much was done since it was asked before."""

    def __init__(self, stats: Callable[[], ProcessStats], *about: str) -> None:
        self._stats = stats
        self._about = about
        self._seen = (0, time.monotonic())

    def __call__(self) -> str:
        """3 running, 120 done (2.1/s), 1 failed; queues default, email; leader"""
        stats, now = self._stats(), time.monotonic()
        (done_before, before), self._seen = self._seen, (stats.done, now)
        rate = (stats.done - done_before) / max(now - before, 0.001)
        failed = f", {stats.failed} failed" if stats.failed else ""
        words = [f"{stats.running} running, {stats.done} done ({max(rate, 0.0):.1f}/s){failed}", *self._about]
        return "; ".join([*words, "leader"] if stats.is_leader else words)
