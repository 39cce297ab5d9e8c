"""Handler calls: makes the coroutine that runs a handler, and turns its end into an outcome."""

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Sequence
from json import JSONDecoder
from types import TracebackType
from typing import Any

from awa_py.errors import InvalidArguments
from awa_py.model.context import Context, RateLimits
from awa_py.model.outcomes import Retry
from awa_py.model.registry import Registry
from awa_py.store.claim import has_arguments, is_readable
from awa_py.text import class_name
from awa_py.worker.batches import Batch
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.durable.run import DurableRun
from awa_py.worker.handler_threads import HandlerThreads
from awa_py.worker.in_flight import Call, InFlightJobs
from awa_py.worker.outcomes import (
    AttemptFailed,
    AttemptOutcome,
    Completed,
    CompletedDurable,
    HandlerTimeout,
    LeaseExpired,
    UnfitArguments,
    UnreadableJob,
    outcome_of,
)

# PostgreSQL writes JSON without surrounding spaces: raw_decode() would have nothing left to check.
_decode = JSONDecoder().scan_once  # type: ignore[attr-defined]


class HandlerCalls:
    """Prepares the calls of asynchronous handlers, of synchronous ones in threads, and of batch handlers."""

    needs_details = False  # whether claims must return the details of every job

    def __init__(
        self,
        registry: Registry,
        in_flight: InFlightJobs,
        threads: HandlerThreads,
        *,
        max_result_bytes: int,
        on_progress: Callable[[ClaimedJob], None],
        rate_limits: RateLimits,
        begin_run: Callable[[ClaimedJob], DurableRun],
    ) -> None:
        """`on_progress` gets a job that has new progress, from any thread."""
        self._registry = registry
        self._in_flight = in_flight
        self._threads = threads
        self._max_result_bytes = max_result_bytes
        self._on_progress = on_progress
        self.rate_limits = rate_limits
        self._make_run = begin_run

    def prepare(self, job: ClaimedJob) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that runs the handler, within the time limit of the attempt."""
        if job.stop is not None:
            raise asyncio.CancelledError
        if not has_arguments(job.row):
            raise UnreadableJob("its arguments are missing: awa.payloads has no row for this job")
        handler = job.handler
        if handler is None:
            raise Retry(f"no handler registered for kind: {job.kind}")
        try:
            arguments = handler.signature.load(_decode(job.args, 0)[0])
        except InvalidArguments as error:
            raise UnfitArguments(str(error)) from None
        job.remembers = job.lease > 1  # also without a Context: an earlier version of the handler may have had one
        if handler.signature.context_parameter is not None:
            if not is_readable(job.row):
                raise UnreadableJob("the row has values that awa cannot work with: a time or a duration out of range")
            job.context = Context(job, self)
            arguments[handler.signature.context_parameter] = job.context
        if self._in_flight.has_expired(job):  # last of all, because anything before may take long
            raise LeaseExpired
        work: Coroutine[Any, Any, Any]
        if handler.is_async:
            work = handler.function(**arguments)
        else:
            work = self._threads.run(functools.partial(handler.function, **arguments), job)
        return work if job.limit_s is None else _with_limit(work, job)

    def prepare_batch(
        self,
        batch: Batch,
        *,
        release: Callable[[Sequence[ClaimedJob]], None],
        on_settled: Callable[[Batch, int, object], None],
    ) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that runs the batch handler, within the earliest time limit of its jobs.

        `release` gets the jobs that must not start, `on_settled` what the handler sets as the end of a job, from any
        thread.
        """
        if batch.stop is not None:
            raise asyncio.CancelledError
        release(batch.remove_unstartable(self._in_flight.has_expired))
        if batch.is_settled:
            raise LeaseExpired
        jobs = batch.batch_jobs(on_settled)
        work: Coroutine[Any, Any, Any]
        if batch.handler.is_async:
            work = batch.handler.function(jobs)
        else:
            work = self._threads.run(functools.partial(batch.handler.function, jobs), batch)
        return _with_limit(work, batch)

    def outcome(self, call: Call, end: object) -> AttemptOutcome:
        """Return the outcome of a call whose handler returned or raised `end`."""
        try:
            outcome = outcome_of(
                end,
                kind=call.kind,
                stop=call.stop,
                max_result_bytes=self._max_result_bytes,
                find_handler=self._registry.get,
            )
            if isinstance(call, ClaimedJob):
                outcome = outcome if call.durable is None else call.durable.outcome(outcome)
                if call.remembers and isinstance(outcome, Completed):
                    return CompletedDurable(result=outcome.result)
            return outcome
        except BaseException as failure:  # a result or an exception is code of its own, which may raise anything
            error = f"{class_name(end)}: it cannot be examined: {class_name(failure)}"
            return AttemptFailed(error=error)

    def begin_run(self, job: ClaimedJob) -> DurableRun:
        """Begin the durable run of a job, at its first durable call."""
        run = self._make_run(job)
        job.durable = run
        return run

    def set_progress(self, job: ClaimedJob, progress: str) -> None:
        """Keep the progress of a job, and have it written soon. Call from any thread."""
        job.progress = progress
        self._on_progress(job)


def _with_limit(work: Coroutine[Any, Any, Any], call: Call) -> Coroutine[Any, Any, Any]:
    limit = call.limit
    return work if limit is None else _run_until(*limit, work)


async def _run_until(deadline: float, limit_s: float, work: Coroutine[Any, Any, Any]) -> Any:
    where: TracebackType | None = None
    try:
        async with asyncio.timeout(deadline - time.monotonic()) as timeout:
            try:
                return await work
            except asyncio.CancelledError as interrupted:
                where = interrupted.__traceback__  # it shows where the handler waited
                raise
    except TimeoutError:
        if timeout.expired():
            raise HandlerTimeout(f"timed out after {limit_s:.3g} s").with_traceback(where) from None
        raise
