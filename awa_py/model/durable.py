"""What a durable job asks for: steps, timers and signals. The worker performs them.

A call is a description: nothing happens before it is awaited. Options are methods of the call, since its arguments are
those of the user's function.
"""

from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from awa_py import durations
from awa_py.durations import Duration
from awa_py.errors import InvalidDuration, InvalidStep
from awa_py.model.names import check_checkpoint_name
from awa_py.model.schedule import Schedule

T = TypeVar("T")
DEFAULT_BASE = timedelta(seconds=1)
MAX_PAUSE = timedelta(hours=1)


class Suspended(BaseException):
    """Ends a synchronous handler that waits. Let it pass: the handler is called again when the wait is over."""


class DurableRun(Protocol):
    """Performs the calls of one attempt."""

    def take_name(self, name: str) -> str: ...
    def return_name(self, name: str, numbered: str) -> None: ...
    def perform(self, call: "DurableCall[T]") -> Coroutine[Any, Any, T]: ...
    def perform_in_thread(self, call: "DurableCall[T]") -> T: ...


class DurableCall(Generic[T]):
    """Something that a durable job does or waits for: `await` it, or call `result()` in a synchronous handler."""

    __slots__ = ("_run", "_stem", "base_name", "name")
    is_wait = False  # whether `first` can wait for it

    def __init__(self, run: DurableRun, name: str) -> None:
        self._run = run
        self.base_name = self._stem = check_checkpoint_name(name)
        self.name = run.take_name(name)  # now, so that calls that are awaited together are numbered in source order

    def __await__(self) -> Generator[Any, Any, T]:
        return self._run.perform(self).__await__()

    def result(self) -> T:
        """Perform the call from a synchronous handler, and wait for it."""
        return self._run.perform_in_thread(self)

    def _rename(self, key: object) -> None:
        """Tell apart calls of one name by a key instead of a number."""
        keyed = f"{self.base_name}[{check_checkpoint_name(str(key))}]"
        self._run.return_name(self._stem, self.name)
        self._stem = keyed
        self.name = self._run.take_name(keyed)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """How a step is run: how often, with which pauses, and for how long."""

    tries: int = 1
    base: timedelta = DEFAULT_BASE
    timeout: timedelta | None = None


ONCE = StepOptions()


class Step(DurableCall[T]):
    """A function that runs once: its result is recorded, and returned in every later attempt."""

    __slots__ = ("args", "function", "kwargs", "options", "type")

    def __init__(
        self,
        run: DurableRun,
        name: str,
        call_type: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        if not callable(function):
            raise InvalidStep(f'step "{name}": a function was expected, not {type_name(function)}')
        super().__init__(run, name)
        self.type = call_type
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.options = ONCE

    def retry(self, tries: int, *, base: Duration = DEFAULT_BASE) -> "Step[T]":
        """Try up to `tries` times. The pause begins with `base`, and doubles up to an hour.

        During a long pause the job holds no slot; it goes on in a new attempt.
        """
        if not isinstance(tries, int) or isinstance(tries, bool) or not 1 <= tries <= 1000:
            raise InvalidStep(f'step "{self.name}": retry takes a number of tries from 1 to 1000, not {tries!r}')
        self.options = replace(self.options, tries=tries, base=_positive(f'step "{self.name}": base', base))
        return self

    def timeout(self, timeout: Duration) -> "Step[T]":
        """Raise StepTimeout if a try takes longer. A function in a thread goes on, and its result is ignored."""
        self.options = replace(self.options, timeout=_positive(f'step "{self.name}": timeout', timeout))
        return self

    def key(self, key: object) -> "Step[T]":
        """Name this step by a key: `ctx.step("resize", resize, path).key(path)`, if the order of a loop may change."""
        self._rename(key)
        return self


class Timer(DurableCall[None]):
    """A time to wait for: after `delay`, at `until`, or when `schedule` fires next."""

    __slots__ = ("delay", "schedule", "until")
    is_wait = True

    def __init__(
        self,
        run: DurableRun,
        *,
        delay: timedelta | None = None,
        until: datetime | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        super().__init__(run, "sleep")
        self.delay = delay
        self.until = until
        self.schedule = schedule

    def key(self, key: object) -> "Timer":
        """Name this timer, if the order of the calls may change."""
        self._rename(key)
        return self


class Signal(NamedTuple, Generic[T]):
    """A signal that was sent to the job."""

    name: str
    data: T
    sent_at: datetime


class SignalWait(DurableCall[Signal[T] | None]):
    """The next signal of a name, or None after the timeout."""

    __slots__ = ("data_type", "signal", "timeout")
    is_wait = True

    def __init__(self, run: DurableRun, signal: str, data_type: Any, timeout: timedelta | None) -> None:
        super().__init__(run, signal)
        self.signal = signal
        self.data_type = data_type
        self.timeout = timeout


@dataclass(frozen=True, slots=True)
class Winner:
    """The wait that ended first: its position among the arguments of `first`, and its result."""

    index: int
    value: Any


class First(DurableCall[Winner]):
    """The first of several waits. The winner is recorded."""

    __slots__ = ("waits",)

    def __init__(self, run: DurableRun, waits: Sequence[DurableCall[Any]]) -> None:
        if not waits:
            raise InvalidStep("first() needs at least one wait")
        for wait in waits:
            if not (isinstance(wait, DurableCall) and wait.is_wait):
                raise InvalidStep(f"first() takes waits: sleep(), wait_signal() or a child, not {type_name(wait)}")
        super().__init__(run, "first")
        self.waits = tuple(waits)


def type_name(value: object) -> str:
    """Return the name of the value's type with its article."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def parse_duration(what: str, duration: Duration) -> timedelta:
    """Return the duration, or raise InvalidStep: the next attempt would pass the same."""
    try:
        return durations.parse(duration)
    except InvalidDuration as error:
        raise InvalidStep(f"{what}: {error}") from None


def _positive(what: str, duration: Duration) -> timedelta:
    parsed = parse_duration(what, duration)
    if parsed <= timedelta(0):
        raise InvalidStep(f"{what} must be longer than 0")
    return parsed
