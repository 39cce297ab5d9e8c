"""Threads for synchronous steps. A thread cannot be interrupted: a step that is cancelled or too slow is abandoned."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class StepThreads:
    """Runs functions in a pool of threads."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="awa-step")
        self._abandoned: set[Future[Any]] = set()

    @property
    def abandoned(self) -> int:
        """Return the number of threads whose step was given up, and which still run."""
        return sum(not future.done() for future in self._abandoned)

    def close(self) -> None:
        """Shut the pool down. A thread that still runs a step ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call the function in a thread, with the context variables of the caller."""
        future = self._pool.submit(contextvars.copy_context().run, _without_stop_iteration, function)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.done():
                self._abandoned.add(future)
                future.add_done_callback(self._abandoned.discard)
            raise


def _without_stop_iteration(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except StopIteration as error:  # a future cannot hold it
        raise RuntimeError("the step raised StopIteration") from error
