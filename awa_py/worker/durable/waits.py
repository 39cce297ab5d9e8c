"""The waits of a durable job, and when they end its attempt.

A wait blocks its task. When all that the handler has asked for is blocked, the attempt is suspended: the job waits in
the database, and holds no slot. A wait that is over while the handler still does something else ends in place.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from awa_py.store.checkpoints import AwaitedChildren, DueTime, Suspension

IN_PLACE_S = 1.0  # a timer that fires sooner is waited for: a suspension would take as long
# How long a handler whose other tasks wait may do something that is no durable call, before it counts as waiting too.
SETTLE_S = 0.1


@dataclass(frozen=True, slots=True)
class DueAt:
    """When a timer fires: by the database's clock, and by the monotonic one of this process."""

    due: DueTime
    moment: float

    @classmethod
    def from_answer(cls, due: DueTime | None, read_at: float) -> "DueAt | None":
        return None if due is None else cls(due, read_at + due.left_s)

    @property
    def left_s(self) -> float:
        return self.moment - time.monotonic()


@dataclass(slots=True, eq=False)
class Wait:
    """What one task waits for: a time, signals, children, or whatever comes first."""

    caller: "asyncio.Task[Any]"
    due: DueAt | None = None
    signals: tuple[str, ...] = ()
    children: tuple[AwaitedChildren, ...] = ()
    over: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Waits:
    """Decides when an attempt is suspended. `main` is the task of the handler."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, main: "asyncio.Task[Any]", suspend: Callable[[Suspension], None]
    ) -> None:
        self._loop = loop
        self._main = main
        self._suspend = suspend
        self._callers: set[asyncio.Task[Any]] = set()
        self._pending: set[Wait] = set()
        self._active = 0  # calls that do something
        self._calls = 0
        self._settling: asyncio.TimerHandle | None = None
        self._closed = False

    def enter(self, caller: "asyncio.Task[Any]") -> None:
        """Count a call that begins."""
        self._calls += 1
        self._active += 1
        if caller is not self._main and caller not in self._callers:
            self._callers.add(caller)
            caller.add_done_callback(self._caller_done)

    def leave(self) -> None:
        """Count a call that ends."""
        self._active -= 1
        self._look_soon()

    async def wait(self, wait: Wait) -> None:
        """Wait until the time has come. If the attempt is suspended before, the task is cancelled."""
        if self._closed:
            raise asyncio.CancelledError
        timer = None if wait.due is None else self._loop.call_at(wait.due.moment, _end, wait)
        self._pending.add(wait)
        self._active -= 1
        self._look_soon()
        try:
            await wait.over
        finally:
            self._active += 1
            self._pending.discard(wait)
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """Cancel the tasks that still wait."""
        self._closed = True
        if self._settling is not None:
            self._settling.cancel()
        for wait in self._pending:
            wait.over.cancel()

    def _caller_done(self, caller: "asyncio.Task[Any]") -> None:
        self._callers.discard(caller)
        self._look_soon()

    def _look_soon(self) -> None:
        if self._pending and not self._active and not self._closed:
            self._loop.call_soon(self._look)  # tasks that were created before have started by then

    def _look(self) -> None:
        """Suspend the attempt if nothing goes on."""
        if not self._is_quiet():
            return
        if any(wait.caller is self._main for wait in self._pending):
            self._suspend(_suspension(self._pending))
        elif self._settling is None:
            self._settling = self._loop.call_later(SETTLE_S, self._look_again, self._calls)

    def _look_again(self, calls: int) -> None:
        self._settling = None
        if self._is_quiet() and calls == self._calls:
            self._suspend(_suspension(self._pending))
        else:
            self._look_soon()

    def _is_quiet(self) -> bool:
        if self._closed or self._active or not self._pending:
            return False
        waiting = {wait.caller for wait in self._pending}
        soonest = min((wait.due.left_s for wait in self._pending if wait.due is not None), default=IN_PLACE_S + 1)
        return self._callers <= waiting and soonest > IN_PLACE_S


def _end(wait: Wait) -> None:
    if not wait.over.done():
        wait.over.set_result(None)


def _suspension(waits: Iterable[Wait]) -> Suspension:
    waits = list(waits)
    times = [wait.due.due.at for wait in waits if wait.due is not None]
    signals = sorted({signal for wait in waits for signal in wait.signals})
    children = [awaited for wait in waits for awaited in wait.children]
    return Suspension(until=min(times, default=None), signals=signals, children=children)
