"""Timers, signals, and the first of several."""

import asyncio
import json
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from awa_py.errors import InvalidStep
from awa_py.model.children import Join
from awa_py.model.durable import DurableCall, First, Signal, SignalWait, Timer, Winner
from awa_py.model.job import FIRST_YEAR, LAST_YEAR
from awa_py.store.checkpoints import SignalAnswer, SignalRequest
from awa_py.worker.durable.children import Children
from awa_py.worker.durable.memory import Memory
from awa_py.worker.durable.recorder import NowRequest
from awa_py.worker.durable.values import load_result, type_converter
from awa_py.worker.durable.waits import DueAt, Wait, Waits


@dataclass(frozen=True, slots=True)
class _RecordedSignal:
    name: str
    data: Any
    sent_at: datetime


class Timers:
    """Waits for times, signals, and the first of several waits, for one attempt."""

    def __init__(self, memory: Memory, waits: Waits, children: Children) -> None:
        self._memory = memory
        self._waits = waits
        self._children = children

    async def sleep(self, timer: Timer, caller: "asyncio.Task[Any]") -> None:
        """Wait for a timer. Begin it if that has not happened yet."""
        due = await self._due(timer)
        if due is not None and due.left_s > 0:
            await self._waits.wait(Wait(caller, due))

    async def wait_signal(self, wait: SignalWait[Any], caller: "asyncio.Task[Any]") -> Signal[Any] | None:
        """Return the next signal of a name, or None after the timeout."""
        while True:
            answer = await self._take_signal(wait)
            if not answer.is_open:
                return _signal(wait, answer.result)
            await self._waits.wait(Wait(caller, DueAt.from_answer(answer.due, time.monotonic()), (wait.signal,)))

    async def first(self, first: First, caller: "asyncio.Task[Any]") -> Winner:
        """Return the first wait that is over. Record which one it is."""
        record = self._memory.recall(first.name, "choice")
        if record is not None:
            index = load_result(first.name, record.result, type_converter(int))
            if index is None or not 0 <= index < len(first.waits):
                raise InvalidStep(
                    f'"{first.name}": the recorded winner is number {index}, and there are {len(first.waits)} waits now'
                )
            _, value = await self._poll(first.waits[index], Wait(caller))
            return Winner(index, value)
        while True:
            wait = Wait(caller)
            # A signal that an earlier attempt took has won, whatever is over by now.
            for index, call in sorted(enumerate(first.waits), key=lambda each: not self._is_taken(each[1])):
                is_over, value = await self._poll(call, wait)
                if is_over:
                    await self._memory.record(first.name, "choice", result=str(index))
                    return Winner(index, value)
            await self._waits.wait(wait)

    async def _poll(self, call: DurableCall[Any], wait: Wait) -> tuple[bool, Any]:
        """Return whether a wait is over, and its result. If it is not, add what it waits for to `wait`."""
        if isinstance(call, SignalWait):
            answer = await self._take_signal(call)
            if not answer.is_open:
                return True, _signal(call, answer.result)
            due = DueAt.from_answer(answer.due, time.monotonic())
            wait.signals = (*wait.signals, call.signal)
        elif isinstance(call, Join):
            awaited = self._children.awaited(call)
            ended = await self._children.look(awaited)
            if ended is not None:
                return True, self._children.results(call, ended)
            wait.children = (*wait.children, awaited)
            due = None
        else:
            due = await self._due(cast(Timer, call))
            if due is None or due.left_s <= 0:
                return True, None
        if due is not None and (wait.due is None or due.moment < wait.due.moment):
            wait.due = due
        return False, None

    async def _due(self, timer: Timer) -> DueAt | None:
        record = self._memory.recall(timer.name, "timer")
        if record is not None:
            return self._memory.due(record)
        until = timer.until
        if timer.schedule is not None:
            until = timer.schedule.next(await self._memory.request(NowRequest()))
        if until is not None and not FIRST_YEAR <= until.year < LAST_YEAR:
            raise InvalidStep(f"sleep_until: {until} is not between the years {FIRST_YEAR} and {LAST_YEAR}")
        return await self._memory.record(timer.name, "timer", delay=timer.delay, until=until)

    async def _take_signal(self, wait: SignalWait[Any]) -> SignalAnswer:
        """Take the next signal of the wait's name, unless the wait has ended before."""
        record = self._memory.recall(wait.name, "signal")
        if record is not None and not record.is_open:
            return SignalAnswer(is_open=False, due=None, result=record.result)
        answer: SignalAnswer = await self._memory.request(
            SignalRequest(
                holder=self._memory.holder,
                name=wait.name,
                number=self._memory.number(wait.name),
                signal=wait.signal,
                timeout=wait.timeout,
            )
        )
        if not answer.is_open or answer.due is not None:
            self._memory.add(wait.name, "signal", is_open=answer.is_open, result=answer.result)
        return answer

    def _is_taken(self, call: DurableCall[Any]) -> bool:
        record = self._memory.get(call.name)
        return isinstance(call, SignalWait) and record is not None and not record.is_open and record.result is not None


def _signal(wait: SignalWait[Any], text: str | None) -> Signal[Any] | None:
    if text is None:
        return None
    record = load_result(wait.name, text, type_converter(_RecordedSignal))
    data = load_result(wait.name, json.dumps(record.data), type_converter(wait.data_type))
    return Signal(record.name, data, record.sent_at)
