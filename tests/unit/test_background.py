"""Coroutines that run in their own context, loop threads, and the event loop monitor."""

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

VALUE: contextvars.ContextVar[str] = contextvars.ContextVar("VALUE", default="default")


async def run_in(work: Coroutine[Any, Any, Any], context: contextvars.Context) -> Any:
    """Run the first step in the context, and the rest with resume_in_context."""
    return await resume_in_context(context, work, context.run(work.send, None))


async def test_coroutine_keeps_its_context_across_awaits() -> None:
    seen: list[str] = []

    async def work() -> str:
        VALUE.set("its own")
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(VALUE.get())
        return "done"

    context = contextvars.copy_context()
    assert await run_in(work(), context) == "done"
    assert seen == ["its own"] * 3
    assert VALUE.get() == "default"
    assert context[VALUE] == "its own"


async def test_coroutine_receives_the_result_it_awaits() -> None:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> int:
        return await answer + 1

    asyncio.get_running_loop().call_soon(answer.set_result, 41)
    assert await run_in(work(), contextvars.copy_context()) == 42


async def test_coroutine_can_catch_the_error_it_awaits() -> None:
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
    assert await run_in(work(), contextvars.copy_context()) == "'lost' its own"


async def test_error_of_the_coroutine_is_raised_to_the_caller() -> None:
    async def work() -> NoReturn:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await run_in(work(), contextvars.copy_context())


async def test_coroutine_runs_in_the_awaiting_task() -> None:
    async def work() -> list[object]:
        tasks: list[object] = [asyncio.current_task()]
        await asyncio.sleep(0)
        return [*tasks, asyncio.current_task()]

    task = asyncio.create_task(run_in(work(), contextvars.copy_context()))
    assert await task == [task, task]


async def test_child_task_inherits_the_context() -> None:
    async def child() -> str:
        return VALUE.get()

    async def work() -> str:
        VALUE.set("its own")
        await asyncio.sleep(0)
        return await asyncio.create_task(child())

    assert await run_in(work(), contextvars.copy_context()) == "its own"


async def test_cancelling_the_task_interrupts_the_coroutine() -> None:
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
    task = asyncio.create_task(run_in(work(), context))
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["its own"]


async def test_coroutine_can_ignore_a_cancellation() -> None:
    waits = asyncio.Event()

    async def work() -> str:
        try:
            waits.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "anyway"

    task = asyncio.create_task(run_in(work(), contextvars.copy_context()))
    await waits.wait()
    task.cancel()
    assert await task == "anyway"


async def test_timeouts_and_task_groups_work_in_the_coroutine() -> None:
    async def work() -> str:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(0))
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "in time"
        return "never"

    task = asyncio.create_task(run_in(work(), contextvars.copy_context()))
    assert await task == "in time"
    assert not task.cancelling()


async def test_handled_error_is_not_the_context_of_a_later_error() -> None:
    async def work() -> NoReturn:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            pass
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        await run_in(work(), contextvars.copy_context())
    assert describe_chain(caught.value) == "ValueError: no"


async def test_blocked_loop_thread_does_not_respond() -> None:
    async def sleep() -> None:
        await asyncio.sleep(3600)

    thread = LoopThread("test", sleep)
    assert thread.responds(within_s=0), "it has not started yet"
    thread.start()
    assert thread.responds(within_s=0), "the ping was only just sent"
    await eventually(lambda: thread.responds(within_s=0) and thread.responds(within_s=30))

    gate = threading.Event()
    thread.call(gate.wait)
    await eventually(lambda: not thread.responds(within_s=0.2))
    assert thread.responds(within_s=3600)
    gate.set()
    await eventually(lambda: thread.responds(within_s=0.2))

    await thread.stop()
    assert thread.responds(within_s=0), "a stopped thread counts as responding"


async def test_answered_ping_does_not_age() -> None:
    """A second call long after the first must not report a healthy thread as blocked."""

    async def sleep() -> None:
        await asyncio.sleep(3600)

    thread = LoopThread("test", sleep)
    thread.start()
    assert thread.responds(within_s=30)
    await asyncio.sleep(0.2)
    assert thread.responds(within_s=0.1)
    await thread.stop()


async def test_loop_monitor_reports_lag() -> None:
    lags: list[float] = []
    monitor = LoopMonitor(lags.append)
    monitor.start()
    try:
        while not lags:
            await asyncio.sleep(0.01)
        time.sleep(MONITOR_INTERVAL_S + 0.5)
        assert monitor.silent_s >= 0.5
        (check,) = monitor.checks()
        assert (check.name, check.problem) == ("event_loop", None)
        seen = len(lags)
        while len(lags) == seen:
            await asyncio.sleep(0.01)
        assert lags[seen] >= 0.5
        assert monitor.silent_s < BLOCKED_S
    finally:
        monitor.stop()


async def test_stopped_loop_monitor_reports_nothing() -> None:
    lags: list[float] = []
    monitor = LoopMonitor(lags.append)
    monitor.start()
    monitor.stop()
    await asyncio.sleep(2 * MONITOR_INTERVAL_S)
    assert lags == []


def test_loop_blocked_for_too_long_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = LoopMonitor(lambda _: None)
    now = time.monotonic()
    monkeypatch.setattr("awa_py.background.time.monotonic", lambda: now + BLOCKED_S + 12)
    (check,) = monitor.checks()
    assert check.problem == "the event loop has been blocked for 42 s by a handler or a library call"
