"""The part of a handler's Context that makes a job durable."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, time
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from awa_py.connections import Connection
from awa_py.durations import Duration
from awa_py.errors import InvalidSchedule, InvalidStep
from awa_py.model.children import Child, Join, Map, Spawn, Spawnable
from awa_py.model.durable import DurableCall, DurableRun, First, SignalWait, Step, Timer, parse_duration, type_name
from awa_py.model.schedule import Schedule

P = ParamSpec("P")
R = TypeVar("R")
Item = TypeVar("Item")


class Run(DurableRun, Protocol):
    """A durable run, as the Context uses it."""

    def idempotency_key(self, name: str) -> str: ...
    def transaction(self) -> AbstractAsyncContextManager[Connection]: ...
    def complete(self, result: object) -> None: ...


class DurableContext(ABC):
    """Steps, timers, signals and children. Each is a checkpoint: a later attempt of the job returns what was recorded.

    A call is awaited in an asynchronous handler; in a synchronous one, call its `result()`.
    """

    _run: Run | None = None  # begins with the first durable call

    @property
    def _durable(self) -> Run:
        if self._run is None:
            self._run = self._begin_run()
        return self._run

    @abstractmethod
    def _begin_run(self) -> Run: ...

    @overload
    def step(self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...
    @overload
    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Step[Any]:
        """Run the function once, and record its result. A synchronous function runs in a thread.

        The name identifies the step: a later attempt returns the result that was recorded under it. The second step of
        a name is `name#2`. If the attempt ends before the record is committed, the function runs again.
        """
        return Step(self._durable, name, "step", function, args, kwargs)

    @overload
    def side_effect(self, name: str, function: Callable[[], Awaitable[R]], /) -> Step[R]: ...
    @overload
    def side_effect(self, name: str, function: Callable[[], R], /) -> Step[R]: ...
    def side_effect(self, name: str, function: Callable[[], Any], /) -> Step[Any]:
        """Record a value that would differ in a later attempt, such as the time or a random number."""
        return Step(self._durable, name, "value", function, (), {})

    def transact(
        self,
        name: str,
        function: Callable[Concatenate[Connection, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Step[R]:
        """Call `function(connection, …)` in a transaction that also commits the record: its writes happen exactly once.

        If another worker has the job by then, everything is rolled back. After a serialization failure or a deadlock,
        the function is called again.
        """
        return Step(self._durable, name, "transaction", function, args, kwargs)

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        """Open a transaction that also completes the job: `async with ctx.transaction() as connection`.

        Its writes and the completion commit together, or not at all. Nothing can follow: return after the block.
        """
        return self._durable.transaction()

    def complete(self, result: object) -> None:
        """Set the job's result, inside `transaction()`."""
        self._durable.complete(result)

    def idempotency_key(self, name: str = "") -> str:
        """Return a key for calls to other services. It is the same in every attempt of this job, and costs nothing."""
        return self._durable.idempotency_key(name)

    def sleep(self, duration: Duration) -> Timer:
        """Wait without a slot: the handler is called again afterwards."""
        return Timer(self._durable, delay=parse_duration("sleep", duration))

    def sleep_until(self, moment: datetime | str, *, timezone: str | None = None) -> Timer:
        """Wait until a time with a time zone, or until clocks in `timezone` show a time: `"09:00"`."""
        run = self._durable  # first: its error fails the job at once
        if isinstance(moment, str):
            return Timer(run, schedule=_daily(moment, timezone or "UTC"))
        if timezone is not None:
            raise InvalidStep("sleep_until: timezone is for a time of day, such as 09:00")
        if not isinstance(moment, datetime):
            raise InvalidStep(f"sleep_until takes a datetime, or a time of day such as 09:00, not {type_name(moment)}")
        if moment.tzinfo is None:
            raise InvalidStep(f"sleep_until: {moment} has no time zone: use datetime.now(UTC), or pass 09:00")
        return Timer(run, until=moment)

    @overload
    def wait_signal(self, name: str, /, *, timeout: Duration | None = None) -> SignalWait[Any]: ...
    @overload
    def wait_signal(self, name: str, data_type: type[R], /, *, timeout: Duration | None = None) -> SignalWait[R]: ...
    def wait_signal(self, name: str, data_type: Any = Any, /, *, timeout: Duration | None = None) -> SignalWait[Any]:
        """Wait for the next signal of this name, or for the timeout, which returns None. The job holds no slot."""
        run = self._durable
        limit = None if timeout is None else parse_duration(f'wait_signal "{name}": timeout', timeout)
        return SignalWait(run, name, data_type, limit)

    def spawn(self, job: Spawnable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Spawn[Child[R]]:
        """Enqueue a child, once: `child = await ctx.spawn(resize, path)`. Await the child for its result."""
        return Spawn(self._durable, job.kind, [job.new(*args, **kwargs)], job.__wrapped__, joins=False)

    def map(self, job: Spawnable[[Item], R], items: Iterable[Item]) -> Map[R]:
        """Enqueue a child for each item, and wait for the results, in the order of the items. All or none, once.

        The job holds no slot while it waits. A failed child raises ChildFailed.
        """
        return Map(self._durable, job.kind, [job.new(item) for item in items], job.__wrapped__, joins=True)

    def gather(self, *children: Child[R]) -> Join[list[R]]:
        """Wait for several children: their results in the same order. A failed child raises ChildFailed."""
        for child in children:
            if not isinstance(child, Child):
                raise InvalidStep(f"gather() takes children, which spawn() returns, not {type_name(child)}")
        return Join(self._durable, children)

    def first(self, *waits: DurableCall[Any]) -> First:
        """Wait for the first of several waits. The winner is recorded."""
        return First(self._durable, waits)


def _daily(text: str, timezone: str) -> Schedule:
    """Return the schedule that fires when clocks show this time of day."""
    try:
        moment = time.fromisoformat(text)
    except ValueError:
        raise InvalidStep(f"sleep_until: {text!r} is not a time of day: write 09:00") from None
    if moment.tzinfo is not None or moment.microsecond:
        raise InvalidStep(f"sleep_until: {text!r}: write hours, minutes and seconds, and pass the zone as timezone=")
    try:
        return Schedule(f"{moment.second} {moment.minute} {moment.hour} * * *", timezone)
    except InvalidSchedule as error:
        raise InvalidStep(f"sleep_until: {error}") from None
