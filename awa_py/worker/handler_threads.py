"""Threads for synchronous handlers. A thread cannot be interrupted: its handler has to check if it should stop.

Calls go to the threads through one queue. Ended calls come back in batches: the first thread that ends a call wakes
the event loop, which then collects all calls that have ended by then. A wake-up for each call would cost a system call
and a switch between threads.
"""

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Self

from awa_py.worker.in_flight import Call, InFlightJobs
from awa_py.worker.outcomes import LeaseExpired, StopReason


class ThreadCall:
    """A function to call in a thread. All methods but `run` are for the event loop."""

    __slots__ = ("_context", "_end", "_function", "_future", "_loop", "_taken", "is_collected")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self._function = function
        self._loop = loop
        self._context = contextvars.copy_context()
        self._taken = threading.Lock()  # held by the side that was first: the thread that starts it, or cancel()
        self._future: asyncio.Future[Any] | None = None
        self._end: tuple[Any, BaseException | None] = (None, None)
        self.is_collected = False  # it has ended, and the event loop knows

    def run(self) -> bool:
        """Call the function in this thread. Return False if the call was cancelled before."""
        if not self._taken.acquire(blocking=False):
            return False
        try:
            self._end = (self._context.run(self._function), None)
        except BaseException as error:  # whatever a handler raises, its job must get an outcome
            self._end = (None, error)
            del self  # the error, its traceback and this frame would form a reference cycle
        return True

    def cancel(self) -> bool:
        """Keep the function from being called. Return False if a thread has it already."""
        return self._taken.acquire(blocking=False)

    def wait(self) -> "asyncio.Future[Any]":
        """Return a future that gets the result or the error. It replaces an earlier one that was cancelled."""
        self._future = self._loop.create_future()
        if self.is_collected:
            self._pass_on(self._future)
        return self._future

    def collect(self) -> None:
        """Note that the function has ended, and pass its result or error to the future."""
        self.is_collected = True
        if self._future is not None and not self._future.done():  # done: it was cancelled and is not yet replaced
            self._pass_on(self._future)

    def _pass_on(self, future: "asyncio.Future[Any]") -> None:
        result, error = self._end
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class HandlerThreads:
    """Runs functions in threads. Use it as a context manager: the threads end with it.

    There are as many threads as calls at the busiest time, so that no call waits for another one.
    """

    def __init__(self, in_flight: InFlightJobs) -> None:
        self._in_flight = in_flight
        self._loop = asyncio.get_running_loop()
        self._submitted: SimpleQueue[ThreadCall | None] = SimpleQueue()
        self._ended: deque[ThreadCall] = deque()
        self._will_collect = False
        self._running = 0  # calls that were submitted and not yet collected
        self._threads = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """End the threads. One that still runs a handler ends after it."""
        for _ in range(self._threads):
            self._submitted.put(None)

    async def run(self, function: Callable[[], Any], call: Call) -> Any:
        """Run the function of a call. If its task is cancelled, the thread is abandoned and holds a slot until it ends.

        The first stop request, unless it comes from a shutdown, does not abandon it: the end of the handler decides the
        outcome.
        """
        thread_call = ThreadCall(lambda: self._call_function(function, call), self._loop)
        self._submit(thread_call)
        interrupted = False
        while True:
            try:
                return await thread_call.wait()
            except asyncio.CancelledError:
                if not interrupted and call.stop not in (None, StopReason.SHUTDOWN):
                    interrupted = True
                    _uncancel()
                    continue
                if thread_call.cancel():
                    self._running -= 1
                elif not thread_call.is_collected:
                    self._in_flight.hold_slot_until(call, thread_call.wait())
                    call.mark_abandoned()
                raise
            except BaseException:
                del thread_call  # the error, its traceback and this frame would form a reference cycle
                raise

    def _submit(self, call: ThreadCall) -> None:
        if self._running == self._threads:
            threading.Thread(target=self._run_calls, name=f"awa-handler_{self._threads}").start()
            self._threads += 1
        self._running += 1
        self._submitted.put(call)

    def _run_calls(self) -> None:
        """Run submitted calls, in a thread."""
        while (call := self._submitted.get()) is not None:
            if call.run():
                self._ended.append(call)
                if not self._will_collect:
                    self._will_collect = True
                    with suppress(RuntimeError):  # the loop is closed: nothing waits for the call
                        self._loop.call_soon_threadsafe(self._collect)
            del call  # while the thread is idle

    def _collect(self) -> None:
        self._will_collect = False  # first: a call that is added from now on causes another collection
        while self._ended:
            self._running -= 1
            self._ended.popleft().collect()

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
