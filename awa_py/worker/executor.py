"""Runs handlers. No SQL here: what becomes of an attempt is a value that the completer writes."""

import asyncio
import contextvars
import functools
import math
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from json import JSONDecoder
from operator import attrgetter
from typing import Any

from awa_py.background import resume_in_context
from awa_py.model.context import Context, RateLimits
from awa_py.model.outcomes import Retry
from awa_py.model.registry import Handler, Registry
from awa_py.observability.logs import current_call
from awa_py.worker.batches import Batch, BatchCollector
from awa_py.worker.claimed_job import ClaimedJob, StopReason
from awa_py.worker.in_flight import Call, InFlightJobs, QueueSlots
from awa_py.worker.judge import DONE, HandlerTimeout, Judge, stopped
from awa_py.worker.outcomes import Released, Throttled

BURST_S = 0.005  # jobs that wait for nothing run in a row for so long, before others have their turn in the loop
# What PostgreSQL writes is JSON, without a space around it: nothing is left for raw_decode() to check.
_decode = JSONDecoder().scan_once  # type: ignore[attr-defined]


class Executor:
    """Runs handlers: asynchronous ones in tasks, synchronous ones in threads, some with a batch of jobs at a time."""

    needs_details = False  # of each job that it runs: what the claim brings only where it is asked to

    def __init__(
        self,
        registry: Registry,
        flights: InFlightJobs,
        judge: Judge,
        *,
        threads: int,
        settle: Callable[[Sequence[ClaimedJob]], None],
        report: Callable[[ClaimedJob], None],
        rate_limits: RateLimits,
        run_times: dict[str, list[float]] | None = None,
    ) -> None:
        self._registry = registry
        self._flights = flights
        self._judge = judge
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="awa-handler")
        self._settle = settle
        self._report = report
        self._rate_limits = rate_limits
        self._run_times = run_times
        self._loop = asyncio.get_running_loop()
        self._thread = threading.current_thread()
        self._context = contextvars.copy_context()
        self._gatherers: dict[tuple[str, str], BatchCollector] = {}
        self._taker: asyncio.Task[None] | None = None  # takes the jobs that wait
        self._tasks: set[asyncio.Task[None]] = set()
        self._batches: set[Batch] = set()  # that run
        self.idle = asyncio.Event()  # no handler runs
        self.idle.set()

    @property
    def running(self) -> int:
        """How many handlers run."""
        return len(self._tasks)

    def submit(self, queue: str, flights: Sequence[ClaimedJob]) -> None:
        """Runs the jobs as soon as there are slots; their outcomes go to `settle`."""
        if self._registry.has_batches:
            flights = self._gather(queue, flights)
        self._flights.line_up(queue, flights, len(flights))
        self.run_waiting()

    def _gather(self, queue: str, flights: Sequence[ClaimedJob]) -> list[ClaimedJob]:
        """Puts the jobs of batch handlers together. Returns the others."""
        alone: list[ClaimedJob] = []
        largest = 0
        for handler, together in groupby(flights, attrgetter("handler")):
            if handler is None or handler.batching is None:
                alone += together
            else:
                largest = max(largest, handler.batching.size)
                jobs = list(together)
                self._flights.gather(queue, len(jobs))
                self._gatherer(queue, handler).add(jobs)
        # Claimed ahead for a batch that gathers, other jobs would wait for their slots in vain.
        self._flights.expect_batches(queue, 0 if alone else largest)
        return alone

    def run_waiting(self) -> None:
        """Takes what waits, as far as there are slots."""
        if self._taker is None and self._flights.may_take:
            self.idle.clear()
            self._taker = asyncio.create_task(self._take_turns(), context=self._context.copy())
            self._tasks.add(self._taker)
            self._taker.add_done_callback(self._ended)

    def give_back(self) -> None:
        """Lets somebody else have all jobs that wait."""
        self._release(self._flights.take_back(math.inf))
        for queue in {queue for queue, _ in self._gatherers}:
            self._give_back_gathering(queue)

    def _give_back_gathering(self, queue: str) -> None:
        for place, gatherer in self._gatherers.items():
            if place[0] == queue:
                flights = gatherer.take_back()
                self._flights.gather(queue, -len(flights))
                self._release(flights)

    def release_waiting_since(self, since: float) -> None:
        """Lets somebody else have the jobs that wait for a slot since before that moment."""
        self._release(self._flights.take_back(since))

    def _release(self, flights: Sequence[ClaimedJob]) -> None:
        for flight in flights:
            flight.outcome = stopped(flight) if flight.stop else Released()
        self._flights.give_back(flights)
        self._settle(flights)

    def interrupt(self) -> None:
        """Ends all handlers that still run, and gives their jobs back."""
        for flight in self._flights:
            flight.request_stop(StopReason.SHUTDOWN)
        for batch in self._batches:  # also those of which every job is settled
            batch.request_stop(StopReason.SHUTDOWN)

    def close(self) -> None:
        """Lets go of the threads; one that still runs a handler ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _take_turns(self) -> None:
        """Makes waiting calls one after another, until one of them waits for something.

        From then on the task, with its slot, is that call's own, and another task makes the next ones: a job that waits
        for nothing costs no task, and one that waits has its own, as if it had been given it at the start.
        """
        task = self._taker
        assert task is not None
        pause_at = time.monotonic() + BURST_S
        while self._taker is task and (lane := self._flights.take_slot()) is not None:
            await self._make_calls(lane, task, pause_at)
            if task.cancelling():  # by the handler itself: the next one must not suffer for it
                break
            if time.monotonic() > pause_at and self._taker is task:
                await asyncio.sleep(0)
                pause_at = time.monotonic() + BURST_S
        if self._taker is task:
            self._taker = None

    async def _make_calls(self, lane: QueueSlots, task: "asyncio.Task[None]", pause_at: float) -> None:
        """Makes the calls of one queue, in a slot that was taken for them. Other queues that wait come after each."""
        ended: list[ClaimedJob] = []
        alone = not self._flights.others_wait(lane)
        run_times = self._run_times
        now = time.monotonic()
        while True:
            call = lane.take()
            began = now
            call.task = task
            current_call.set(call)
            context = contextvars.copy_context()
            end: object
            try:
                work = self._begin_batch(call) if isinstance(call, Batch) else self._begin(call)
                try:
                    awaited = context.run(work.send, None)
                except StopIteration as returned:
                    end = returned.value
                else:
                    self._hand_in(lane, ended)
                    ended = []
                    self._taker = None
                    self.run_waiting()
                    end = await resume_in_context(context, work, awaited)
            except BaseException as error:  # whatever a handler comes up with, its job must not be left without an end
                end = error
            call.task = None
            now = time.monotonic()
            if run_times is not None:
                run_times[call.kind].append(now - began)
            if isinstance(call, Batch):
                self._batches.discard(call)
                ended += self._judged(call.open_jobs(), end)
            elif end is None:
                call.outcome = DONE
                ended.append(call)
            else:
                ended += self._judged([call], end)
            if not (alone and lane.waiting and self._taker is task) or task.cancelling() or now > pause_at:
                break
        self._flights.free_slot(lane)
        self._hand_in(lane, ended)

    def _judged(self, flights: list[ClaimedJob], end: object) -> list[ClaimedJob]:
        for flight in flights:
            if end is None:
                flight.outcome = DONE
            else:
                self._give_judgement(flight, end)
        return flights

    def _give_judgement(self, flight: ClaimedJob, end: object) -> None:
        flight.outcome = self._judge.of(end, flight)
        if isinstance(flight.outcome, Throttled):  # the whole queue is to rest: what waits here would run all the same
            self._release(self._flights.take_back_from(flight.queue))
            self._give_back_gathering(flight.queue)

    def _hand_in(self, lane: QueueSlots, ended: Sequence[ClaimedJob]) -> None:
        """These jobs have run: their outcomes are to be written."""
        lane.ended(len(ended))
        self._settle(ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if self._taker is task:  # somebody cancelled it between two jobs
            self._taker = None
        self.run_waiting()
        if not self._tasks:
            self.idle.set()

    def _begin(self, flight: ClaimedJob) -> Coroutine[Any, Any, Any]:
        """What is to be awaited for the handler's answer."""
        if flight.stop is not None:
            raise asyncio.CancelledError
        handler = flight.handler
        if handler is None:
            raise Retry(f"no handler registered for kind: {flight.kind}")
        arguments = handler.signature.load(_decode(flight.args, 0)[0])
        if handler.signature.context_parameter is not None:
            note_progress = functools.partial(self._note_progress, flight)
            flight.context = Context(flight.job, flight.attempt, note_progress, self._rate_limits)
            arguments[handler.signature.context_parameter] = flight.context
        work: Coroutine[Any, Any, Any]
        if handler.is_async:
            work = handler.function(**arguments)
        else:
            work = self._in_thread(functools.partial(handler.function, **arguments), flight)
        return work if flight.limit_s is None else self._limited(work, flight)

    def _begin_batch(self, batch: Batch) -> Coroutine[Any, Any, Any]:
        if batch.stop is not None:
            raise asyncio.CancelledError
        self._release(batch.unwanted())
        self._batches.add(batch)
        jobs = batch.jobs(self._settle_one)
        work: Coroutine[Any, Any, Any]
        if batch.handler.is_async:
            work = batch.handler.function(jobs)
        else:
            work = self._in_thread(functools.partial(batch.handler.function, jobs), batch)
        return self._limited(work, batch)

    @staticmethod
    def _limited(work: Coroutine[Any, Any, Any], call: Call) -> Coroutine[Any, Any, Any]:
        limit = call.limit
        return work if limit is None else _within(*limit, work)

    def _settle_one(self, batch: Batch, job_id: int, end: object) -> None:
        """The handler has settled one job of its batch: from the loop, or from its thread."""
        if threading.current_thread() is not self._thread:
            # Not as arguments, which asyncio writes into its log where a call takes long or fails.
            self._loop.call_soon_threadsafe(lambda: self._settle_one(batch, job_id, end))
            return
        flight = batch.settle(job_id)
        if flight is not None:
            self._give_judgement(flight, end)
            self._hand_in(self._flights.lane(flight.queue), [flight])

    def _gatherer(self, queue: str, handler: Handler) -> BatchCollector:
        place = (queue, handler.kind)
        if place not in self._gatherers:
            self._gatherers[place] = BatchCollector(handler, self._start_batch)
        return self._gatherers[place]

    def _start_batch(self, batch: Batch) -> None:
        self._flights.gather(batch.queue, -batch.size)
        self._flights.line_up(batch.queue, [batch], batch.size)
        self.run_waiting()

    def call_in(self, task: "asyncio.Task[Any] | None") -> Call | None:
        """Whose handler runs in that task. From any thread."""
        calls = () if task is None else (*self._flights, *self._batches.copy())
        return next((call for call in calls if call.task is task), None)

    async def _in_thread(self, function: Callable[[], Any], call: Call) -> Any:
        work = self._threads.submit(contextvars.copy_context().run, _call_in_thread, function)
        thread = asyncio.wrap_future(work)
        patient = True
        while True:
            try:
                return await asyncio.shield(thread)
            except asyncio.CancelledError:
                if patient and call.stop in (StopReason.CANCELLED, StopReason.LEASE_LOST, StopReason.LEASE_EXPIRED):
                    # A thread cannot be interrupted: it was told, and how it ends decides.
                    patient = False
                    _forget_cancellation()
                    continue
                if not thread.done() and not work.cancel():
                    self._flights.hold_until(call, thread)
                    call.is_abandoned()
                raise

    def _note_progress(self, flight: ClaimedJob, progress: str) -> None:
        flight.progress = progress
        self._report(flight)


async def _within(ends_at: float, limit_s: float, work: Coroutine[Any, Any, Any]) -> Any:
    try:
        async with asyncio.timeout(ends_at - time.monotonic()) as limit:
            return await work
    except TimeoutError:
        if limit.expired():
            raise HandlerTimeout(f"timed out after {limit_s:.3g} s") from None
        raise


def _call_in_thread(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except StopIteration as error:  # no future can hold it: whoever waits would wait for ever
        raise RuntimeError("the handler raised StopIteration") from error


def _forget_cancellation() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
