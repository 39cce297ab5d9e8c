"""The loop watchdog: a thread that logs which handler blocks the event loop, and with it all other handlers."""

import asyncio
import contextvars
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from itertools import dropwhile
from types import FrameType
from typing import Any

from awa_py.observability.logs import Call, LogThrottle, current_call

logger = logging.getLogger("awa.watchdog")

CHECKS_PER_LIMIT = 4


class LoopWatchdog:
    """Logs the handler and its stack while the loop is blocked for longer than the limit, and again when that ends."""

    def __init__(self, call_in: "Callable[[asyncio.Task[Any] | None], Call | None]", limit_s: float) -> None:
        """`call_in` returns the handler call that runs in a task. Create the watchdog in the loop that it watches."""
        self._call_in = call_in
        self._limit_s = limit_s
        self._log_throttle = LogThrottle(logger)
        self._stopped = threading.Event()
        self._responded = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="awa-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._stopped.set()
        await asyncio.to_thread(self._thread.join)
        self._log_throttle.close()

    def _run(self) -> None:
        while not self._stopped.wait(self._limit_s / CHECKS_PER_LIMIT):
            asked_at = time.monotonic()
            self._responded.clear()
            try:
                self._loop.call_soon_threadsafe(self._responded.set)
            except RuntimeError:  # the loop is closed
                return
            if not self._responded.wait(self._limit_s):
                self._log_blocked(asked_at)

    def _log_blocked(self, asked_at: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        task = asyncio.current_task(self._loop)
        call = self._call_in(task) or _call_of_context(task)
        if self._responded.is_set() or frame is None:  # it has just responded: this may be the stack of another handler
            return
        fields = {} if call is None else call.fields()
        self._log_throttle.log(
            logging.WARNING,
            ("blocked", fields.get("job_kind")),
            "%s has been blocking the event loop for %.1f s: no other handler can run\n%s",
            call or "something",
            time.monotonic() - asked_at,
            _format_stack(frame),
            extra=fields,
        )
        self._responded.wait()
        blocked_s = time.monotonic() - asked_at
        message = "%s blocked the event loop for %.1f s"
        self._log_throttle.log(
            logging.WARNING, ("ended", fields.get("job_kind")), message, call or "something", blocked_s, extra=fields
        )


def _call_of_context(task: "asyncio.Task[Any] | None") -> Call | None:
    """Return the call whose handler created the task, from the task's context."""
    get_context = getattr(task, "get_context", None)  # since Python 3.12
    return None if get_context is None else get_context().get(current_call)


def _format_stack(frame: FrameType) -> str:
    """Return the stack inside the event loop. The frames outside and the loop's own are the same for every handler."""
    frames = traceback.extract_stack(frame)
    from_loop = list(dropwhile(lambda each: not _is_asyncio(each), frames))
    inside = list(dropwhile(_is_asyncio, from_loop))
    return "".join(traceback.format_list(inside or frames)).rstrip()


def _is_asyncio(frame: traceback.FrameSummary) -> bool:
    return os.path.dirname(frame.filename) == os.path.dirname(asyncio.__file__)
