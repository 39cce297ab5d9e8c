"""Event loops in background threads, a monitor of event loop lag, and helpers for tasks."""

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

logger = logging.getLogger("awa.background")

T = TypeVar("T")
RESTART_DELAY_S = 1.0
MONITOR_INTERVAL_S = 0.25
BLOCKED_S = 30.0  # a loop that has been blocked this long may be blocked forever
CANCEL_RETRY_S = 1.0  # third-party code can swallow a cancellation, so it is repeated


class LoopThread:
    """An event loop in its own thread, for work that must continue while a handler blocks the main loop."""

    def __init__(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._main = main
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._started = threading.Event()
        self._stopping = False
        self._pinged_at: float | None = None
        self._context = Context()  # replaced in start(): log lines carry the context of the caller
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._context = copy_context()
        self._thread.start()
        self._started.wait()

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the thread's loop. Safe from any thread; does nothing after the loop has ended."""
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            logger.debug("%s has ended already", self._thread.name)

    async def stop(self) -> None:
        """Cancel the thread's task and wait until the thread has ended."""
        self._stopping = True
        while self._thread.is_alive():
            if self._task is not None:
                self.call(self._task.cancel)
            await asyncio.to_thread(self._thread.join, CANCEL_RETRY_S)

    def responds(self, within_s: float) -> bool:
        """Ping the loop, and return False if an earlier ping has been unanswered for `within_s` seconds.

        Return True for a thread that has not started yet or was told to stop.
        """
        if self._stopping or not self._started.is_set():
            return True
        if self._pinged_at is None:
            self._pinged_at = time.monotonic()
            self.call(self._pong)
            return True
        pinged_at = self._pinged_at
        return pinged_at is None or time.monotonic() - pinged_at < within_s

    def _pong(self) -> None:
        self._pinged_at = None

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
                    "%s failed and is restarted: %s\n%s", self._thread.name, describe(error), format_frames(error)
                )
                await asyncio.sleep(RESTART_DELAY_S)
            else:
                return


class LoopMonitor:
    """Measures how late an event loop runs its timers, and how long it has been blocked."""

    def __init__(self, on_lag: Callable[[float], object]) -> None:
        """Call `on_lag` in the loop, at each measurement, with the lag in seconds."""
        self._on_lag = on_lag
        self._ran_at = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start measuring. Call this in the loop to measure."""
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def silent_s(self) -> float:
        """Seconds since the loop last ran the monitor. Safe from any thread."""
        return time.monotonic() - self._ran_at

    def checks(self) -> list[HealthCheck]:
        """Report whether the loop is blocked. Safe from any thread."""
        silent_s = self.silent_s
        blocked = f"the event loop has been blocked for {silent_s:.0f} s by a handler or a library call"
        return [HealthCheck("event_loop", blocked if silent_s > BLOCKED_S else None, {"silent_s": round(silent_s, 3)})]

    def _schedule(self) -> None:
        self._ran_at = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(MONITOR_INTERVAL_S, self._measure)

    def _measure(self) -> None:
        lag_s = max(0.0, self.silent_s - MONITOR_INTERVAL_S)
        self._schedule()
        self._on_lag(lag_s)


async def wait_for_event(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait for the event. Return False if the timeout passes first; None waits forever."""
    try:
        async with asyncio.timeout(timeout_s):  # asyncio.wait_for can swallow a cancellation before Python 3.12
            await event.wait()
    except TimeoutError:
        return False
    return True


async def cancel_and_wait(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel the tasks, repeatedly if they ignore it, and wait until they end. Their errors are ignored."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_RETRY_S)
    await asyncio.gather(*tasks, return_exceptions=True)


@types.coroutine
def resume_in_context(context: Context, work: Coroutine[Any, Any, T], awaited: object) -> Generator[Any, Any, T]:
    """Drive a coroutine to its end inside `context`. It has started there and yielded `awaited`."""
    while True:
        step: Callable[[Any], object]
        sent: Any
        try:
            step, sent = work.send, (yield awaited)
        except BaseException as error:  # thrown below: here it would become the __context__ of later errors
            step, sent = work.throw, error
        try:
            awaited = context.run(step, sent)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            del sent  # an error, its traceback and this frame form a reference cycle
