"""What a handler sees of its own job, and a batch handler of its jobs."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from datetime import timedelta
from typing import Any, Protocol

from awa_py import durations
from awa_py.durations import Duration
from awa_py.errors import AwaError, HandlerStopped
from awa_py.model.job import Job
from awa_py.model.outcomes import Outcome
from awa_py.text import clean_text


class Claimed(Protocol):
    """What a worker knows of a job that it claimed."""

    @property
    def id(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def args(self) -> str: ...


class BatchCall(Protocol):
    """The call of a batch handler, as its jobs see it."""

    def stop_reason(self, job_id: int) -> str | None: ...
    def settle_job(self, job_id: int, end: object) -> None: ...


class RateLimits(Protocol):
    """Who hands out the tokens of rate limits, in one event loop."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    def take(self, name: str, tokens: int, max_wait: timedelta | None) -> Coroutine[Any, Any, None]: ...


class Done:
    """Nothing to wait for, in any event loop or none."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


class Context:
    """Handed to a handler that has a parameter annotated with it."""

    def __init__(
        self, job: Callable[[], Job], attempt: int, report: Callable[[str], None], rate_limits: RateLimits
    ) -> None:
        self._make_job = job
        self._job: Job | None = None
        self._report = report
        self._rate_limits = rate_limits
        self._blocked: set[Future[None]] = set()  # what threads wait for
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
        self._report(json.dumps({"fraction": fraction, "message": clean_text(message)}))

    def rate_limit(self, name: str, tokens: int = 1, max_wait: Duration | None = None) -> Awaitable[None]:
        """Waits for tokens of a rate limit: `await ctx.rate_limit("gh")`, and in a thread `ctx.rate_limit("gh")`.

        Whoever asked first is served first. Where the tokens would not be there within `max_wait`, RateLimited is
        raised, which gives the attempt back and lets the job run again when it is worth a try. A handler that is told
        to stop waits no longer: an asynchronous one is interrupted, a synchronous one gets HandlerStopped.
        """
        if self.cancelled:
            raise HandlerStopped(f"it does not wait for tokens: {self.cancel_reason}")
        taking = self._rate_limits.take(name, tokens, None if max_wait is None else durations.parse(max_wait))
        if _current_loop() is self._rate_limits.loop:
            return taking
        self._block(asyncio.run_coroutine_threadsafe(taking, self._rate_limits.loop))
        return Done()

    def _block(self, waiting: "Future[None]") -> None:
        """Waits in a thread, until the handler is told to stop."""
        self._blocked.add(waiting)
        try:
            if self.cancelled:  # since we looked
                waiting.cancel()
            waiting.result()
        except CancelledError:
            raise HandlerStopped(f"it waits for tokens no longer: {self.cancel_reason}") from None
        finally:
            self._blocked.discard(waiting)

    def request_stop(self, reason: str) -> None:
        """Called by the worker, on its event loop: the handler should stop."""
        if self.cancel_reason is None:
            self.cancel_reason = reason
        if self._told is not None:
            self._told.set()
        for waiting in self._blocked.copy():
            waiting.cancel()


class BatchJob:
    """One of the jobs that a batch handler is called with.

    Those that it does not settle itself end as the call ends: completed where it returns, failed where it raises.
    """

    __slots__ = ("_call", "_claimed", "_settled")

    def __init__(self, claimed: Claimed, call: BatchCall) -> None:
        self._claimed = claimed
        self._call = call
        self._settled = False

    @property
    def id(self) -> int:
        return self._claimed.id

    @property
    def kind(self) -> str:
        return self._claimed.kind

    @property
    def queue(self) -> str:
        return self._claimed.queue

    @property
    def attempt(self) -> int:
        return self._claimed.attempt

    @property
    def args(self) -> dict[str, Any]:
        """The arguments that it was enqueued with, decoded anew at each look."""
        args: dict[str, Any] = json.loads(self._claimed.args)
        return args

    @property
    def cancelled(self) -> bool:
        """Whether this job is not wanted any more: it was cancelled, or lost its lease."""
        return self._call.stop_reason(self._claimed.id) is not None

    @property
    def settled(self) -> bool:
        """Whether the handler has said how this job ended."""
        return self._settled

    def complete(self, result: Any = None) -> None:
        """The job is done, whatever becomes of the others."""
        self._end(result)

    def settle(self, outcome: Outcome | Exception) -> None:
        """The job ends as if its own handler had raised this: Retry, Snooze, Throttled, Cancel, Fail, or any error."""
        if not isinstance(outcome, Exception):
            odd = type(outcome).__name__
            raise TypeError(f"settle() takes awa.Retry, Snooze, Throttled, Cancel, Fail or an error, not {odd}")
        self._end(outcome)

    def _end(self, end: object) -> None:
        if self._settled:
            raise AwaError(f"job {self.id} ({self.kind}) has been settled already")
        self._settled = True
        self._call.settle_job(self._claimed.id, end)

    def __repr__(self) -> str:
        return f"<awa batch job {self.id} ({self.kind})>"


def _current_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
