"""Connections, leases and workers that are lost or end in the middle of a durable job."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from awa_py import App, Context, State
from awa_py.errors import HandlerStopped
from awa_py.model.durable import Suspended
from awa_py.store.session import Session
from tests.chaos.proxy import Trap, fault_proxy
from tests.durable import FailingOnce, Trace, checkpoints, end_of, retrying_at_once
from tests.support import PATIENCE_S, QUICK, eventually, look, new_owner, seconds, with_settings, working

pytestmark = pytest.mark.integration

RECORDS = frozenset({"record_checkpoints"})


class TestConnections:
    @pytest.mark.parametrize("action", ["lose answer", "lose request"])
    async def test_record_whose_answer_or_request_is_lost_is_written_once(
        self, database_url: str, session: Session, ran: Trace, fail_once: FailingOnce, action: Any
    ) -> None:
        async with fault_proxy(database_url) as (url, proxy):
            app = with_settings(url, QUICK)
            trap = Trap(statements=RECORDS, action=action)

            @app.job
            async def work(ctx: Context) -> list[int]:
                first = await ctx.step("a", ran.step, 1)
                if not trap.sprung:
                    proxy.trap = trap
                found = [first, await ctx.step("b", ran.step, 2)]
                fail_once("after b")
                return found

            async with app, retrying_at_once(app, session):
                job = await end_of(app, await app.enqueue("work"))
        assert (job.result, job.lease, ran, trap.sprung) == ([1, 2], 2, [1, 2], 1)

    async def test_timer_whose_record_had_no_answer_keeps_its_time(
        self, database_url: str, session: Session, ran: Trace
    ) -> None:
        async with fault_proxy(database_url) as (url, proxy):
            app = with_settings(url, QUICK)

            @app.job
            async def work(ctx: Context) -> None:
                if not ran:
                    proxy.trap = Trap(statements=RECORDS, action="lose answer")
                    ran.append("trap")
                await ctx.sleep("1h")

            async with app, working(app):
                job = await app.enqueue("work")
                await eventually(lambda: _state_is(app, job.id, State.WAITING))
                row = (await checkpoints(session, job.id))["sleep"]
                assert (await look(session, job.id)).run_at == row["until"]

    async def test_records_wait_for_the_database(self, database_url: str, session: Session, ran: Trace) -> None:
        async with fault_proxy(database_url) as (url, proxy):
            app = with_settings(url, QUICK)

            @app.job
            async def work(ctx: Context) -> list[int]:
                async def cut() -> int:
                    proxy.refuse()
                    asyncio.get_running_loop().call_later(0.5, lambda: asyncio.ensure_future(proxy.open()))
                    return int(await ran.step(1))

                return [await ctx.step("a", cut), await ctx.step("b", ran.step, 2)]

            async with App(database_url) as outside, app, working(app):
                job = await end_of(outside, await outside.enqueue("work"))
        assert (job.result, ran) == ([1, 2], [1, 2])

    async def test_worker_stops_while_a_record_waits_for_the_database(self, database_url: str, ran: Trace) -> None:
        async with fault_proxy(database_url) as (url, proxy):
            app = with_settings(url, replace(QUICK, shutdown_timeout=seconds(0.2)))

            @app.job
            async def work(ctx: Context) -> None:
                proxy.refuse()
                await ctx.step("a", ran.step, 1)

            async with App(database_url) as outside, app:
                await outside.enqueue("work")
                worker = app.worker(["default"], maintenance=False)
                task = asyncio.create_task(worker.run())
                await eventually(lambda: ran)
                worker.stop()
                async with asyncio.timeout(PATIENCE_S):
                    await asyncio.wait([task])


class TestLeases:
    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    async def test_attempt_that_lost_its_lease_records_nothing_and_stops(  # Y3
        self, app: App, session: Session, ran: Trace, kind: str
    ) -> None:
        stopped: list[str] = []
        ended = threading.Event()

        @app.job
        async def in_loop(ctx: Context) -> None:
            try:
                await ctx.step("a", _lose_leases, session)
                ran.append("went on")
            except asyncio.CancelledError:
                stopped.append("stopped")
                raise
            finally:
                ended.set()

        @app.job
        def in_thread(ctx: Context) -> None:
            try:
                ctx.step("a", _lose_leases, session).result()
                ran.append("went on")
            except HandlerStopped:
                stopped.append("stopped")
                raise
            finally:
                ended.set()

        async with app, working(app):
            job = await app.enqueue(kind)
            await eventually(ended.is_set)
        assert (stopped, ran) == (["stopped"], [])
        assert await checkpoints(session, job.id) == {}
        found = await look(session, job.id)
        assert (found.state, found.lease) == (State.RUNNING, 2)

    async def test_attempt_that_lost_its_lease_does_not_read_the_records_of_the_next(
        self, app: App, session: Session, ran: Trace
    ) -> None:
        ended = threading.Event()

        @app.job
        async def work(ctx: Context) -> None:
            await _lose_leases(session)
            try:
                await ctx.step("a", ran.step, 1)
            finally:
                ended.set()

        async with app:
            job = await app.enqueue("work")
            await session.connection.execute("UPDATE awa.ready SET lease = 1")
            async with working(app):
                await eventually(ended.is_set)
        assert ran == []
        assert (await look(session, job.id)).lease == 3

    @pytest.mark.parametrize("kind", ["spawning", "waiting"])
    async def test_attempt_that_lost_its_lease_to_a_running_one_spawns_nothing_and_does_not_wait(  # Y3
        self, app: App, session: Session, ran: Trace, kind: str
    ) -> None:
        ended = threading.Event()

        @app.job
        async def child() -> None:
            ran.append("child")

        @app.job
        async def spawning(ctx: Context) -> None:
            await _lose_leases(session)
            try:
                await ctx.spawn(child)
            finally:
                ended.set()

        @app.job
        async def waiting(ctx: Context) -> None:
            await _lose_leases(session)
            try:
                await ctx.sleep("1h")
            finally:
                ended.set()

        async with app, working(app):
            job = await app.enqueue(kind)
            await eventually(ended.is_set)
        found = await look(session, job.id)
        assert (found.state, found.lease, ran) == (State.RUNNING, 2, [])
        assert await checkpoints(session, job.id) == {}
        assert await session.connection.fetchval("SELECT count(*) FROM awa.jobs") == 1


class TestShutdown:
    @pytest.mark.parametrize("kind", ["in_loop", "in_thread", "in_gather"])
    async def test_stop_waits_for_the_steps_and_the_next_worker_goes_on_after_them(
        self, app: App, session: Session, ran: Trace, kind: str
    ) -> None:
        started, release = threading.Event(), threading.Event()

        def slow() -> None:
            started.set()
            release.wait(PATIENCE_S)
            ran.append("slow")

        async def quick(name: str) -> None:
            await asyncio.to_thread(started.wait)
            ran.append(name)

        @app.job
        async def in_loop(ctx: Context) -> str:
            await ctx.step("slow", slow)
            await ctx.step("b", ran.step, "b")
            return "done"

        @app.job
        def in_thread(ctx: Context) -> str:
            ctx.step("slow", slow).result()
            try:
                ctx.step("b", ran.sync_step, "b").result()
            except Suspended:
                ran.append("suspended")
                raise
            return "done"

        @app.job
        async def in_gather(ctx: Context) -> str:
            """One task comes to its next step while the other is in a step."""

            async def first() -> None:
                await ctx.step("quick", quick, "quick")
                await asyncio.to_thread(stopped.wait)
                await ctx.step("b", ran.step, "b")

            await asyncio.gather(first(), ctx.step("slow", slow))
            return "done"

        stopped = threading.Event()
        async with app:
            job = await app.enqueue(kind)
            worker = app.worker(["default"], maintenance=False)
            task = asyncio.create_task(worker.run())
            await eventually(started.is_set)
            worker.stop()
            stopped.set()
            await asyncio.wait([task], timeout=0.3)
            assert not task.done()
            release.set()
            async with asyncio.timeout(PATIENCE_S):
                await task
            assert ("slow" in ran, "b" in ran, worker.abandoned) == (True, False, 0)
            found = await app.get(job.id)
            assert (found.state, found.attempt, found.errors) == (State.AVAILABLE, 0, [])
            async with working(app):
                assert await app.result(job.id, timeout="20s") == "done"
        assert (ran.count("slow"), ran[-1]) == (1, "b")

    async def test_step_that_is_too_slow_for_the_shutdown_is_abandoned(self, database_url: str) -> None:
        app = with_settings(database_url, replace(QUICK, shutdown_timeout=seconds(0.2)))
        started, release = threading.Event(), threading.Event()

        def slow() -> None:
            started.set()
            release.wait(PATIENCE_S)

        @app.job
        async def work(ctx: Context) -> None:
            await ctx.step("slow", slow)

        async with app:
            job = await app.enqueue("work")
            worker = app.worker(["default"], maintenance=False)
            task = asyncio.create_task(worker.run())
            await eventually(started.is_set)
            worker.stop()
            async with asyncio.timeout(PATIENCE_S):
                await task
            assert worker.abandoned == 1
            release.set()
            found = await app.get(job.id)
        assert (found.state, found.attempt) == (State.AVAILABLE, 0)

    async def test_cancelled_job_interrupts_its_step(self, app: App, session: Session) -> None:
        started, interrupted = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            started.set()
            try:
                await asyncio.sleep(PATIENCE_S)
            except asyncio.CancelledError:
                interrupted.set()
                raise

        @app.job
        async def work(ctx: Context) -> None:
            await ctx.step("slow", slow)

        async with app, working(app):
            job = await app.enqueue("work")
            await started.wait()
            await app.cancel(job.id)
            await eventually(interrupted.is_set)
            assert (await end_of(app, job)).state is State.CANCELLED
        assert await checkpoints(session, job.id) == {}

    async def test_attempt_that_times_out_cancels_the_steps_of_other_tasks(self, app: App, session: Session) -> None:
        interrupted = asyncio.Event()

        async def slow() -> None:
            try:
                await asyncio.sleep(PATIENCE_S)
            except asyncio.CancelledError:
                interrupted.set()
                raise

        @app.job(max_attempts=1, timeout="300ms")
        async def work(ctx: Context) -> None:
            async def wait() -> None:
                await ctx.step("slow", slow)

            task = asyncio.create_task(wait())
            await asyncio.sleep(PATIENCE_S)
            await task

        async with app, working(app):
            job = await end_of(app, await app.enqueue("work"))
        assert (job.state, interrupted.is_set()) == (State.FAILED, True)


async def _state_is(app: App, job_id: int, state: State) -> bool:
    return (await app.get(job_id)).state is state


async def _lose_leases(session: Session) -> None:
    """Let another worker have all running jobs."""
    await session.connection.execute("UPDATE awa.running SET lease = lease + 1, worker_id = $1", new_owner())
