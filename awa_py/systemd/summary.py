"""The figures of a process for a person who looks: totals, and how fast they grow."""

import time
from collections.abc import Callable

from awa_py.observability.metrics import Figures


class Summary:
    """Each time that it is asked, it says how much was done since it was asked before."""

    def __init__(self, figures: Callable[[], Figures], *about: str) -> None:
        self._figures = figures
        self._about = about
        self._seen = (0, time.monotonic())

    def __call__(self) -> str:
        """3 running, 120 done (2.1/s), 1 failed; queues default, email; leader"""
        figures, now = self._figures(), time.monotonic()
        (done_before, before), self._seen = self._seen, (figures.done, now)
        rate = (figures.done - done_before) / max(now - before, 0.001)
        failed = f", {figures.failed} failed" if figures.failed else ""
        words = [f"{figures.running} running, {figures.done} done ({max(rate, 0.0):.1f}/s){failed}", *self._about]
        return "; ".join([*words, "leader"] if figures.leads else words)
