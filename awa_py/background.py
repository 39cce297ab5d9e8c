"""Loops that run beside the main one, in threads of their own."""

import asyncio
import logging
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, TypeVar

from awa_py.observability.checks import HealthCheck
from awa_py.text import describe, format_frames

logger = logging.getLogger("awa.loops")

T = TypeVar("T")
RESTART_DELAY_S = 1.0
MONITOR_INTERVAL_S = 0.25
BLOCKED_S = 30.0  # a loop that has not turned for so long may never turn again
CANCEL_RETRY_S = 1.0  # a cancellation can get lost in code that is not ours: it is repeated


class LoopThread:
    """An event loop in a thread of its own, for what must go on while a handler blocks the main loop."""

    def __init__(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._main = main
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._started = threading.Event()
        self._stopping = False
        self._asked_at: float | None = None
        self._context = Context()  # its lines are those of whoever started it
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._context = copy_context()
        self._thread.start()
        self._started.wait()

    def call(self, function: Callable[..., object], *values: object) -> None:
        """Calls a function in the thread's loop, from anywhere; does nothing once the loop has ended."""
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function, *values)
        except RuntimeError:
            logger.debug("%s has ended already", self._thread.name)

    async def stop(self) -> None:
        """Cancels what runs in the thread and waits for its end."""
        self._stopping = True
        while self._thread.is_alive():
            if self._task is not None:
                self.call(self._task.cancel)
            await asyncio.to_thread(self._thread.join, CANCEL_RETRY_S)

    def responds(self, within_s: float) -> bool:
        """Asks the loop whether it turns. False: a question has been without an answer for so long.

        A thread that was not started yet, or was stopped, is not waited for.
        """
        if self._stopping or not self._started.is_set():
            return True
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self.call(self._answer)
            return True
        asked_at = self._asked_at
        return asked_at is None or time.monotonic() - asked_at < within_s

    def _answer(self) -> None:
        self._asked_at = None

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._context.run(asyncio.run, self._supervise())
        except asyncio.CancelledError:
            logger.debug("%s was stopped", self._thread.name)

    async def _supervise(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._started.set()
        while True:
            try:
                await self._main()
            except Exception as error:
                logger.error(
                    "%s failed, beginning again: %s\n%s", self._thread.name, describe(error), format_frames(error)
                )
                await asyncio.sleep(RESTART_DELAY_S)
            else:
                return


class LoopMonitor:
    """Notes when an event loop turns, and how late it does."""

    def __init__(self, late: Callable[[float], object]) -> None:
        self._late = late  # is told, in the loop, by how many seconds
        self._turned_at = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """In the loop that it is about."""
        self._plan()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def silent_s(self) -> float:
        """How long ago the loop last turned. From any thread."""
        return time.monotonic() - self._turned_at

    def checks(self) -> list[HealthCheck]:
        """Whether the loop turns. From any thread."""
        silent_s = self.silent_s
        blocked = f"the event loop has not turned for {silent_s:.0f} s: something blocks it"
        return [HealthCheck("event_loop", blocked if silent_s > BLOCKED_S else None, {"silent_s": round(silent_s, 3)})]

    def _plan(self) -> None:
        self._turned_at = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(MONITOR_INTERVAL_S, self._beat)

    def _beat(self) -> None:
        late_s = max(0.0, self.silent_s - MONITOR_INTERVAL_S)
        self._plan()
        self._late(late_s)


async def wait_for_event(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Waits for the event, no longer than the timeout if there is one. Whether it came."""
    try:
        async with asyncio.timeout(timeout_s):  # asyncio.wait_for swallows a cancellation now and then, until 3.12
            await event.wait()
    except TimeoutError:
        return False
    return True


async def cancel_and_wait(*tasks: "asyncio.Task[Any]") -> None:
    """Cancels the tasks and waits for their end, whatever they do about it; errors have been dealt with elsewhere."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_RETRY_S)
    await asyncio.gather(*tasks, return_exceptions=True)


@types.coroutine
def resume_in_context(context: Context, work: Coroutine[Any, Any, T], awaited: object) -> Generator[Any, Any, T]:
    """Goes on with work that has begun in a context of its own, and now waits for something."""
    while True:
        step: Callable[[Any], object]
        sent: Any
        try:
            step, sent = work.send, (yield awaited)
        except BaseException as error:  # thrown in below, where it is not the context of what the work raises next
            step, sent = work.throw, error
        try:
            awaited = context.run(step, sent)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            del sent  # an error, its traceback and this frame would keep each other alive
