"""A worker stops: running jobs finish, or are released."""

import asyncio
import threading
from dataclasses import replace

import pytest

from awa_py import App, Context, State
from awa_py.store.session import Session
from awa_py.store.workers import list_workers
from tests.support import (
    HASTY,
    PATIENCE_S,
    QUICK,
    Gate,
    beaten_since,
    eventually,
    look,
    seconds,
    with_settings,
    working,
)

pytestmark = pytest.mark.integration


class TestShutdown:  # F19
    async def test_running_job_finishes_after_a_stop(self, app: App, session: Session) -> None:
        gate = Gate()

        @app.job
        def work(ctx: Context) -> str:
            return gate(ctx)

        async with app:
            worker = app.worker(["default"], maintenance=False)
            task = asyncio.create_task(worker.run())
            job, later = await app.enqueue("work"), await app.enqueue("work", delay="1h")
            await eventually(gate.started.is_set)
            worker.stop()
            await app.retry(later.id)
            await asyncio.sleep(0.3)
            gate.open.set()
            async with asyncio.timeout(PATIENCE_S):
                await task
            assert (await app.get(job.id)).result == "the end"
            assert (await app.get(later.id)).state is State.AVAILABLE
        assert gate.stop_reasons == []

    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    async def test_job_that_is_too_slow_is_released_without_counting_the_attempt(
        self, database_url: str, kind: str
    ) -> None:
        app = with_settings(database_url, replace(QUICK, shutdown_timeout=seconds(0.2)))
        gate = Gate()

        @app.job
        async def in_loop() -> None:
            gate.started.set()
            await asyncio.sleep(PATIENCE_S)

        @app.job
        def in_thread(ctx: Context) -> str:
            return gate(ctx)

        async with app:
            job = await app.enqueue(kind)
            async with working(app):
                await eventually(gate.started.is_set)
            gate.open.set()
            found = await app.get(job.id)
        assert (found.state, found.attempt, found.errors) == (State.AVAILABLE, 0, [])

    async def test_thread_that_does_not_stop_counts_as_abandoned(self, database_url: str) -> None:
        app = with_settings(database_url, replace(QUICK, shutdown_timeout=seconds(0.2)))
        started, release = threading.Event(), threading.Event()

        @app.job
        def hanging() -> None:
            started.set()
            release.wait(PATIENCE_S)

        async with app:
            job = await app.enqueue("hanging")
            worker = app.worker(["default"], maintenance=False)
            task = asyncio.create_task(worker.run())
            await eventually(started.is_set)
            worker.stop()
            async with asyncio.timeout(PATIENCE_S):
                await task
            assert worker.abandoned == 1
            assert (await app.get(job.id)).state is State.AVAILABLE
            release.set()

    async def test_second_stop_interrupts_running_jobs(self, database_url: str) -> None:
        app = with_settings(database_url, replace(QUICK, shutdown_timeout=seconds(600)))
        started = asyncio.Event()

        @app.job
        async def work() -> None:
            started.set()
            await asyncio.sleep(600)

        async with app:
            job = await app.enqueue("work")
            worker = app.worker(["default"], maintenance=False)
            task = asyncio.create_task(worker.run())
            await started.wait()
            worker.stop()
            done, _ = await asyncio.wait({task}, timeout=0.3)
            assert not done
            worker.stop()
            async with asyncio.timeout(10):
                await task
            assert ((await app.get(job.id)).state, (await app.get(job.id)).attempt) == (State.AVAILABLE, 0)

    async def test_heartbeats_go_on_during_the_drain(self, database_url: str, session: Session) -> None:
        app = with_settings(database_url, HASTY)
        gate = Gate()

        @app.job
        def work(ctx: Context) -> str:
            return gate(ctx)

        async with app:
            job = await app.enqueue("work")
            worker = app.worker(["default"], maintenance=False)
            task = asyncio.create_task(worker.run())
            await eventually(gate.started.is_set)
            worker.stop()
            first = (await look(session, job.id)).heartbeat_at
            await eventually(lambda: beaten_since(session, job.id, first))
            gate.open.set()
            await task

    async def test_worker_can_be_stopped_at_any_moment_of_its_start(self, app: App, session: Session) -> None:
        @app.job
        async def work() -> None: ...

        async with app:
            for pause_s in (0, 0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.1):
                worker = app.worker(["default"], maintenance=True)
                task = asyncio.create_task(worker.run())
                await asyncio.sleep(pause_s)
                worker.stop()
                async with asyncio.timeout(PATIENCE_S):
                    await task
        assert await list_workers(session, staleness=seconds(10)) == []
