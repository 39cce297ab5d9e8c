"""What a handler gets: the Context of its job, or the BatchJobs of a batch handler."""

import asyncio
import json
import math
from collections.abc import Awaitable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from awa_py import durations
from awa_py.durations import Duration
from awa_py.errors import AwaError, HandlerStopped
from awa_py.model.durable_context import DurableContext, Run
from awa_py.model.job import Job
from awa_py.model.outcomes import Outcome
from awa_py.text import clean_text


class ClaimedFields(Protocol):
    """The part of a claimed job that a BatchJob shows."""

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
    """The running call of a batch handler, as its BatchJobs use it."""

    def stop_reason(self, job_id: int) -> str | None: ...
    def settle_job(self, job_id: int, outcome: object) -> None: ...


class RateLimits(Protocol):
    """Waits for tokens of rate limits, in one event loop."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    def take(self, name: str, tokens: int, max_wait: timedelta | None) -> Coroutine[Any, Any, None]: ...


class ClaimedJob(Protocol):
    """The claimed job of a Context."""

    @property
    def attempt(self) -> int: ...
    def job(self) -> Job: ...


J = TypeVar("J", bound=ClaimedJob, contravariant=True)


class HandlerServices(Protocol[J]):
    """What a worker does for the Contexts of its jobs."""

    @property
    def rate_limits(self) -> RateLimits: ...
    def set_progress(self, job: J, progress: str) -> None: ...
    def begin_run(self, job: J) -> Run: ...


class Done:
    """An awaitable that is already done, in any event loop or none."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


class Context(DurableContext):
    """Passed to a handler that has a parameter annotated with it.

    Make it the first parameter: type checkers then know that `enqueue` does not take it.
    """

    # Defaults of the class, because most handlers use little of their Context, and there is one for each attempt.
    _job: Job | None = None
    _stop_requested: asyncio.Event | None = None
    cancel_reason: str | None = None

    def __init__(self, claimed: J, services: HandlerServices[J]) -> None:
        self._claimed: ClaimedJob = claimed
        self._services: HandlerServices[Any] = services
        self._blocked: set[Future[None]] = set()  # what handlers in threads wait for

    @property
    def job(self) -> Job:
        """The job as it was claimed."""
        if self._job is None:
            self._job = self._claimed.job()
        return self._job

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._claimed.attempt

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop because the job was cancelled, timed out or lost its lease.

        A synchronous handler has to check this; an asynchronous one also gets an asyncio.CancelledError.
        """
        return self.cancel_reason is not None

    async def wait_cancelled(self) -> None:
        """Return when the handler should stop. For asynchronous handlers."""
        if self.cancelled:
            return
        if self._stop_requested is None:
            self._stop_requested = asyncio.Event()
        await self._stop_requested.wait()

    def progress(self, fraction: float, message: str = "") -> None:
        """Report the progress of the job, from 0 to 1. It is visible within about a second.

        A fraction above 1 counts as 1 and one below 0 as 0: an estimate that is a little off must not fail the job.
        """
        if math.isnan(fraction):
            raise ValueError("progress is a number from 0 to 1, not NaN")
        clamped = min(max(float(fraction), 0.0), 1.0)
        self._services.set_progress(
            self._claimed, json.dumps({"fraction": clamped, "message": clean_text(str(message))})
        )

    def rate_limit(self, name: str, tokens: int = 1, max_wait: Duration | None = None) -> Awaitable[None]:
        """Wait for tokens of a rate limit: `await ctx.rate_limit("gh")`, or in a thread `ctx.rate_limit("gh")`.

        Callers are served in order. If the tokens are not available within `max_wait`, raise RateLimited: the attempt
        does not count, and the job runs again when tokens can be expected. A handler that is told to stop waits no
        longer: an asynchronous one is interrupted, a synchronous one gets HandlerStopped.
        """
        if self.cancelled:
            raise HandlerStopped(f"not waiting for tokens: {self.cancel_reason}")
        rate_limits = self._services.rate_limits
        taking = rate_limits.take(name, tokens, None if max_wait is None else durations.parse(max_wait))
        if _current_loop() is rate_limits.loop:
            return taking
        self._block(asyncio.run_coroutine_threadsafe(taking, rate_limits.loop))
        return Done()

    def _begin_run(self) -> Run:
        return self._services.begin_run(self._claimed)

    def _block(self, waiting: "Future[None]") -> None:
        """Block this thread until the future is done or the handler is told to stop."""
        self._blocked.add(waiting)
        try:
            if self.cancelled:  # meanwhile
                waiting.cancel()
            waiting.result()
        except CancelledError:
            raise HandlerStopped(f"stopped waiting for tokens: {self.cancel_reason}") from None
        finally:
            self._blocked.discard(waiting)

    def request_stop(self, reason: str) -> None:
        """Tell the handler to stop. The worker calls this, on its event loop."""
        if self.cancel_reason is None:
            self.cancel_reason = reason
        if self._stop_requested is not None:
            self._stop_requested.set()
        for waiting in self._blocked.copy():
            waiting.cancel()


class BatchJob:
    """One of the jobs that a batch handler is called with.

    The handler may settle each job with `complete` or `settle`. The others complete when it returns, and fail when it
    raises.
    """

    __slots__ = ("_call", "_claimed", "_settled")

    def __init__(self, claimed: ClaimedFields, call: BatchCall) -> None:
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
        """The job's arguments, decoded anew at each access."""
        args: dict[str, Any] = json.loads(self._claimed.args)
        return args

    @property
    def cancelled(self) -> bool:
        """Whether the handler should not go on with this job: it was cancelled, or lost its lease."""
        return self._call.stop_reason(self._claimed.id) is not None

    @property
    def settled(self) -> bool:
        """Whether the handler has settled this job."""
        return self._settled

    def complete(self, result: Any = None) -> None:
        """Complete this job, independent of the others."""
        self._settle(result)

    def settle(self, outcome: Outcome | Exception) -> None:
        """End this job as if its own handler had raised this: Retry, Snooze, Throttled, Cancel, Fail, or any error."""
        if not isinstance(outcome, Exception):
            given = type(outcome).__name__
            raise TypeError(f"settle() takes awa.Retry, Snooze, Throttled, Cancel, Fail or an error, not {given}")
        self._settle(outcome)

    def _settle(self, outcome: object) -> None:
        if self._settled:
            raise AwaError(f"job {self.id} ({self.kind}) has already been settled")
        self._settled = True
        self._call.settle_job(self._claimed.id, outcome)

    def __repr__(self) -> str:
        return f"<awa batch job {self.id} ({self.kind})>"


def _current_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
