"""Handlers that are stopped by a timeout or a cancel."""

import asyncio
import threading
import time
from contextlib import suppress
from typing import NoReturn

import pytest

import awa_py as awa
from awa_py import App, Context, State
from awa_py.store.jobs import cancel_jobs
from awa_py.store.session import Session
from tests.support import (
    PATIENCE_S,
    QUICK,
    Gate,
    drain,
    eventually,
    nothing_runs,
    run_one,
    running,
    sample,
    states,
    working,
)

pytestmark = pytest.mark.integration


class TestTimeout:
    async def test_timeout_interrupts_an_async_handler(self, app: App) -> None:  # D3
        @app.job(timeout="0.2s")
        async def work(ctx: Context) -> None:
            await asyncio.sleep(PATIENCE_S)

        job = await run_one(app, "work")
        assert job.state is State.RETRYABLE
        assert job.errors[-1]["error"] == "HandlerTimeout: timed out after 0.2 s"

    async def test_timed_out_sync_handler_sees_it_and_holds_its_slot_until_it_ends(self, app: App) -> None:
        stop_reasons: list[str | None] = []
        go_on = threading.Event()

        @app.job(timeout="0.3s", max_attempts=1)
        def work(ctx: Context) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not ctx.cancelled and time.monotonic() < deadline:
                time.sleep(0.01)
            stop_reasons.append(ctx.cancel_reason)
            go_on.wait(PATIENCE_S)

        @app.job
        async def other() -> None: ...

        async with app, working(app, {"default": 1}) as worker:
            job = await app.enqueue("work")
            waiting = await app.enqueue("other")

            async def failed() -> bool:
                return (await app.get(job.id)).state is State.FAILED

            try:
                await eventually(failed)
                await eventually(lambda: stop_reasons)
                await asyncio.sleep(3 * QUICK.poll_interval.total_seconds())
                assert (await app.get(waiting.id)).state is State.AVAILABLE
                assert sample(worker, "awa_jobs_running", queue="default") == 1
            finally:
                go_on.set()
            assert await app.result(waiting.id, timeout="20s") is None
        assert stop_reasons == ["the attempt timed out"]

    async def test_timeout_error_raised_by_the_handler_is_an_ordinary_error(self, app: App) -> None:
        @app.job(timeout="30s")
        async def work() -> None:
            raise TimeoutError("the API was slow")

        job = await run_one(app, "work")
        assert job.errors[-1]["error"] == "TimeoutError: the API was slow"

    async def test_job_past_its_deadline_fails(self, app: App, session: Session) -> None:  # D3
        @app.job
        async def work() -> None:
            await asyncio.sleep(PATIENCE_S)

        job_id = await session.connection.fetchval(
            "SELECT awa.enqueue('work', deadline => clock_timestamp() + interval '1.5 seconds')"
        )
        async with app:
            await drain(app)
            assert (await app.get(job_id)).state is State.FAILED


class TestCancel:
    async def test_cancel_interrupts_an_async_handler_within_seconds(self, app: App) -> None:  # F7
        stop_reasons: list[str | None] = []

        @app.job
        async def work(ctx: Context) -> None:
            try:
                await asyncio.sleep(PATIENCE_S)
            finally:
                stop_reasons.append(ctx.cancel_reason)

        async with app, working(app):
            job = await app.enqueue("work")
            await eventually(lambda: running(app, job.id))
            assert await app.cancel(job.id)
            began = time.monotonic()
            with pytest.raises(awa.JobCancelled, match="cancelled by user"):
                await app.result(job.id, timeout="20s")
            assert time.monotonic() - began < 5
            assert (await app.get(job.id)).attempt == 1
        assert stop_reasons == ["cancelled by user"]

    async def test_handler_is_interrupted_once(self, app: App) -> None:
        """Every renewal of the lease reports the cancel request again; the handler's cleanup must not notice."""
        cleaned_up = asyncio.Event()

        @app.job
        async def work() -> None:
            try:
                await asyncio.sleep(PATIENCE_S)
            finally:
                await asyncio.sleep(4 * QUICK.heartbeat_interval.total_seconds())
                cleaned_up.set()

        async with app, working(app):
            job = await app.enqueue("work")
            await eventually(lambda: running(app, job.id))
            await app.cancel(job.id)
            with pytest.raises(awa.JobCancelled):
                await app.result(job.id, timeout="20s")
        assert cleaned_up.is_set()

    async def test_cancel_works_without_notifications(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("awa_py.db.listener.Listener.run", lambda self: asyncio.sleep(PATIENCE_S * 2))

        @app.job
        async def work() -> None:
            await asyncio.sleep(PATIENCE_S)

        async with app:
            worker = app.worker(["default"], maintenance=False)
            running_worker = asyncio.create_task(worker.run())
            job = await app.enqueue("work")
            await eventually(lambda: running(app, job.id))
            await app.cancel(job.id)
            with pytest.raises(awa.JobCancelled):
                await app.result(job.id, timeout="20s")
            worker.stop()
            await running_worker

    async def test_cancelled_sync_handler_that_returns_completes(self, app: App) -> None:  # F7
        gate = Gate()

        @app.job
        def work(ctx: Context) -> str:
            return gate(ctx)

        async with app, working(app):
            job = await app.enqueue("work")
            await eventually(gate.started.is_set)
            await app.cancel(job.id)
            assert await app.result(job.id, timeout="20s") == "the end"
        assert gate.stop_reasons == ["cancelled by user"]

    async def test_cancelled_sync_handler_that_raises_ends_cancelled(self, app: App) -> None:
        gate = Gate()

        @app.job
        def work(ctx: Context) -> NoReturn:
            gate(ctx)
            raise RuntimeError("giving up")

        async with app, working(app):
            job = await app.enqueue("work")
            await eventually(gate.started.is_set)
            await app.cancel(job.id)
            with pytest.raises(awa.JobCancelled, match="cancelled by user"):
                await app.result(job.id, timeout="20s")

    async def test_cancelled_async_handler_that_returns_completes(self, app: App) -> None:  # F7
        @app.job
        async def work() -> str:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(PATIENCE_S)
            return "done"

        async with app, working(app):
            job = await app.enqueue("work")
            await eventually(lambda: running(app, job.id))
            await app.cancel(job.id)
            assert await app.result(job.id, timeout="20s") == "done"

    async def test_wait_cancelled_returns_when_the_job_is_cancelled(self, app: App) -> None:
        @app.job
        async def work(ctx: Context) -> str:
            waiting = asyncio.ensure_future(ctx.wait_cancelled())
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(waiting)
                    return ctx.cancel_reason or ""

        async with app, working(app):
            job = await app.enqueue("work")
            await eventually(lambda: running(app, job.id))
            await app.cancel(job.id)
            assert await app.result(job.id, timeout="20s") == "cancelled by user"

    async def test_job_cancelled_right_after_its_claim_ends(self, app: App, session: Session) -> None:
        ran: list[int] = []

        @app.job
        async def work(number: int) -> None:
            ran.append(number)
            await asyncio.sleep(0.05)

        async with app, working(app):
            for _ in range(20):
                jobs = await app.enqueue_many([app.new("work", {"number": n}) for n in range(20)])
                await cancel_jobs(session, [job.id for job in jobs])
            await eventually(lambda: nothing_runs(session))
        assert set(await states(session)) <= {"cancelled", "completed"}
