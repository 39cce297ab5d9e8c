"""Loops that run beside the main one, in threads of their own."""

import asyncio
import logging
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, TypeVar

from awa_py.wording import describe, frames

logger = logging.getLogger("awa.loops")

T = TypeVar("T")
RESTART_S = 1.0
INSISTENCE_S = 1.0  # a cancellation can get lost in code that is not ours: it is repeated


class LoopThread:
    """An event loop in a thread of its own, for what must go on while a handler blocks the main loop."""

    def __init__(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._main = main
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._started = threading.Event()
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
        while self._thread.is_alive():
            if self._task is not None:
                self.call(self._task.cancel)
            await asyncio.to_thread(self._thread.join, INSISTENCE_S)

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
                logger.error("%s failed, beginning again: %s\n%s", self._thread.name, describe(error), frames(error))
                await asyncio.sleep(RESTART_S)
            else:
                return


async def wait_for_any(event: asyncio.Event, timeout_s: float) -> bool:
    """Waits for the event, no longer than the timeout. Whether it came."""
    try:
        async with asyncio.timeout(timeout_s):  # asyncio.wait_for swallows a cancellation now and then, until 3.12
            await event.wait()
    except TimeoutError:
        return False
    return True


async def cancel(*tasks: "asyncio.Task[Any]") -> None:
    """Cancels the tasks and waits for their end, whatever they do about it; errors have been dealt with elsewhere."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=INSISTENCE_S)
    await asyncio.gather(*tasks, return_exceptions=True)


@types.coroutine
def in_context(context: Context, work: Coroutine[Any, Any, T], awaited: object) -> Generator[Any, Any, T]:
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
