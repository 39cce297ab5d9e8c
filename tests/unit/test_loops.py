"""Work that begins in a context of its own and goes on there; and whether a thread's loop turns."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Coroutine
from typing import Any, NoReturn

import pytest

from awa_py.background import BLOCKED_S, MONITOR_INTERVAL_S, LoopMonitor, LoopThread, resume_in_context
from awa_py.text import describe_chain
from tests.support import eventually

VALUE: contextvars.ContextVar[str] = contextvars.ContextVar("VALUE", default="nobody's")


async def go_on(work: Coroutine[Any, Any, Any], context: contextvars.Context) -> Any:
    """Takes the first step of the work, and what follows with `in_context`."""
    return await resume_in_context(context, work, context.run(work.send, None))


async def test_the_work_has_its_context_before_and_after_it_waits() -> None:
    seen: list[str] = []

    async def work() -> str:
        VALUE.set("its own")
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(VALUE.get())
        return "done"

    context = contextvars.copy_context()
    assert await go_on(work(), context) == "done"
    assert seen == ["its own"] * 3
    assert VALUE.get() == "nobody's"
    assert context[VALUE] == "its own"


async def test_what_it_waits_for_is_handed_over() -> None:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> int:
        return await answer + 1

    asyncio.get_running_loop().call_soon(answer.set_result, 41)
    assert await go_on(work(), contextvars.copy_context()) == 42


async def test_what_failed_is_raised_inside_and_may_be_caught_there() -> None:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        VALUE.set("its own")
        try:
            await answer
        except KeyError as error:
            await asyncio.sleep(0)
            return f"{error} {VALUE.get()}"
        return "nothing"

    asyncio.get_running_loop().call_soon(answer.set_exception, KeyError("lost"))
    assert await go_on(work(), contextvars.copy_context()) == "'lost' its own"


async def test_what_it_raises_comes_out() -> None:
    async def work() -> NoReturn:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await go_on(work(), contextvars.copy_context())


async def test_it_is_the_task_that_awaits_it() -> None:
    async def work() -> list[object]:
        tasks: list[object] = [asyncio.current_task()]
        await asyncio.sleep(0)
        return [*tasks, asyncio.current_task()]

    task = asyncio.create_task(go_on(work(), contextvars.copy_context()))
    assert await task == [task, task]


async def test_a_task_that_it_makes_inherits_its_context() -> None:
    async def child() -> str:
        return VALUE.get()

    async def work() -> str:
        VALUE.set("its own")
        await asyncio.sleep(0)
        return await asyncio.create_task(child())

    assert await go_on(work(), contextvars.copy_context()) == "its own"


async def test_a_cancelled_task_interrupts_it() -> None:
    waits = asyncio.Event()
    ended: list[str] = []

    async def work() -> None:
        try:
            waits.set()
            await asyncio.Event().wait()
        finally:
            ended.append(VALUE.get())

    context = contextvars.copy_context()
    context.run(VALUE.set, "its own")
    task = asyncio.create_task(go_on(work(), context))
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["its own"]


async def test_it_may_go_on_after_a_cancellation() -> None:
    waits = asyncio.Event()

    async def work() -> str:
        try:
            waits.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "anyway"

    task = asyncio.create_task(go_on(work(), contextvars.copy_context()))
    await waits.wait()
    task.cancel()
    assert await task == "anyway"


async def test_timeouts_and_task_groups_work_inside() -> None:
    async def work() -> str:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(0))
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "in time"
        return "never"

    task = asyncio.create_task(go_on(work(), contextvars.copy_context()))
    assert await task == "in time"
    assert not task.cancelling()


async def test_what_it_dealt_with_is_no_cause_of_what_it_raises_later() -> None:
    async def work() -> NoReturn:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            pass
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        await go_on(work(), contextvars.copy_context())
    assert describe_chain(caught.value) == "ValueError: no"


async def test_a_thread_that_hangs_does_not_answer() -> None:
    async def sleep() -> None:
        await asyncio.sleep(3600)

    thread = LoopThread("test", sleep)
    assert thread.responds(within_s=0), "it was not started yet"
    thread.start()
    assert thread.responds(within_s=0), "it has only been asked"
    await eventually(lambda: thread.responds(within_s=0) and thread.responds(within_s=30))

    gate = threading.Event()
    thread.call(gate.wait)
    await eventually(lambda: not thread.responds(within_s=0.2))
    assert thread.responds(within_s=3600)
    gate.set()
    await eventually(lambda: thread.responds(within_s=0.2))

    await thread.stop()
    assert thread.responds(within_s=0), "nobody waits for what was stopped"


async def test_a_question_is_as_old_as_it_is_unanswered() -> None:
    """Whoever asks for the first time after long gets no false alarm."""

    async def sleep() -> None:
        await asyncio.sleep(3600)

    thread = LoopThread("test", sleep)
    thread.start()
    assert thread.responds(within_s=30)
    await asyncio.sleep(0.2)
    assert thread.responds(within_s=0.1)
    await thread.stop()


async def test_a_pulse_says_how_late_the_loop_turned() -> None:
    late: list[float] = []
    pulse = LoopMonitor(late.append)
    pulse.start()
    try:
        while not late:
            await asyncio.sleep(0.01)
        time.sleep(MONITOR_INTERVAL_S + 0.5)
        assert pulse.silent_s >= 0.5
        (check,) = pulse.checks()
        assert (check.name, check.problem) == ("event_loop", None)
        seen = len(late)
        while len(late) == seen:
            await asyncio.sleep(0.01)
        assert late[seen] >= 0.5
        assert pulse.silent_s < BLOCKED_S
    finally:
        pulse.stop()


async def test_a_pulse_that_has_stopped_says_no_more() -> None:
    late: list[float] = []
    pulse = LoopMonitor(late.append)
    pulse.start()
    pulse.stop()
    await asyncio.sleep(2 * MONITOR_INTERVAL_S)
    assert late == []


def test_a_loop_that_is_blocked_for_long_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    pulse = LoopMonitor(lambda _: None)
    now = time.monotonic()
    monkeypatch.setattr("awa_py.background.time.monotonic", lambda: now + BLOCKED_S + 12)
    (check,) = pulse.checks()
    assert check.problem == "the event loop has not turned for 42 s: something blocks it"
