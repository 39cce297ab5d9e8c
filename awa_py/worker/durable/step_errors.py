"""Which errors of steps are recorded: those that the handler catches, so that each attempt takes the same branch."""

import asyncio
from dataclasses import dataclass
from typing import Any

from awa_py.worker.durable.memory import Memory
from awa_py.worker.durable.values import dump_error


@dataclass(slots=True, eq=False)
class StepError:
    """An error of a step. It is recorded if the handler catches it, and forgotten if it leaves the handler later."""

    name: str
    type: str
    digest: int | None
    error: Exception
    caller: "asyncio.Task[Any]"
    tries: int
    took_s: float
    is_recorded: bool = False

    @property
    def left_its_task(self) -> bool:
        """Return whether the task of the step ended with this error, e.g. in a gather."""
        task = self.caller
        return task.done() and not task.cancelled() and task.exception() is self.error


class StepErrors:
    """The errors that the steps of one attempt raised."""

    def __init__(self, memory: Memory, main: "asyncio.Task[Any]", *, max_bytes: int) -> None:
        """`main` is the task of the handler."""
        self._memory = memory
        self._main = main
        self._max_bytes = max_bytes
        self._errors: list[StepError] = []

    def add(self, error: StepError) -> None:
        self._errors.append(error)

    async def record_caught(self, caller: "asyncio.Task[Any]") -> None:
        """Record the errors that were caught, since `caller` makes another call after them."""
        if self._errors:
            is_main = caller is self._main
            await self._record([e for e in self._errors if e.caller is caller or (is_main and e.caller.done())])

    async def record_end(self, end: BaseException | None) -> None:
        """Record the errors that were caught until the end of the handler.

        `end` is the error that left the handler. Forget the recorded errors that led to it: their steps run again.
        """
        leaving = [] if end is None else [each for each in self._errors if _has_left(each, end)]
        caught = [each for each in self._errors if each not in leaving]
        if end is not None:  # nothing may have looked at the errors of other tasks
            caught = [each for each in caught if each.caller is self._main or not each.left_its_task]
        await self._record(caught)
        for each in leaving:
            if each.is_recorded:
                await self._memory.forget(each.name)

    async def _record(self, errors: list[StepError]) -> None:
        for each in errors:
            if not each.is_recorded:
                each.is_recorded = True
                text = dump_error(each.error, self._max_bytes)
                self._memory.check_size(each.name, text)
                await self._memory.record(
                    each.name,
                    each.type,
                    tries=each.tries,
                    took_s=each.took_s,
                    digest=each.digest,
                    error=text,
                )


def _has_left(step_error: StepError, end: BaseException) -> bool:
    """Return whether `end`, which left the handler, is this error, was raised because of it, or contains such a one.

    "Because of it": `from` the error; or while the error was handled, if the handler made no other call in between.
    Otherwise it had caught the error, and gone on.
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [end]
    while left:
        each = left.pop()
        if each is step_error.error:
            return True
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            left.append(each.__cause__)
            if not step_error.is_recorded:
                left.append(each.__context__)
            if isinstance(each, BaseExceptionGroup):
                left += each.exceptions
    return False
