"""Runs handlers. It writes nothing: the end of an attempt becomes an outcome, which goes to the completer."""

import asyncio
import contextvars
import functools
import math
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from itertools import groupby
from json import JSONDecoder
from operator import attrgetter
from typing import Any

from awa_py.background import resume_in_context
from awa_py.errors import InvalidArguments
from awa_py.model.context import Context, RateLimits
from awa_py.model.outcomes import Retry
from awa_py.model.registry import Handler, Registry
from awa_py.observability.logs import current_call
from awa_py.store.claim import is_readable
from awa_py.text import class_name
from awa_py.worker.batches import Batch, BatchCollector
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.handler_threads import HandlerThreads
from awa_py.worker.in_flight import Call, InFlightJobs, QueueSlots
from awa_py.worker.outcome_table import OUTCOMES
from awa_py.worker.outcomes import (
    COMPLETED,
    AttemptFailed,
    AttemptOutcome,
    HandlerTimeout,
    LeaseExpired,
    Released,
    StopReason,
    UnfitArguments,
    UnreadableJob,
    outcome_of,
    stopped_outcome,
)

MAX_BURST_S = 0.005  # how long handlers that never wait may run in a row before the loop runs anything else
# PostgreSQL writes JSON without surrounding spaces: raw_decode() would have nothing left to check.
_decode = JSONDecoder().scan_once  # type: ignore[attr-defined]


class Executor:
    """Runs handlers: asynchronous ones in tasks, synchronous ones in threads, batch handlers with several jobs."""

    needs_details = False  # whether claims must return the details of every job

    def __init__(
        self,
        registry: Registry,
        in_flight: InFlightJobs,
        *,
        threads: int,
        max_result_bytes: int,
        on_finished: Callable[[Sequence[ClaimedJob]], None],
        on_progress: Callable[[ClaimedJob], None],
        rate_limits: RateLimits,
        run_times: dict[str, list[float]] | None = None,
    ) -> None:
        """`on_finished` gets jobs with their outcomes, `on_progress` a job that has new progress, from any thread."""
        self._registry = registry
        self._in_flight = in_flight
        self._threads = HandlerThreads(in_flight, threads)
        self._max_result_bytes = max_result_bytes
        self._on_finished = on_finished
        self._on_progress = on_progress
        self._rate_limits = rate_limits
        self._run_times = run_times
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.current_thread()
        self._context = contextvars.copy_context()
        self._collectors: dict[tuple[str, str], BatchCollector] = {}
        self._starter: asyncio.Task[None] | None = None  # the task that starts waiting calls
        self._tasks: set[asyncio.Task[None]] = set()
        self._running_batches: set[Batch] = set()
        self.idle = asyncio.Event()  # no handler runs
        self.idle.set()

    @property
    def running(self) -> int:
        """Return the number of handler calls that are running."""
        return len(self._tasks)

    def submit(self, queue: str, jobs: Sequence[ClaimedJob]) -> None:
        """Run the jobs as soon as there are slots."""
        if self._registry.has_batches:
            jobs = self._collect_batches(queue, jobs)
        self._in_flight.add_waiting(queue, jobs, len(jobs))
        self.run_waiting()

    def _collect_batches(self, queue: str, jobs: Sequence[ClaimedJob]) -> list[ClaimedJob]:
        """Pass jobs of batch handlers to their collectors. Return the others."""
        single: list[ClaimedJob] = []
        largest = 0
        for handler, group in groupby(jobs, attrgetter("handler")):
            if handler is None or handler.batching is None:
                single += group
            else:
                largest = max(largest, handler.batching.size)
                batched = list(group)
                self._in_flight.slots(queue).collecting += len(batched)
                self._collector(queue, handler).add(batched)
        # Room to fill a batch must not be filled with other jobs: they would wait for a slot while they are leased.
        self._in_flight.slots(queue).batch_size = 0 if single else largest
        return single

    def run_waiting(self) -> None:
        """Start waiting calls as far as there are free slots."""
        if self._starter is None and self._in_flight.can_start:
            self.idle.clear()
            self._starter = asyncio.create_task(self._run_calls(), context=self._context.copy())
            self._tasks.add(self._starter)
            self._starter.add_done_callback(self._task_done)

    def release_all_waiting(self) -> None:
        """Release all jobs that have not started."""
        self._release(self._in_flight.remove_waiting_since(math.inf))
        for queue in {queue for queue, _ in self._collectors}:
            self._release_collected(queue)

    def release_waiting_since(self, moment: float) -> None:
        """Release the jobs that have been waiting for a slot since before `moment`."""
        self._release(self._in_flight.remove_waiting_since(moment))

    def _release_collected(self, queue: str) -> None:
        for (collector_queue, _), collector in self._collectors.items():
            if collector_queue == queue:
                jobs = collector.take_all()
                self._in_flight.slots(queue).collecting -= len(jobs)
                self._release(jobs)

    def _release(self, jobs: Sequence[ClaimedJob]) -> None:
        for job in jobs:
            job.outcome = stopped_outcome(job.stop) if job.stop else Released()
        self._in_flight.count_unwritten(jobs)
        self._on_finished(jobs)

    def interrupt(self) -> None:
        """Ask all running handlers to stop because the worker shuts down."""
        for job in self._in_flight:
            job.request_stop(StopReason.SHUTDOWN)
        for batch in self._running_batches:  # also batches whose jobs are all settled
            batch.request_stop(StopReason.SHUTDOWN)

    def close(self) -> None:
        self._threads.close()

    async def _run_calls(self) -> None:
        """Run waiting calls one after another, until a handler has to wait for something.

        From then on this task and its slot belong to that call, and a new task runs the next ones. So a handler that
        never waits costs no task, and one that waits has a task of its own, as if it had been given one at the start.
        """
        task = self._starter
        assert task is not None
        pause_at = time.monotonic() + MAX_BURST_S
        while self._starter is task and (slots := self._in_flight.acquire_slot()) is not None:
            await self._run_calls_of_queue(slots, task, pause_at)
            if task.cancelling():  # the handler cancelled itself: the next call must not be cancelled with it
                break
            if time.monotonic() > pause_at and self._starter is task:
                await asyncio.sleep(0)
                pause_at = time.monotonic() + MAX_BURST_S
        if self._starter is task:
            self._starter = None

    async def _run_calls_of_queue(self, slots: QueueSlots, task: "asyncio.Task[None]", pause_at: float) -> None:
        """Run calls of one queue in a slot that was taken for them; only one if other queues have waiting calls."""
        finished: list[ClaimedJob] = []
        only_queue = not self._in_flight.others_can_start(slots)
        run_times = self._run_times
        now = time.monotonic()
        while True:
            call = slots.next_call()
            started = now
            call.task = task
            current_call.set(call)
            context = contextvars.copy_context()
            end: object
            try:
                work = self._call_batch_handler(call) if isinstance(call, Batch) else self._call_handler(call)
                try:
                    awaited = context.run(work.send, None)
                except StopIteration as returned:
                    end = returned.value
                else:
                    self._finish(slots, finished)
                    finished = []
                    self._starter = None
                    self.run_waiting()
                    end = await resume_in_context(context, work, awaited)
            except BaseException as error:  # whatever a handler raises, its job must get an outcome
                end = error
            call.task = None
            now = time.monotonic()
            if run_times is not None:
                run_times[call.kind].append(now - started)
            if isinstance(call, Batch):
                self._running_batches.discard(call)
                finished += self._set_outcomes(call.open_jobs(), end)
            elif end is None:
                call.outcome = COMPLETED
                finished.append(call)
            else:
                finished += self._set_outcomes([call], end)
            if not (only_queue and slots.waiting and self._starter is task) or task.cancelling() or now > pause_at:
                break
        self._in_flight.release_slot(slots)
        self._finish(slots, finished)

    def _outcome_of(self, call: Call, end: object) -> AttemptOutcome:
        try:
            return outcome_of(end, kind=call.kind, stop=call.stop, max_result_bytes=self._max_result_bytes)
        except BaseException as failure:  # a result or an exception is code of its own, which may raise anything
            error = f"{class_name(end)}: it cannot be examined: {class_name(failure)}"
            return AttemptFailed(error=error)

    def _set_outcomes(self, jobs: list[ClaimedJob], end: object) -> list[ClaimedJob]:
        for job in jobs:
            if end is None:
                job.outcome = COMPLETED
            else:
                self._set_outcome(job, end)
        return jobs

    def _set_outcome(self, job: ClaimedJob, end: object) -> None:
        job.outcome = self._outcome_of(job, end)
        if OUTCOMES[type(job.outcome)].throttles_queue:
            self._release(self._in_flight.remove_waiting(job.queue))
            self._release_collected(job.queue)

    def _finish(self, slots: QueueSlots, jobs: Sequence[ClaimedJob]) -> None:
        slots.count_finished(len(jobs))
        self._on_finished(jobs)

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if self._starter is task:  # it was cancelled between two calls
            self._starter = None
        self.run_waiting()
        if not self._tasks:
            self.idle.set()

    def _call_handler(self, job: ClaimedJob) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that runs the handler, within the time limit of the attempt."""
        if job.stop is not None:
            raise asyncio.CancelledError
        handler = job.handler
        if handler is None:
            raise Retry(f"no handler registered for kind: {job.kind}")
        try:
            arguments = handler.signature.load(_decode(job.args, 0)[0])
        except InvalidArguments as error:
            raise UnfitArguments(str(error)) from None
        if handler.signature.context_parameter is not None:
            if not is_readable(job.row):
                raise UnreadableJob("the row has values that awa cannot work with: a time or a duration out of range")
            set_progress = functools.partial(self._set_progress, job)
            job.context = Context(job.job, job.attempt, set_progress, self._rate_limits)
            arguments[handler.signature.context_parameter] = job.context
        if self._in_flight.has_expired(job):  # last of all, because anything before may take long
            raise LeaseExpired
        work: Coroutine[Any, Any, Any]
        if handler.is_async:
            work = handler.function(**arguments)
        else:
            work = self._threads.run(functools.partial(handler.function, **arguments), job)
        return work if job.limit_s is None else _with_limit(work, job)

    def _call_batch_handler(self, batch: Batch) -> Coroutine[Any, Any, Any]:
        if batch.stop is not None:
            raise asyncio.CancelledError
        self._release(batch.remove_unstartable(self._in_flight.has_expired))
        if batch.is_settled:
            raise LeaseExpired
        self._running_batches.add(batch)
        jobs = batch.batch_jobs(self._settle_job)
        work: Coroutine[Any, Any, Any]
        if batch.handler.is_async:
            work = batch.handler.function(jobs)
        else:
            work = self._threads.run(functools.partial(batch.handler.function, jobs), batch)
        return _with_limit(work, batch)

    def _settle_job(self, batch: Batch, job_id: int, end: object) -> None:
        """Take the outcome that a batch handler set for one job, from the loop or from the handler's thread."""
        if threading.current_thread() is not self._loop_thread:
            # As a closure: asyncio logs the arguments of a callback that is slow or fails, and they may be secret.
            self._loop.call_soon_threadsafe(lambda: self._settle_job(batch, job_id, end))
            return
        job = batch.close_job(job_id)
        if job is not None:
            self._set_outcome(job, end)
            self._finish(self._in_flight.slots(job.queue), [job])

    def _collector(self, queue: str, handler: Handler) -> BatchCollector:
        key = (queue, handler.kind)
        if key not in self._collectors:
            self._collectors[key] = BatchCollector(handler, self._submit_batch)
        return self._collectors[key]

    def _submit_batch(self, batch: Batch) -> None:
        self._in_flight.slots(batch.queue).collecting -= batch.size
        self._in_flight.add_waiting(batch.queue, [batch], batch.size)
        self.run_waiting()

    def call_in(self, task: "asyncio.Task[Any] | None") -> Call | None:
        """Return the call whose handler runs in the task, if there is one. Call from any thread."""
        calls = () if task is None else (*self._in_flight, *self._running_batches.copy())
        return next((call for call in calls if call.task is task), None)

    def _set_progress(self, job: ClaimedJob, progress: str) -> None:
        job.progress = progress
        self._on_progress(job)


def _with_limit(work: Coroutine[Any, Any, Any], call: Call) -> Coroutine[Any, Any, Any]:
    limit = call.limit
    return work if limit is None else _run_until(*limit, work)


async def _run_until(deadline: float, limit_s: float, work: Coroutine[Any, Any, Any]) -> Any:
    try:
        async with asyncio.timeout(deadline - time.monotonic()) as timeout:
            return await work
    except TimeoutError as error:
        if timeout.expired():
            interrupted = error.__cause__  # its traceback shows where the handler waited
            where = None if interrupted is None else interrupted.__traceback__
            raise HandlerTimeout(f"timed out after {limit_s:.3g} s").with_traceback(where) from None
        raise
