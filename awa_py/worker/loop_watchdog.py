"""Handlers that block the event loop, and with it all others: caught in the act, from a thread beside it."""

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

logger = logging.getLogger("awa.blockers")

LOOKS = 4  # within the time that a handler may take


class LoopWatchdog:
    """Asks the loop for a sign of life, and says who keeps it from giving one: which handler, how long, and where."""

    def __init__(self, call_in: "Callable[[asyncio.Task[Any] | None], Call | None]", patience_s: float) -> None:
        self._call_in = call_in
        self._patience_s = patience_s
        self._log_throttle = LogThrottle(logger)
        self._stopped = threading.Event()
        self._alive = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._watch,), name="awa-blockers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._stopped.set()
        await asyncio.to_thread(self._thread.join)
        self._log_throttle.close()

    def _watch(self) -> None:
        while not self._stopped.wait(self._patience_s / LOOKS):
            asked_at = time.monotonic()
            self._alive.clear()
            try:
                self._loop.call_soon_threadsafe(self._alive.set)
            except RuntimeError:  # the loop has been closed
                return
            if not self._alive.wait(self._patience_s):
                self._catch(asked_at)

    def _catch(self, asked_at: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        task = asyncio.current_task(self._loop)
        call = self._call_in(task) or _call_that_made(task)
        if self._alive.is_set() or frame is None:  # it went on at this very moment: that is not the culprit's stack
            return
        fields = {} if call is None else call.fields()
        self._log_throttle.log(
            logging.WARNING,
            ("blocked", fields.get("job_kind")),
            "%s has blocked the event loop for %.1f s and goes on: nothing else runs meanwhile\n%s",
            call or "something",
            time.monotonic() - asked_at,
            _stack(frame),
            extra=fields,
        )
        self._alive.wait()
        blocked_s = time.monotonic() - asked_at
        sentence = "%s blocked the event loop for %.1f s"
        self._log_throttle.log(
            logging.WARNING, ("over", fields.get("job_kind")), sentence, call or "something", blocked_s, extra=fields
        )


def _call_that_made(task: "asyncio.Task[Any] | None") -> Call | None:
    """A task that a handler created knows by its context whose it is."""
    get_context = getattr(task, "get_context", None)  # since Python 3.12
    return None if get_context is None else get_context().get(current_call)


def _stack(frame: FrameType) -> str:
    """The frames inside of the event loop: those outside, and the loop's own, are the same for every handler."""
    frames = traceback.extract_stack(frame)
    begun = list(dropwhile(lambda each: not _is_of_the_loop(each), frames))
    inside = list(dropwhile(_is_of_the_loop, begun))
    return "".join(traceback.format_list(inside or frames)).rstrip()


def _is_of_the_loop(frame: traceback.FrameSummary) -> bool:
    return os.path.dirname(frame.filename) == os.path.dirname(asyncio.__file__)
