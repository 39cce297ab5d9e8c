"""Timers of durable jobs: a long one suspends the job, which holds no slot; a short one is waited for in place."""

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from awa_py import App, Context, State, Suspended
from awa_py.store.session import Session
from tests.support import count, drain, eventually, working
from tests.waiting import HOUR_S, LONG, all_waiting, is_waiting, pass_time, waiting_job

pytestmark = pytest.mark.integration


class TestSuspension:
    async def test_sleeping_job_holds_no_slot(self, app: App) -> None:  # Y5
        @app.job
        async def sleep(ctx: Context) -> None:
            await ctx.sleep("30d")

        @app.job
        async def quick() -> str:
            return "ran"

        async with app, working(app, {"default": 1}, concurrency=1):
            sleeping = [await app.enqueue("sleep") for _ in range(3)]
            await eventually(lambda: all_waiting(app, [job.id for job in sleeping]))
            assert await app.result(await app.enqueue("quick"), timeout=LONG) == "ran"
            job = await app.get(sleeping[0])
        assert (job.worker_id, job.heartbeat_at) == (None, None)
        assert timedelta(days=29) < job.run_at - job.created_at < timedelta(days=31)

    async def test_job_goes_on_when_its_timer_fires(self, app: App) -> None:
        moments = []

        @app.job
        async def sleep(ctx: Context) -> str:
            moments.append(asyncio.get_running_loop().time())
            await ctx.sleep("1.5s")
            return "awake"

        async with waiting_job(app, "sleep") as job_id:
            assert await app.result(job_id, timeout=LONG) == "awake"
        assert len(moments) == 2
        assert moments[1] - moments[0] >= 1.45

    async def test_short_sleep_stays_in_place(self, app: App) -> None:
        @app.job
        async def sleep(ctx: Context) -> float:
            loop = asyncio.get_running_loop()
            began_at = loop.time()
            await ctx.sleep("100ms")
            await ctx.sleep(0)
            return loop.time() - began_at

        async with app:
            job = await app.enqueue("sleep")
            await drain(app)
            assert (await app.get(job)).lease == 1
            assert await app.result(job, timeout=LONG) >= 0.1

    async def test_suspended_attempt_does_not_count(self, app: App, session: Session) -> None:
        """Not even if the job is suspended more often than it has attempts."""

        @app.job(max_attempts=2, timeout="10s")
        async def patient(ctx: Context) -> list[int]:
            found = []
            for _ in range(30):
                signal = await ctx.wait_signal("go", int)
                assert signal is not None
                found.append(signal.data)
            return found

        async with waiting_job(app, "patient") as job_id:
            for number in range(30):
                await eventually(lambda: is_waiting(app, job_id), every_s=0.005)
                assert (await app.get(job_id)).attempt == 0
                await app.signal(job_id, "go", number)
            assert await app.result(job_id, timeout=LONG) == list(range(30))
            job = await app.get(job_id)
        assert (job.attempt, job.lease, job.errors) == (1, 31, [])

    async def test_timer_begins_once(self, app: App, session: Session) -> None:  # Y2
        """An attempt that fails while its timer runs does not begin it anew."""
        fails = [True]

        @app.job(max_attempts=5)
        async def sleep(ctx: Context) -> None:
            timer = asyncio.ensure_future(_await(ctx.sleep("1h")))
            if fails and fails.pop():
                await eventually(lambda: count(session.connection, "SELECT count(*) FROM awa.checkpoints"))
                raise ValueError("once")
            await timer

        async with app:
            job = await app.enqueue("sleep")
            await drain(app)
            query = "SELECT until FROM awa.checkpoints WHERE name = 'sleep'"
            until = await session.connection.fetchval(query)
            await app.retry(job)
            await drain(app)
            assert await is_waiting(app, job.id)
            assert await session.connection.fetchval(query) == until == (await app.get(job)).run_at

    async def test_cancelled_job_does_not_go_on(self, app: App, session: Session) -> None:
        calls = []

        @app.job
        async def sleep(ctx: Context) -> None:
            calls.append(1)
            await ctx.sleep("1h")

        async with app:
            job = await app.enqueue("sleep")
            await drain(app)
            assert await app.cancel(job)
            await pass_time(app, session)
            assert (await app.get(job)).state is State.CANCELLED
        assert calls == [1]


class TestTogether:
    async def test_timers_and_steps_in_a_gather(self, app: App, session: Session) -> None:
        calls: list[str] = []

        async def work(name: str) -> str:
            calls.append(name)
            await asyncio.sleep(0.05)
            return name

        @app.job
        async def several(ctx: Context) -> list[Any]:
            calls = ctx.sleep("1h"), ctx.step("a", work, "a"), ctx.sleep("2h"), ctx.step("b", work, "b")
            return list(await asyncio.gather(*calls))

        async with app:
            job = await app.enqueue("several")
            await drain(app)
            assert await is_waiting(app, job.id)
            await pass_time(app, session)
            assert await is_waiting(app, job.id)  # for the second timer
            await pass_time(app, session)
            assert await app.result(job, timeout=LONG) == [None, "a", None, "b"]
        assert calls == ["a", "b"]

    async def test_step_after_a_timer_goes_on_beside_another_timer(self, app: App, session: Session) -> None:
        async def work() -> str:
            return "worked"

        @app.job
        async def several(ctx: Context) -> list[str]:
            async def early() -> str:
                await ctx.sleep("1h")
                return await ctx.step("work", work)

            async with asyncio.TaskGroup() as tasks:
                first = tasks.create_task(early())
                tasks.create_task(_await(ctx.sleep("3h")))
            return [first.result()]

        async with app:
            job = await app.enqueue("several")
            await drain(app)
            await pass_time(app, session)
            assert await is_waiting(app, job.id)
            assert await count(session.connection, "SELECT count(*) FROM awa.checkpoints WHERE name = 'work'") == 1
            await pass_time(app, session, 3 * HOUR_S)
            assert await app.result(job, timeout=LONG) == ["worked"]

    async def test_handler_in_a_thread_sleeps(self, app: App, session: Session) -> None:
        ends: list[str] = []

        @app.job
        def sleep(ctx: Context) -> str:
            try:
                ctx.sleep("1h").result()
            except Suspended:
                ends.append("suspended")
                raise
            finally:
                ends.append("finally")
            ctx.sleep("10ms").result()
            return "awake"

        async with app:
            job = await app.enqueue("sleep")
            await drain(app)
            assert await is_waiting(app, job.id)
            await pass_time(app, session)
            assert await app.result(job, timeout=LONG) == "awake"
        assert ends == ["suspended", "finally", "finally"]

    async def test_timers_with_keys_may_change_their_order(self, app: App, session: Session) -> None:
        order = ["a", "b"]

        @app.job
        async def several(ctx: Context) -> None:
            for key in order:
                await ctx.sleep("1h").key(key)

        async with app:
            job = await app.enqueue("several")
            await drain(app)
            order.reverse()
            await pass_time(app, session)
            await pass_time(app, session)
            assert (await app.get(job)).state is State.COMPLETED


class TestUntil:
    async def test_job_sleeps_until_a_time(self, app: App) -> None:
        moment = datetime.now(UTC) + timedelta(days=3)

        @app.job
        async def sleep(ctx: Context) -> None:
            await ctx.sleep_until(moment - timedelta(days=4))  # it has passed
            await ctx.sleep_until(moment)

        async with app:
            job = await app.enqueue("sleep")
            await drain(app)
            assert await is_waiting(app, job.id)
            assert (await app.get(job)).run_at == moment

    async def test_job_sleeps_until_a_time_of_day(self, app: App) -> None:
        @app.job
        async def sleep(ctx: Context) -> None:
            await ctx.sleep_until("09:00", timezone="Asia/Kolkata")

        async with app:
            # Within a second of nine o'clock, it would not wait.
            job = await app.enqueue("sleep")
            await drain(app)
            found = await app.get(job)
        if found.state is State.WAITING:
            assert found.run_at.astimezone(UTC).time().isoformat() == "03:30:00"
            assert timedelta(0) < found.run_at - found.created_at <= timedelta(days=1)

    @pytest.mark.parametrize(
        ("call", "problem"),
        [
            (lambda ctx: ctx.sleep(-1), "sleep: -1 is negative"),
            (lambda ctx: ctx.sleep(float("nan")), "sleep: nan is not a duration"),
            (lambda ctx: ctx.sleep("soon"), 'sleep: "soon" is not a duration'),
            (lambda ctx: ctx.sleep("2000000d"), "sleep: .* is too long"),
            (lambda ctx: ctx.sleep_until(datetime(2030, 1, 1)), "sleep_until: 2030-01-01 00:00:00 has no time zone"),
            (lambda ctx: ctx.sleep_until(date(2030, 1, 1)), "sleep_until .* not a date"),
            (lambda ctx: ctx.sleep_until(None), "sleep_until .* not a NoneType"),
            (lambda ctx: ctx.sleep_until(datetime(9500, 1, 1, tzinfo=UTC)), "is not between the years 1900 and 9000"),
            (lambda ctx: ctx.sleep_until("nine"), "sleep_until: 'nine' is not a time of day"),
            (lambda ctx: ctx.sleep_until("09:00", timezone="Mars/Base"), "sleep_until: .*Mars/Base"),
            (lambda ctx: ctx.sleep_until(datetime.now(UTC), timezone="UTC"), "timezone is for a time of day"),
        ],
    )
    async def test_time_that_cannot_be_waited_for_fails_the_job_at_once(
        self, app: App, call: Callable[[Context], Any], problem: str
    ) -> None:
        @app.job
        async def sleep(ctx: Context) -> None:
            await call(ctx)

        async with app:
            job = await app.enqueue("sleep")
            await drain(app)
            ended = await app.get(job)
        assert (ended.state, ended.attempt) == (State.FAILED, 1)
        assert re.search(problem, ended.errors[-1]["error"])


async def _await(call: Any) -> Any:
    return await call
