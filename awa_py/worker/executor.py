"""Job → outcome. No SQL here."""

import asyncio
import contextvars
import functools
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from awa_py.arguments import dumps, loads
from awa_py.context import Context
from awa_py.errors import InvalidJob
from awa_py.job import State
from awa_py.outcome import Cancel, Fail, Outcome, Retry, Snooze
from awa_py.registry import Handler, Registry
from awa_py.wording import chain, clean
from awa_py.worker.flight import Flight, Flights, Stop
from awa_py.worker.outcome import AttemptOutcome, Buried, Completed, Dropped, Errored, Released, Snoozed

logger = logging.getLogger("awa.worker")

DONE = Completed()


class Executor:
    """Runs handlers: asynchronous ones as tasks, synchronous ones in threads."""

    def __init__(
        self,
        registry: Registry,
        flights: Flights,
        *,
        threads: int,
        max_result_bytes: int,
        settle: Callable[[Flight, AttemptOutcome], None],
        report: Callable[[Flight], None],
    ) -> None:
        self._registry = registry
        self._flights = flights
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="awa-handler")
        self._max_result_bytes = max_result_bytes
        self._settle = settle
        self._report = report

    def start(self, flight: Flight) -> None:
        """Runs the job in the background; its outcome goes to `settle`."""
        flight.task = asyncio.create_task(self._run(flight), name=str(flight))

    async def _run(self, flight: Flight) -> None:
        flight.started = True
        try:
            outcome = _stopped(flight) if flight.stop else await self.execute(flight)
        except BaseException as error:  # whatever a handler comes up with, its job must not be left without an end
            outcome = _failed(flight, error)
        self._settle(flight, outcome)

    async def execute(self, flight: Flight) -> AttemptOutcome:
        """Runs the handler to its end, whatever that is."""
        handler = self._registry.get(flight.kind)
        if handler is None:
            return Errored(f"no handler registered for kind: {flight.kind}")
        try:
            call = self._prepare(handler, flight)
            returned = await self._call(handler, call, flight)
        except asyncio.CancelledError:
            return _stopped(flight)
        except Outcome as outcome:
            return self._judge(outcome, flight)
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # sys.exit() in a handler ends the handler
            return _failed(flight, error)
        return DONE if returned is None else self._judge(returned, flight)

    def close(self) -> None:
        """Lets go of the threads; one that still runs a handler ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, handler: Handler, flight: Flight) -> Callable[[], Any]:
        arguments = handler.signature.load(loads(flight.row["args"]))
        if handler.signature.context_parameter is not None:
            flight.context = Context(flight.job, flight.attempt, functools.partial(self._note_progress, flight))
            arguments[handler.signature.context_parameter] = flight.context
        return functools.partial(handler.function, **arguments)

    async def _call(self, handler: Handler, call: Callable[[], Any], flight: Flight) -> Any:
        work: Coroutine[Any, Any, Any] = call() if handler.is_async else self._in_thread(call, flight)
        deadline_s = flight.row["deadline_s"]
        if deadline_s is None:
            return await work
        try:
            async with asyncio.timeout(deadline_s) as limit:
                return await work
        except TimeoutError:
            if limit.expired():
                raise HandlerTimeout(f"timed out after {deadline_s:.3g} s") from None
            raise

    async def _in_thread(self, call: Callable[[], Any], flight: Flight) -> Any:
        work = self._threads.submit(contextvars.copy_context().run, _call_in_thread, call)
        thread = asyncio.wrap_future(work)
        patient = True
        while True:
            try:
                return await asyncio.shield(thread)
            except asyncio.CancelledError:
                if patient and flight.stop in (Stop.CANCELLED, Stop.LOST, Stop.FENCED):
                    # A thread cannot be interrupted: it was told, and how it ends decides.
                    patient = False
                    _forget_cancellation()
                    continue
                if not thread.done() and not work.cancel():
                    self._flights.hold_until(flight, thread)
                    if flight.context is not None:
                        flight.context.tell_cancelled(flight.stop or "it overran its time")
                raise

    def _judge(self, returned: object, flight: Flight) -> AttemptOutcome:
        match returned:
            case Retry():
                return Errored(clean(str(returned.reason)), returned.after)
            case Snooze():
                return Snoozed(returned.delay)
            case Cancel():
                return Buried(State.CANCELLED, clean(str(returned.reason)))
            case Fail():
                return Buried(State.FAILED, clean(str(returned.reason)))
        try:
            return Completed(dumps(returned, what=flight.kind, noun="result", limit=self._max_result_bytes))
        except InvalidJob as error:
            # The work is done: doing it again would not change what it returns.
            return Buried(State.FAILED, clean(str(error)))

    def _note_progress(self, flight: Flight, progress: str) -> None:
        flight.progress = progress
        self._report(flight)


class HandlerTimeout(Exception):
    """The attempt overran its deadline."""


def _call_in_thread(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except StopIteration as error:  # no future can hold it: whoever waits would wait for ever
        raise RuntimeError("the handler raised StopIteration") from error


def _stopped(flight: Flight) -> AttemptOutcome:
    match flight.stop:
        case Stop.CANCELLED:
            return Buried(State.CANCELLED, Stop.CANCELLED)
        case Stop.LOST:
            return Dropped()
        case Stop.FENCED | Stop.SHUTDOWN:
            return Released()
        case None:
            return Errored("CancelledError: the handler cancelled itself")


def _failed(flight: Flight, error: BaseException) -> AttemptOutcome:
    if flight.stop is not None:
        return _stopped(flight)
    return Errored(chain(error), exception=error)


def _forget_cancellation() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
