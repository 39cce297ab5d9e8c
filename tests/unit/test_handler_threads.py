"""The threads of synchronous handlers: how calls reach them and come back."""

import asyncio
import contextvars
import gc
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from awa_py.worker.handler_threads import HandlerThreads, ThreadCall
from awa_py.worker.in_flight import InFlightJobs
from awa_py.worker.outcomes import StopReason

PATIENCE_S = 20.0


def new_threads() -> HandlerThreads:
    return HandlerThreads(InFlightJobs({"default": 100}, 100))


def new_call() -> Any:
    return SimpleNamespace(renewed_at=0.0, stop=None, queue="default", mark_abandoned=lambda: None, fields=dict)


def handler_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("awa-handler")}


async def test_calls_that_run_at_once_have_a_thread_each() -> None:
    barrier = threading.Barrier(5)
    async with new_threads() as threads:
        await asyncio.gather(*(threads.run(lambda: barrier.wait(PATIENCE_S), new_call()) for _ in range(5)))


async def test_calls_one_after_another_share_a_thread() -> None:
    async with new_threads() as threads:
        names = {await threads.run(threading.current_thread, new_call()) for _ in range(5)}
    assert len(names) == 1


async def test_calls_that_end_while_the_loop_is_busy_cause_one_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    wake_ups: list[Callable[[], object]] = []
    before = handler_threads()
    async with new_threads() as threads:
        with monkeypatch.context() as patch:
            patch.setattr(loop, "call_soon_threadsafe", wake_ups.append)
            tasks = [asyncio.create_task(threads.run(lambda: None, new_call())) for _ in range(10)]
            await asyncio.sleep(0)  # each has submitted its call
            await threads.__aexit__()
            for thread in handler_threads() - before:
                thread.join(PATIENCE_S)
        assert len(wake_ups) == 1
        wake_ups[0]()
        assert await asyncio.gather(*tasks) == [None] * 10


async def test_threads_end_with_the_context() -> None:
    before = handler_threads()
    async with new_threads() as threads:
        thread = await threads.run(threading.current_thread, new_call())
        assert thread in handler_threads() - before
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


async def test_function_runs_in_a_copy_of_the_context() -> None:
    variable = contextvars.ContextVar("variable", default="default")
    variable.set("outer")

    def change() -> str:
        seen = variable.get()
        variable.set("inner")
        return seen

    async with new_threads() as threads:
        assert await threads.run(change, new_call()) == "outer"
    assert variable.get() == "outer"


async def test_stop_request_leaves_the_end_to_the_handler() -> None:
    started, release = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        release.wait(PATIENCE_S)
        return "the end"

    call = new_call()
    async with new_threads() as threads:
        task = asyncio.create_task(threads.run(work, call))
        await asyncio.to_thread(started.wait, PATIENCE_S)
        call.stop = StopReason.CANCELLED
        task.cancel()
        await asyncio.sleep(0)
        release.set()
        assert await task == "the end"


def test_abandoned_thread_may_outlive_the_loop() -> None:
    started, release = threading.Event(), threading.Event()
    found: list[threading.Thread] = []

    def work() -> None:
        found.append(threading.current_thread())
        started.set()
        release.wait(PATIENCE_S)

    async def abandon() -> None:
        async with new_threads() as threads:
            task = asyncio.create_task(threads.run(work, new_call()))
            await asyncio.to_thread(started.wait, PATIENCE_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(abandon())
    release.set()
    found[0].join(PATIENCE_S)
    assert not found[0].is_alive()


async def test_cancelled_call_is_not_run() -> None:
    called: list[bool] = []
    call = ThreadCall(lambda: called.append(True), asyncio.get_running_loop())
    assert call.cancel()
    assert not call.run()
    assert called == []


async def test_call_that_runs_cannot_be_cancelled() -> None:
    call = ThreadCall(lambda: None, asyncio.get_running_loop())
    assert call.run()
    assert not call.cancel()


async def test_end_that_arrives_during_a_cancellation_is_kept() -> None:
    call = ThreadCall(lambda: "the end", asyncio.get_running_loop())
    call.wait().cancel()
    call.run()
    call.collect()
    assert await call.wait() == "the end"


async def test_failed_call_is_freed_without_the_garbage_collector() -> None:
    class Argument:
        pass

    def fail(argument: Argument) -> None:
        raise LookupError

    async def run(argument: Argument) -> None:
        with pytest.raises(LookupError):
            await threads.run(lambda: fail(argument), new_call())

    argument = Argument()
    freed = weakref.ref(argument)
    gc.disable()
    try:
        async with new_threads() as threads:
            await run(argument)
            del argument
            await threads.run(lambda: None, new_call())  # the thread has let go of the first call
            assert freed() is None
    finally:
        gc.enable()
