"""Run a worker or a maintenance process as a service: handle signals and report its status to systemd.

    starting ──ready──► running ──SIGHUP──► reloading ──► (a new process, starting)
        └──────────────────┴────SIGTERM──► stopping

The event loop sends the watchdog messages, and only while the background threads respond: if either hangs, systemd
restarts the process. An unreachable database blocks neither. A long phase (a start without a database, a drain) extends
its timeout as long as it lasts.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

from awa_py.background import cancel_and_wait
from awa_py.errors import AwaError
from awa_py.systemd.notifier import (
    EXTENSION_S,
    READY,
    STARTUP_INTERVAL_S,
    STOPPING,
    WATCHDOG,
    Notifier,
    extend_timeout,
    reloading,
    status,
)
from awa_py.systemd.reload import Reload

logger = logging.getLogger("awa.systemd")


class Phase(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    RELOADING = "reloading"
    STOPPING = "stopping"


class Monitored(Protocol):
    """What a Service reports on: a worker or a candidate."""

    def problems(self) -> Sequence[str]: ...
    def responds(self, within_s: float) -> bool: ...


class Service:
    """Stops the process on SIGTERM, restarts it on SIGHUP with new settings, and reports its status."""

    def __init__(
        self,
        monitored: Monitored,
        *,
        stop: Callable[[], object],
        summary: Callable[[], str],
        notifier: Notifier,
        reload: Reload | None = None,
    ) -> None:
        self._monitored = monitored
        self._stop_monitored = stop
        self._notifier = notifier
        self._reload = reload
        self._summary = summary
        self._phase = Phase.STARTING
        self._draining = False
        self._unresponsive = False
        self._sighup = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        if self._notifier.enabled:
            self._tasks.append(asyncio.create_task(self._report_forever(), name="awa systemd status"))
        if self._reload is not None and self._reload.enabled:
            loop.add_signal_handler(signal.SIGHUP, self._sighup.set)
            self._tasks.append(asyncio.create_task(self._handle_sighup_forever(self._reload), name="awa reload"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await cancel_and_wait(*self._tasks)
        if self._will_restart:
            # Sent alone: together with WATCHDOG=1, it would not extend the watchdog's timeout.
            self._notifier.send(extend_timeout(EXTENSION_S))
        else:
            self._notifier.send(STOPPING, status("stopped"))

    def stop(self) -> None:
        """Drain and stop; a second call shortens the drain. This cancels a pending reload."""
        draining_for_reload = self._draining and self._phase is Phase.RELOADING
        self._phase = Phase.STOPPING
        if self._reload is not None:
            self._reload.next_environ = None
        if not draining_for_reload:
            self._stop_monitored()
        self._report(STOPPING)

    async def _report_forever(self) -> None:
        while True:
            self._report()
            interval_s = self._notifier.interval_s
            await asyncio.sleep(min(STARTUP_INTERVAL_S, interval_s) if self._phase is Phase.STARTING else interval_s)

    async def _handle_sighup_forever(self, reload: Reload) -> None:
        while True:
            await self._sighup.wait()
            self._sighup.clear()
            if self._phase is not Phase.STOPPING:
                await self._check_and_drain(reload)

    async def _check_and_drain(self, reload: Reload) -> None:
        before, self._phase = self._phase, Phase.RELOADING
        self._report(*reloading())
        try:
            await asyncio.to_thread(reload.check)
        except AwaError as error:
            logger.error("reload failed, the current settings stay in use: %s", error)
        if self._phase is not Phase.RELOADING:  # a stop was requested during the check
            reload.next_environ = None
        elif reload.next_environ is None:
            self._phase = before
            self._report(*([READY] if before is Phase.RUNNING else []))
        elif not self._draining:
            logger.info("the new settings are valid: restarting after the running jobs have ended")
            self._draining = True
            self._stop_monitored()

    def _report(self, *lines: str) -> None:
        problems = self._monitored.problems()
        became_ready = self._phase is Phase.STARTING and not problems
        more = [*lines, status(self._status(problems))]
        if became_ready:
            more.append(READY)
        if self._responds():
            more.append(WATCHDOG)
            if not became_ready and self._phase is not Phase.RUNNING:
                more.append(extend_timeout(EXTENSION_S))
        if self._notifier.send(*more) and became_ready:
            self._phase = Phase.RUNNING

    def _responds(self) -> bool:
        """Return whether the background threads respond. The event loop does, since it runs this."""
        timeout_s = (self._notifier.watchdog_s or EXTENSION_S) / 2
        unresponsive = not self._monitored.responds(within_s=timeout_s)
        if unresponsive and not self._unresponsive:
            logger.error(
                "a background thread has not responded for %.3g s: watchdog messages stop until it does",
                timeout_s,
            )
        self._unresponsive = unresponsive
        return not unresponsive

    def _status(self, problems: Sequence[str]) -> str:
        if self._phase is Phase.STARTING and problems:
            return f"waiting: {'; '.join(problems)}"
        first = {Phase.STARTING: "", Phase.RUNNING: "; ".join(problems)}.get(self._phase, self._phase)
        return "; ".join(filter(None, [first, self._summary()]))

    @property
    def _will_restart(self) -> bool:
        return self._reload is not None and self._reload.next_environ is not None
