"""Threads for synchronous handlers. A thread cannot be interrupted: its handler has to check if it should stop."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from awa_py.worker.in_flight import Call, InFlightJobs
from awa_py.worker.outcomes import LeaseExpired, StopReason


class HandlerThreads:
    """Runs functions in a pool of threads."""

    def __init__(self, in_flight: InFlightJobs, threads: int) -> None:
        self._in_flight = in_flight
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="awa-handler")

    def close(self) -> None:
        """Shut the pool down. A thread that still runs a handler ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, function: Callable[[], Any], call: Call) -> Any:
        """Run the function of a call. If its task is cancelled, the thread is abandoned and holds a slot until it ends.

        The first stop request, unless it comes from a shutdown, does not abandon it: the end of the handler decides the
        outcome.
        """
        future = self._pool.submit(contextvars.copy_context().run, self._call_function, function, call)
        thread = asyncio.wrap_future(future)
        interrupted = False
        while True:
            try:
                return await asyncio.shield(thread)
            except asyncio.CancelledError:
                if not interrupted and call.stop not in (None, StopReason.SHUTDOWN):
                    interrupted = True
                    _uncancel()
                    continue
                if not thread.done() and not future.cancel():
                    self._in_flight.hold_slot_until(call, thread)
                    call.mark_abandoned()
                raise

    def _call_function(self, function: Callable[[], Any], call: Call) -> Any:
        if self._in_flight.has_expired(call):  # the thread may have started late
            raise LeaseExpired
        try:
            return function()
        except StopIteration as error:  # a future cannot hold it, and the handler's task would wait forever
            raise RuntimeError("the handler raised StopIteration") from error


def _uncancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
