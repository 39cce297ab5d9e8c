"""Runs steps: once, with the tries and the time that each may have."""

import asyncio
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from awa_py.arguments.converters import Converter
from awa_py.errors import InvalidStep, StepTimeout
from awa_py.model.durable import MAX_PAUSE, Step
from awa_py.model.outcomes import Outcome
from awa_py.observability.tracing import step_span
from awa_py.worker.durable.memory import Memory
from awa_py.worker.durable.step_errors import StepError, StepErrors
from awa_py.worker.durable.step_threads import StepThreads
from awa_py.worker.durable.transactions import Transactions
from awa_py.worker.durable.values import digest_of, dump_result, load_error, load_result, result_converter
from awa_py.worker.durable.waits import IN_PLACE_S, Wait, Waits

if TYPE_CHECKING:
    from opentelemetry.trace import Span

T = TypeVar("T")
current_step: ContextVar[str | None] = ContextVar("awa_current_step", default=None)

# Raises CancelledError if the attempt ends. Takes the task that asks.
CheckStop = Callable[["asyncio.Task[Any]"], Awaitable[None]]


class Steps:
    """Runs the steps of one attempt."""

    def __init__(
        self,
        memory: Memory,
        waits: Waits,
        errors: StepErrors,
        transactions: Transactions,
        threads: StepThreads,
        loop: asyncio.AbstractEventLoop,
        *,
        max_result_bytes: int,
        check_stop: CheckStop,
    ) -> None:
        self._memory = memory
        self._waits = waits
        self._errors = errors
        self._transactions = transactions
        self._threads = threads
        self._loop = loop
        self._max_result_bytes = max_result_bytes
        self._check_stop = check_stop
        self._running: dict[str, asyncio.Task[Any]] = {}  # the steps under way by name, and what runs them
        self._closed = False
        self._finished: asyncio.Future[None] | None = None  # `finish` waits for them

    async def run(self, step: Step[Any], caller: "asyncio.Task[Any]") -> Any:
        """Return the result of a step, or raise its error: as recorded, or by running it."""
        converter = result_converter(step.function)
        digest = digest_of(step.args, step.kwargs)  # before the function can change them
        record = self._memory.recall(step.name, step.type, digest)
        if record is None:
            text = await self._run_once(step, converter, digest, caller)
        elif record.error is None:
            text = record.result or "null"
        else:
            error = load_error(record.error)
            self._errors.add(
                StepError(step.name, step.type, digest, error, caller, record.tries, 0.0, is_recorded=True)
            )
            raise error
        return load_result(step.name, text, converter)

    async def finish(self) -> None:
        """Begin no more steps, and wait for those under way: their tasks may outlive the handler, e.g. of a gather."""
        self._closed = True
        if self._running:
            self._finished = asyncio.get_running_loop().create_future()
            await self._finished

    def cancel(self) -> None:
        """Cancel the steps under way."""
        for task in self._running.values():
            task.cancel()

    async def _run_once(
        self, step: Step[Any], converter: Converter, digest: int | None, caller: "asyncio.Task[Any]"
    ) -> str:
        if self._closed:
            raise asyncio.CancelledError
        if step.name in self._running:
            raise InvalidStep(f'step "{step.name}" is awaited twice at the same time: call ctx.step() for each')
        task = asyncio.current_task(self._loop)
        assert task is not None
        self._running[step.name] = task
        try:
            with step_span(step.base_name, step.name, step.type) as span:
                return await self._run_tries(step, converter, digest, caller, span)
        finally:
            del self._running[step.name]
            if self._finished is not None and not self._running and not self._finished.done():
                self._finished.set_result(None)

    async def _run_tries(
        self,
        step: Step[Any],
        converter: Converter,
        digest: int | None,
        caller: "asyncio.Task[Any]",
        span: "Span | None",
    ) -> str:
        """Run a step until it succeeds, record the result, and return it."""
        tries = 0 if step.options.tries == 1 else await self._continue_pauses(step, caller)
        while True:
            began_at = time.monotonic()
            tries += 1
            if span is not None:
                span.set_attribute("awa.step.tries", tries)
            try:
                if step.type == "transaction":
                    return await self._transact(step, converter, digest, tries)
                text = self._dump(step, converter, await _limited(step, self._call(step)))
                break
            except InvalidStep:
                raise
            except Exception as error:
                if tries >= step.options.tries or isinstance(error, Outcome):
                    took_s = time.monotonic() - began_at
                    self._errors.add(StepError(step.name, step.type, digest, error, caller, tries, took_s))
                    raise
            await self._pause(step, tries, caller)
        took_s = time.monotonic() - began_at
        await self._memory.record(step.name, step.type, tries=tries, took_s=took_s, digest=digest, result=text)
        return text

    async def _call(self, step: Step[Any]) -> Any:
        call = functools.partial(step.function, *step.args, **step.kwargs)
        if inspect.iscoroutinefunction(step.function):
            return await call()
        # A value is a time or a random number: it needs no thread.
        value = call() if step.type == "value" else await self._threads.run(call)
        return await value if inspect.isawaitable(value) else value

    async def _transact(self, step: Step[Any], converter: Converter, digest: int | None, tries: int) -> str:
        new = self._memory.new(step.name, step.type, digest=digest, tries=tries)
        dump = functools.partial(self._dump, step, converter)
        text = await _limited(step, self._transactions.run_step(self._memory, new, step, dump))
        self._memory.add(step.name, step.type, digest=digest, tries=tries, result=text)
        return text

    def _dump(self, step: Step[Any], converter: Converter, value: object) -> str:
        text = dump_result(step.name, value, converter, self._max_result_bytes)
        self._memory.check_size(step.name, text)
        return text

    async def _continue_pauses(self, step: Step[Any], caller: "asyncio.Task[Any]") -> int:
        """Return how many tries earlier attempts made, after the pause that followed the last one."""
        for tries in range(step.options.tries - 1, 0, -1):  # short pauses have no record
            pause = self._memory.get(_pause_name(step, tries))
            if pause is not None:
                due = self._memory.due(pause)
                if due is not None and due.left_s > 0:
                    await self._waits.wait(Wait(caller, due))
                return tries
        return 0

    async def _pause(self, step: Step[Any], tries: int, caller: "asyncio.Task[Any]") -> None:
        await self._check_stop(caller)
        pause = min(step.options.base * 2 ** min(tries - 1, 30), MAX_PAUSE)
        if pause.total_seconds() < IN_PLACE_S:
            await asyncio.sleep(pause.total_seconds())
            await self._check_stop(caller)
        else:
            due = await self._memory.record(_pause_name(step, tries), "timer", delay=pause)
            if due is not None:
                await self._waits.wait(Wait(caller, due))


async def _limited(step: Step[Any], work: Coroutine[Any, Any, T]) -> T:
    """Run one try, within its time. Durable calls are refused inside it: see `current_step`."""
    token = current_step.set(step.name)
    try:
        if step.options.timeout is None:
            return await work
        return await _with_timeout(step.name, step.options.timeout.total_seconds(), work)
    finally:
        current_step.reset(token)


async def _with_timeout(name: str, limit_s: float, work: Coroutine[Any, Any, T]) -> T:
    try:
        async with asyncio.timeout(limit_s) as timeout:
            return await work
    except TimeoutError:
        if timeout.expired():
            raise StepTimeout(f'step "{name}" took longer than {limit_s:.3g} s') from None
        raise


def _pause_name(step: Step[Any], tries: int) -> str:
    return f"{step.name}: pause {tries}"
