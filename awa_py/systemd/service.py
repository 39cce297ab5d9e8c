"""Looks after a worker or a leader: hears signals for it, and tells systemd how it is.

    starting ──ready──► running ──SIGHUP──► reloading ──► (a new process, starting)
        └──────────────────┴────SIGTERM──► stopping

The watchdog is fed by the event loop, and only while the threads beside it answer: whichever of them hangs, systemd
restarts the process. A database that is away hangs nothing. What takes its time (a start without a database, a drain)
asks for more as long as it goes on.
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
    """A worker, or a candidate."""

    def problems(self) -> Sequence[str]: ...
    def responds(self, within_s: float) -> bool: ...


class Service:
    """Stops its part when told to, begins it anew when its settings changed, and says how it is meanwhile."""

    def __init__(
        self,
        part: Monitored,
        *,
        stop: Callable[[], object],
        summary: Callable[[], str],
        notifier: Notifier,
        settings: Reload | None = None,
    ) -> None:
        self._part = part
        self._stop_part = stop
        self._notifier = notifier
        self._settings = settings
        self._summary = summary
        self._phase = Phase.STARTING
        self._drains = False
        self._hung = False
        self._hang_up = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        if self._notifier.enabled:
            self._tasks.append(asyncio.create_task(self._tell_for_ever(), name="awa attendant"))
        if self._settings is not None and self._settings.enabled:
            loop.add_signal_handler(signal.SIGHUP, self._hang_up.set)
            self._tasks.append(asyncio.create_task(self._reload_for_ever(self._settings), name="awa reload"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await cancel_and_wait(*self._tasks)
        if self._will_begin_anew:
            self._notifier.send(
                extend_timeout(EXTENSION_S)
            )  # alone: beside WATCHDOG=1, it would not extend the watchdog
        else:
            self._notifier.send(STOPPING, status("stopped"))

    def stop(self) -> None:
        """Lets the part finish what it does; a second call hurries it. What a reload had planned is off."""
        drains_for_reload = self._drains and self._phase is Phase.RELOADING
        self._phase = Phase.STOPPING
        if self._settings is not None:
            self._settings.next_environ = None
        if not drains_for_reload:
            self._stop_part()
        self._tell(STOPPING)

    async def _tell_for_ever(self) -> None:
        while True:
            self._tell()
            interval_s = self._notifier.interval_s
            await asyncio.sleep(min(STARTUP_INTERVAL_S, interval_s) if self._phase is Phase.STARTING else interval_s)

    async def _reload_for_ever(self, settings: Reload) -> None:
        while True:
            await self._hang_up.wait()
            self._hang_up.clear()
            if self._phase is not Phase.STOPPING:
                await self._reload(settings)

    async def _reload(self, settings: Reload) -> None:
        before, self._phase = self._phase, Phase.RELOADING
        self._tell(*reloading())
        try:
            await asyncio.to_thread(settings.check)
        except AwaError as error:
            logger.error("not reloaded, the settings stay as they were: %s", error)
        if self._phase is not Phase.RELOADING:  # told to stop meanwhile
            settings.next_environ = None
        elif settings.next_environ is None:
            self._phase = before
            self._tell(*([READY] if before is Phase.RUNNING else []))
        elif not self._drains:
            logger.info("the new settings are right: beginning anew as soon as the running jobs have ended")
            self._drains = True
            self._stop_part()

    def _tell(self, *lines: str) -> None:
        problems = self._part.problems()
        begins = self._phase is Phase.STARTING and not problems
        more = [*lines, status(self._status(problems))]
        if begins:
            more.append(READY)
        if self._answers():
            more.append(WATCHDOG)
            if not begins and self._phase is not Phase.RUNNING:
                more.append(extend_timeout(EXTENSION_S))
        if self._notifier.send(*more) and begins:
            self._phase = Phase.RUNNING

    def _answers(self) -> bool:
        """Whether the threads beside the loop turn. That the loop does shows here."""
        patience_s = (self._notifier.watchdog_s or EXTENSION_S) / 2
        hung = not self._part.responds(within_s=patience_s)
        if hung and not self._hung:
            logger.error("a thread has not answered for %.3g s: the watchdog is no longer fed", patience_s)
        self._hung = hung
        return not hung

    def _status(self, problems: Sequence[str]) -> str:
        if self._phase is Phase.STARTING and problems:
            return f"waiting: {'; '.join(problems)}"
        first = {Phase.STARTING: "", Phase.RUNNING: "; ".join(problems)}.get(self._phase, self._phase)
        return "; ".join(filter(None, [first, self._summary()]))

    @property
    def _will_begin_anew(self) -> bool:
        return self._settings is not None and self._settings.next_environ is not None
