"""What a handler sees of its own job."""

import asyncio
import json
from collections.abc import Callable

from awa_py.job import Job
from awa_py.wording import clean


class Context:
    """Handed to a handler that has a parameter annotated with it."""

    def __init__(self, job: Callable[[], Job], attempt: int, report: Callable[[str], None]) -> None:
        self._make_job = job
        self._job: Job | None = None
        self._report = report
        self._told: asyncio.Event | None = None
        self.attempt = attempt
        self.cancel_reason: str | None = None

    @property
    def job(self) -> Job:
        """The job as it was claimed."""
        if self._job is None:
            self._job = self._make_job()
        return self._job

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop: it was cancelled, lost its lease, or overran its time.

        A synchronous handler has to look; an asynchronous one is also interrupted by asyncio.CancelledError.
        """
        return self.cancel_reason is not None

    async def wait_cancelled(self) -> None:
        """Returns when the handler should stop. For asynchronous handlers."""
        if self.cancelled:
            return
        if self._told is None:
            self._told = asyncio.Event()
        await self._told.wait()

    def progress(self, fraction: float, message: str = "") -> None:
        """Says how far the job has come, from 0 to 1; people see it within about a second."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"progress goes from 0 to 1, not {fraction!r}")
        self._report(json.dumps({"fraction": fraction, "message": clean(message)}))

    def tell_cancelled(self, reason: str) -> None:
        """Called by the worker, on its event loop: the handler should stop."""
        if self.cancel_reason is None:
            self.cancel_reason = reason
        if self._told is not None:
            self._told.set()
