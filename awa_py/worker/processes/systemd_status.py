"""What systemd is told about several processes that are one service of it."""

import time
from collections.abc import Sequence

from awa_py.observability.metrics import ProcessStats
from awa_py.systemd.notifier import EXTENSION_S, READY, STARTUP_INTERVAL_S, WATCHDOG, Notifier, extend_timeout, status
from awa_py.systemd.summary import Summary
from awa_py.worker.processes.child_process import ChildProcess


class SystemdStatus:
    """Speaks for all of them: the service is ready when each is, and has the figures of all."""

    def __init__(self, notifier: Notifier, children: Sequence[ChildProcess]) -> None:
        self._notifier = notifier
        self._children = children
        self._summary = Summary(self._stats)
        self._is_ready = False
        self._told_at = 0.0

    @property
    def is_heard(self) -> bool:
        return self._notifier.enabled

    @property
    def watchdog_s(self) -> float | None:
        return self._notifier.watchdog_s

    @property
    def hears_every_s(self) -> float:
        """How often the children are to report; 0: nobody asks."""
        return self._notifier.interval_s if self.is_heard else 0

    @property
    def due(self) -> float:
        """When to tell again, by the monotonic clock."""
        tick_s = self._notifier.interval_s
        return self._told_at + (tick_s if self._is_ready else min(STARTUP_INTERVAL_S, tick_s))

    def tell(self, *lines: str, phase: str = "") -> None:
        """Says how they are; without a phase, they start or work."""
        self._told_at = time.monotonic()
        begins = not self._is_ready and not phase and all(child.is_ready for child in self._children)
        more = [*lines, status(self._status(phase)), WATCHDOG]
        if begins:
            more.append(READY)
        elif phase or not self._is_ready:
            more.append(extend_timeout(EXTENSION_S))
        if self._notifier.send(*more) and begins:
            self._is_ready = True

    def tell_that_nothing_changed(self) -> None:
        """After a reload that was refused."""
        self.tell(*([READY] if self._is_ready else []))

    def ask_for_time(self) -> None:
        """Before something takes long. Alone: beside WATCHDOG=1, it would not extend the watchdog."""
        self._notifier.send(extend_timeout(EXTENSION_S))

    def _status(self, phase: str) -> str:
        ready = sum(child.is_ready for child in self._children if child.process is not None)
        words = [phase, f"{ready} of {len(self._children)} processes ready", self._summary()]
        return "; ".join(filter(None, words))

    def _stats(self) -> ProcessStats:
        return sum((child.stats for child in self._children), ProcessStats())
