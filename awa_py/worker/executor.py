"""Runs handlers. It writes nothing: the end of an attempt becomes an outcome, which goes to the completer."""

import asyncio
import contextvars
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from awa_py.background import resume_in_context
from awa_py.model.registry import Registry
from awa_py.observability.logs import current_call
from awa_py.worker.batch_collectors import BatchCollectors
from awa_py.worker.batches import Batch
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.handler_calls import HandlerCalls
from awa_py.worker.in_flight import Call, InFlightJobs, QueueSlots
from awa_py.worker.outcome_table import OUTCOMES
from awa_py.worker.outcomes import COMPLETED, Released, StopReason, stopped_outcome

MAX_BURST_S = 0.005  # how long handlers that never wait may run in a row before the loop runs anything else


class Executor:
    """Gives handler calls slots and tasks, and passes on the outcomes of their jobs."""

    def __init__(
        self,
        registry: Registry,
        in_flight: InFlightJobs,
        calls: HandlerCalls,
        *,
        on_finished: Callable[[Sequence[ClaimedJob]], None],
        run_times: dict[str, list[float]] | None = None,
    ) -> None:
        """`on_finished` gets jobs with their outcomes."""
        self._registry = registry
        self._in_flight = in_flight
        self._calls = calls
        self._on_finished = on_finished
        self._run_times = run_times
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.current_thread()
        self._context = contextvars.copy_context()
        self._collectors = BatchCollectors(in_flight, on_batch=self.run_waiting)
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
            jobs = self._collectors.collect(queue, jobs)
        self._in_flight.add_waiting(queue, jobs, len(jobs))
        self.run_waiting()

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
        self._release(self._collectors.take_all())

    def release_waiting_since(self, moment: float) -> None:
        """Release the jobs that have been waiting for a slot since before `moment`."""
        self._release(self._in_flight.remove_waiting_since(moment))

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
        calls = self._calls
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
                if isinstance(call, Batch):
                    self._running_batches.add(call)
                    work = calls.prepare_batch(call, release=self._release, on_settled=self._settle_job)
                else:
                    work = calls.prepare(call)
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
            else:
                call.context = None  # they refer to each other: only the garbage collector would free them
                if call.durable is not None:
                    self._end_durable(slots, call, end)
                elif end is None and not call.remembers:
                    call.outcome = COMPLETED
                    finished.append(call)
                else:
                    finished += self._set_outcomes([call], end)
            if not (only_queue and slots.waiting and self._starter is task) or task.cancelling() or now > pause_at:
                break
        self._in_flight.release_slot(slots)
        self._finish(slots, finished)

    def _set_outcomes(self, jobs: list[ClaimedJob], end: object) -> list[ClaimedJob]:
        for job in jobs:
            if end is None and not job.remembers:
                job.outcome = COMPLETED
            else:
                self._set_outcome(job, end)
        return jobs

    def _end_durable(self, slots: QueueSlots, job: ClaimedJob, end: object) -> None:
        """End the durable run of a job, which may have to write something, before the outcome is known."""
        slots.count_finished(1)
        task = asyncio.create_task(self._close_durable(job, end), context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    async def _close_durable(self, job: ClaimedJob, end: object) -> None:
        assert job.durable is not None
        await job.durable.close(end)
        self._set_outcome(job, end)
        self._on_finished([job])

    def _set_outcome(self, job: ClaimedJob, end: object) -> None:
        job.outcome = self._calls.outcome(job, end)
        if OUTCOMES[type(job.outcome)].throttles_queue:
            self._release(self._in_flight.remove_waiting(job.queue))
            self._release(self._collectors.take_queue(job.queue))

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

    def call_in(self, task: "asyncio.Task[Any] | None") -> Call | None:
        """Return the call whose handler runs in the task, if there is one. Call from any thread."""
        calls = () if task is None else (*self._in_flight, *self._running_batches.copy())
        return next((call for call in calls if call.task is task), None)
