"""Reports the status of all child processes to systemd, for which they are one service."""

import time
from collections.abc import Sequence

from awa_py.observability.metrics import ProcessStats
from awa_py.systemd.notifier import EXTENSION_S, READY, STARTUP_INTERVAL_S, WATCHDOG, Notifier, extend_timeout, status
from awa_py.systemd.summary import Summary
from awa_py.worker.processes.child_process import ChildProcess


class SystemdStatus:
    """Sends the status. The service is ready when every child is, and its figures are their sum."""

    def __init__(self, notifier: Notifier, children: Sequence[ChildProcess]) -> None:
        self._notifier = notifier
        self._children = children
        self._summary = Summary(self._stats)
        self._is_ready = False
        self._sent_at = 0.0

    @property
    def enabled(self) -> bool:
        return self._notifier.enabled

    @property
    def watchdog_s(self) -> float | None:
        return self._notifier.watchdog_s

    @property
    def report_interval_s(self) -> float:
        """Return how often the children must report; 0: once."""
        return self._notifier.interval_s if self.enabled else 0

    @property
    def due_at(self) -> float:
        """Return when to send the next status, by the monotonic clock."""
        interval_s = self._notifier.interval_s
        return self._sent_at + (interval_s if self._is_ready else min(STARTUP_INTERVAL_S, interval_s))

    def send(self, *lines: str, phase: str = "") -> None:
        """Send the status and these lines. `phase` is empty while the children start or work."""
        self._sent_at = time.monotonic()
        becomes_ready = not self._is_ready and not phase and all(child.is_ready for child in self._children)
        message = [*lines, status(self._status(phase)), WATCHDOG]
        if becomes_ready:
            message.append(READY)
        elif phase or not self._is_ready:
            message.append(extend_timeout(EXTENSION_S))
        if self._notifier.send(*message) and becomes_ready:
            self._is_ready = True

    def send_reload_failed(self) -> None:
        """Report that the service goes on with its current settings."""
        self.send(*([READY] if self._is_ready else []))

    def extend_timeout(self) -> None:
        """Ask for more time before a long step. In a message of its own: with WATCHDOG=1 it would have no effect on
        the watchdog."""
        self._notifier.send(extend_timeout(EXTENSION_S))

    def _status(self, phase: str) -> str:
        ready = sum(child.is_ready for child in self._children if child.process is not None)
        parts = [phase, f"{ready} of {len(self._children)} processes ready", self._summary()]
        return "; ".join(filter(None, parts))

    def _stats(self) -> ProcessStats:
        return sum((child.stats for child in self._children), ProcessStats())
