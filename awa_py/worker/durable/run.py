"""The durable run of one attempt: performs what its handler asks for, or returns what an earlier attempt recorded."""

import asyncio
import concurrent.futures
import hashlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from awa_py.arguments.composites import ANY
from awa_py.connections import Connection
from awa_py.errors import AwaError, HandlerStopped, InvalidStep, ReplayMismatch
from awa_py.model.children import Join, Spawn
from awa_py.model.durable import DurableCall, First, SignalWait, Step, Suspended, Timer
from awa_py.model.job import State
from awa_py.observability.logs import current_call
from awa_py.observability.metrics import Reason
from awa_py.store.checkpoints import Suspension
from awa_py.text import describe, describe_chain
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.durable.children import Children
from awa_py.worker.durable.memory import Memory
from awa_py.worker.durable.recorder import Recorder
from awa_py.worker.durable.step_errors import StepErrors
from awa_py.worker.durable.step_threads import StepThreads
from awa_py.worker.durable.steps import Steps, current_step
from awa_py.worker.durable.timers import Timers
from awa_py.worker.durable.transactions import Transactions, in_transaction
from awa_py.worker.durable.values import dump_result
from awa_py.worker.durable.waits import Wait, Waits
from awa_py.worker.outcomes import (
    AttemptOutcome,
    AttemptSuspended,
    Completed,
    CompletedInTransaction,
    Discarded,
    HandlerTimeout,
    Released,
    StopReason,
)

logger = logging.getLogger("awa.worker")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableServices:
    """What the durable runs of a worker share."""

    loop: asyncio.AbstractEventLoop
    loop_thread: int
    recorder: Recorder
    transactions: Transactions
    threads: StepThreads
    is_draining: Callable[[], bool]
    max_step_bytes: int
    max_result_bytes: int
    max_steps: int


class DurableRun:
    """Performs the durable calls of one attempt, in the worker's event loop."""

    def __init__(self, job: ClaimedJob, services: DurableServices) -> None:
        """Begin a run at the first durable call of a handler: for a synchronous one, in its thread."""
        caller = threading.get_ident()
        assert job.handler is not None
        if job.task is None:
            raise InvalidStep(f"a durable call of {job} was made after the end of its handler")
        if caller != services.loop_thread if job.handler.is_async else current_call.get() is not job:
            raise InvalidStep(f"a durable call of {job} was made in a foreign thread: make it in the handler")
        self._job = job
        self._services = services
        self._thread = None if job.handler.is_async else caller
        self._main = job.task
        self._memory = Memory(
            job, services.recorder, max_checkpoints=services.max_steps, on_lease_lost=self._lose_lease
        )
        self._waits = Waits(services.loop, self._main, self._suspend)
        self._children = Children(self, self._memory, self._waits)
        self._timers = Timers(self._memory, self._waits, self._children)
        self._errors = StepErrors(self._memory, self._main, max_bytes=services.max_step_bytes)
        self._steps = Steps(
            self._memory,
            self._waits,
            self._errors,
            services.transactions,
            services.threads,
            services.loop,
            max_result_bytes=services.max_step_bytes,
            check_stop=self._check_stop,
        )
        self._thread_call: asyncio.Task[Any] | None = None  # what a handler in a thread waits for
        self._ended = False
        self._draining = False  # a call waits for the others: the worker stops
        self._ending: AttemptSuspended | Released | None = None  # ends the attempt before its handler
        self._fatal: AwaError | None = None  # fails the job, whatever the handler makes of it
        self._result: str | None = None  # for the transaction that completes the job
        self._completed = False  # by that transaction

    def take_name(self, name: str) -> str:
        _refuse_in_step(name)
        if threading.get_ident() != (self._thread or self._services.loop_thread):
            raise InvalidStep(f'"{name}" of {self._job} was called in a foreign thread: call it in the handler')
        return self._memory.take_name(name)

    def return_name(self, name: str, numbered: str) -> None:
        self._memory.return_name(name, numbered)

    def idempotency_key(self, name: str) -> str:
        """Return 32 hexadecimal digits, the same in every attempt of this job."""
        job = self._job.job()
        text = f"{self._services.transactions.schema} {job.id} {job.created_at.isoformat()} {name}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    async def perform(self, call: DurableCall[T]) -> T:
        """Perform a call of an asynchronous handler."""
        if threading.get_ident() != self._services.loop_thread:
            raise InvalidStep(f'"{call.name}" was awaited in another event loop than that of its handler')
        caller = asyncio.current_task(self._services.loop)
        assert caller is not None
        return await self._perform(call, caller)

    def perform_in_thread(self, call: DurableCall[T]) -> T:
        """Perform a call of a synchronous handler, and block its thread."""
        if threading.get_ident() == self._services.loop_thread:
            raise InvalidStep(f'"{call.name}": result() is for synchronous handlers: use await')
        if threading.get_ident() != self._thread:
            raise InvalidStep(f'"{call.name}" of {self._job} was called in a foreign thread: call it in the handler')
        try:
            return asyncio.run_coroutine_threadsafe(self._perform_for_thread(call), self._services.loop).result()
        except concurrent.futures.CancelledError:
            if self._ending is not None:
                raise Suspended from None
            raise HandlerStopped(f"stopped waiting: {self._job.stop or 'the attempt has ended'}") from None

    async def _perform_for_thread(self, call: DurableCall[T]) -> T:
        self._thread_call = asyncio.current_task()
        try:
            return await self._perform(call, self._main)
        finally:
            self._thread_call = None

    async def _perform(self, call: DurableCall[T], caller: "asyncio.Task[Any]") -> T:
        self._check_call(call.name)
        for each in (call, *call.waits) if isinstance(call, First) else (call,):
            self._memory.not_awaited.pop(each.name, None)
        self._waits.enter(caller)
        try:
            _refuse_in_step(call.name)
            if (call.is_wait or isinstance(call, First)) and in_transaction.get():
                raise InvalidStep(f'"{call.name}": a job cannot wait inside its transaction: wait before it')
            await self._check_stop(caller)
            await self._memory.read()
            await self._errors.record_caught(caller)
            return cast(T, await self._dispatch(call, caller))
        except (ReplayMismatch, InvalidStep) as error:
            self._fatal = self._fatal or error
            raise
        finally:
            self._waits.leave()

    def _check_call(self, name: str) -> None:
        if self._ended:
            raise InvalidStep(f'"{name}" was called after the end of its handler')
        if self._completed:
            raise InvalidStep(f'"{name}" was called after the transaction that completed the job')

    def _dispatch(self, call: DurableCall[Any], caller: "asyncio.Task[Any]") -> Coroutine[Any, Any, Any]:
        match call:
            case Step():
                return self._steps.run(call, caller)
            case Timer():
                return self._timers.sleep(call, caller)
            case SignalWait():
                return self._timers.wait_signal(call, caller)
            case First():
                return self._timers.first(call, caller)
            case Spawn():
                return self._children.spawn(call, caller)
            case Join():
                return self._children.join(call, caller)
        raise TypeError(f"unknown call: {call!r}")

    async def _check_stop(self, caller: "asyncio.Task[Any]") -> None:
        """End the attempt here if it has to end: the next attempt goes on from here.

        If the worker stops, wait for the steps under way first.
        """
        if self._ending is not None or self._ended or self._job.stop is not None:
            raise asyncio.CancelledError
        if self._fatal is not None:
            raise self._fatal
        if self._services.is_draining():
            self._draining = True
            await self._waits.wait(Wait(caller))

    def _suspend(self, suspension: Suspension) -> None:
        """End the attempt: its handler waits. An asynchronous one is cancelled, a thread gets Suspended."""
        self._ending = Released() if self._draining else AttemptSuspended(suspension=suspension)
        if self._thread is None:
            self._main.cancel()
        else:
            self.request_stop()

    def _lose_lease(self) -> None:
        self._job.request_stop(StopReason.LEASE_LOST)

    def request_stop(self) -> None:
        """Stop what the worker cannot interrupt: the call of a handler in a thread, and steps that outlive it."""
        if self._thread_call is not None:
            self._thread_call.cancel()
        if self._ended:
            self._steps.cancel()

    async def close(self, end: object) -> None:
        """End the run after its handler: nothing can be called any more. Write what is left."""
        self._ended = True
        self._waits.close()
        if self._job.stop is not None or isinstance(end, HandlerTimeout):
            self._steps.cancel()
        await self._steps.finish()
        await self._memory.settle()
        if self._completed and end is not None:
            self._warn_of_end(end)
        if self._job.stop is not None or self._completed:
            return
        error = end if isinstance(end, BaseException) and self._ending is None else None
        self._fatal = self._fatal or _find_fatal(error)
        if error is None and self._ending is None:
            for name in self._memory.not_awaited:
                cure = "await it" if self._thread is None else "call its result()"
                self._fatal = self._fatal or InvalidStep(f'"{name}" was called, but nothing waited for it: {cure}')
        try:
            await self._errors.record_end(error)
        except asyncio.CancelledError:
            if self._job.stop is None:
                raise
        except InvalidStep as invalid:
            self._fatal = self._fatal or invalid

    def outcome(self, outcome: AttemptOutcome) -> AttemptOutcome:
        """Return the outcome of the attempt. `outcome` is what the end of its handler would mean for another job."""
        if self._completed:
            return CompletedInTransaction()
        if self._job.stop is not None and not isinstance(outcome, Completed):
            return outcome
        if self._fatal is not None:
            error = describe_chain(self._fatal)
            return Discarded(state=State.FAILED, error=error, cause=self._fatal, reason=Reason.STEP)
        return self._ending or outcome

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """See Context.transaction."""
        if threading.get_ident() != self._services.loop_thread:
            raise InvalidStep("transaction() is for asynchronous handlers")
        self._check_call("transaction")
        caller = asyncio.current_task()
        assert caller is not None
        self._waits.enter(caller)
        try:
            await self._check_stop(caller)
            transactions = self._services.transactions
            async with transactions.complete(self._memory, lambda: self._result, self._note_completion) as connection:
                yield connection
        finally:
            self._waits.leave()

    def complete(self, result: object) -> None:
        """See Context.complete."""
        if not in_transaction.get():
            raise InvalidStep("complete() sets the result inside `async with ctx.transaction()`")
        self._result = dump_result("transaction", result, ANY, self._services.max_result_bytes)

    def _warn_of_end(self, end: object) -> None:
        """Say that what the handler did after its transaction has no effect."""
        if isinstance(end, BaseException):
            logger.warning("%s completed in its transaction, and then its handler raised: %s", self._job, describe(end))
        else:
            logger.warning(
                "%s completed in its transaction, and then its handler returned a result, which is not stored: call "
                "ctx.complete(result) inside the transaction",
                self._job,
            )

    def _note_completion(self) -> None:
        self._completed = True


def _refuse_in_step(name: str) -> None:
    """Raise InvalidStep inside a step: a later attempt that returns its record would not make the call."""
    if (step := current_step.get()) is not None:
        raise InvalidStep(f'"{name}" was called inside step "{step}": call it in the handler')


def _find_fatal(error: BaseException | None) -> AwaError | None:
    """Return the error that fails the job at once, if it is this one or a member of this group."""
    if isinstance(error, ReplayMismatch | InvalidStep):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(_find_fatal, error.exceptions)), None)
    return None
