"""Handlers that wait for tokens of a rate limit."""  # F14

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit, urlunsplit

import pytest

import awa_py as awa
from awa_py import App, BatchJob, Context, State
from awa_py.background import cancel_and_wait
from awa_py.store.rate_limits import delete_rate_limit, drain_rate_limit
from awa_py.store.session import Session
from tests.integration.test_rates import HOUR, bucket, limit, take
from tests.support import (
    PATIENCE_S,
    QUICK,
    count,
    drain,
    eventually,
    run_one,
    running,
    seconds,
    with_settings,
    working,
)
from tests.wire import Wire, counted

pytestmark = pytest.mark.integration


@asynccontextmanager
async def exhausted(app: App, session: Session) -> AsyncIterator[App]:
    """No token comes within an hour."""
    await limit(session, "10/s")
    await drain_rate_limit(session, "gh", HOUR)
    async with app:
        yield app


async def asks(session: Session) -> bool:
    """Whether somebody's ask has been answered."""
    answered = """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                  AND application_name = 'awa rates' AND state = 'idle' AND query LIKE '-- take_tokens%'"""
    return bool(await count(session.connection, answered))


class TestHandlers:
    async def test_an_asynchronous_handler_waits(self, app: App, session: Session) -> None:
        await limit(session, "20/s", 1)
        ran: list[float] = []

        @app.job
        async def work(ctx: Context) -> None:
            await ctx.rate_limit("gh")
            ran.append(time.monotonic())

        async with app:
            await app.enqueue_many([app.new("work") for _ in range(21)])
            await drain(app)
        assert len(ran) == 21
        assert ran[-1] - ran[0] > 0.95  # the first may be late, by the time of an answer

    async def test_a_synchronous_handler_waits(self, app: App, session: Session) -> None:
        await limit(session, "20/s", 1)
        ran: list[float] = []

        @app.job
        def work(ctx: Context) -> None:
            ctx.rate_limit("gh")
            ran.append(time.monotonic())

        async with app:
            await app.enqueue_many([app.new("work") for _ in range(21)])
            await drain(app)
        assert len(ran) == 21
        assert ran[-1] - ran[0] > 0.95

    async def test_a_loop_of_a_threads_own_may_await_it_too(self, app: App, session: Session) -> None:
        await limit(session, "20/s", 1)

        @app.job
        def work(ctx: Context) -> str:
            async def ask() -> str:
                await ctx.rate_limit("gh")
                return "granted"

            return asyncio.run(ask())

        assert (await run_one(app, "work")).result == "granted"

    async def test_an_unknown_limit_fails_the_attempt(self, app: App) -> None:  # F14
        @app.job
        async def work(ctx: Context) -> None:
            await ctx.rate_limit("slack")

        job = await run_one(app, "work")
        assert job.state is State.RETRYABLE
        assert 'there is no rate limit "slack": `awa rate set slack' in job.errors[-1]["error"]

    async def test_more_than_can_ever_be_there_fails_the_attempt(self, app: App, session: Session) -> None:
        await limit(session, "1/s")

        @app.job
        async def work(ctx: Context, tokens: int, max_wait: str | None = None) -> None:
            await ctx.rate_limit("gh", tokens, max_wait=max_wait)

        for args in ({"tokens": 100}, {"tokens": 5, "max_wait": "3s"}, {"tokens": 100, "max_wait": "1h"}):
            job = await run_one(app, "work", args)
            assert "ask for fewer, or set a larger burst" in job.errors[-1]["error"]
        job = await run_one(app, "work", {"tokens": 0})
        assert "tokens is a number from 1 on" in job.errors[-1]["error"]

    async def test_many_tokens_are_waited_for_however_long_they_take(self, database_url: str, session: Session) -> None:
        """More than what is taken ahead by those who want one."""
        app = with_settings(database_url, replace(QUICK, shutdown_timeout=seconds(0.2)))
        await limit(session, "1/s")

        @app.job
        async def work(ctx: Context) -> None:
            await ctx.rate_limit("gh", 31)

        async with app, working(app):
            await app.enqueue("work")
            await eventually(lambda: is_promised(session, 29))

    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    async def test_no_longer_than_max_wait_then_the_attempt_is_given_back(
        self, app: App, session: Session, kind: str
    ) -> None:
        @app.job
        async def in_loop(ctx: Context) -> None:
            await ctx.rate_limit("gh", max_wait="1s")

        @app.job
        def in_thread(ctx: Context) -> None:
            ctx.rate_limit("gh", max_wait="1s")

        async with exhausted(app, session):
            job = await run_one(app, kind)
            assert (job.state, job.attempt, job.errors) == (State.SCHEDULED, 0, [])
            wait = job.run_at - await session.now()
            assert seconds(40) < wait <= seconds(60)  # F14

    async def test_a_handler_may_see_for_how_long(self, app: App, session: Session) -> None:
        @app.job
        async def work(ctx: Context) -> dict[str, object]:
            try:
                await ctx.rate_limit("gh", max_wait=0)
            except awa.RateLimited as limited:
                return {"name": limited.name, "s": limited.retry_after.total_seconds(), "text": str(limited)}
            return {}

        await limit(session, "1/30s")
        await take(session)
        result = (await run_one(app, "work")).result
        assert result["name"] == "gh"
        assert 1 <= result["s"] <= 30
        assert result["text"].startswith('rate limit "gh": come again in ')

    async def test_a_batch_handler_asks_the_app(self, app: App, session: Session) -> None:
        await limit(session, "100/s")

        @app.job(batch=10)
        async def work(jobs: list[BatchJob]) -> None:
            await app.rate_limit("gh", len(jobs))

        async with app:
            await app.enqueue_many([app.new("work") for _ in range(30)])
            await drain(app)
        assert await count(session.connection, "SELECT count(*) FROM awa.completed") == 30
        assert (await bucket(session))["tokens"] < 100

    async def test_who_waits_without_max_wait_is_served_however_many_come_after_it(
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They take all that comes within their max_wait, ten times as many as tokens come."""
        for name, value in {"LONGEST_S": 2.0, "AHEAD_S": 0.3, "SOONEST_S": 0.1}.items():
            monkeypatch.setattr(f"awa_py.rate_limiter.{name}", value)
        await limit(session, "20/s", 1)
        await take(session, callers=40)
        refused = 0

        async def come_again_and_again() -> None:
            nonlocal refused
            while True:
                try:
                    await app.rate_limit("gh", max_wait="2s")
                except awa.RateLimited:
                    refused += 1
                    await asyncio.sleep(0.25)

        async with app:
            others = [asyncio.create_task(come_again_and_again()) for _ in range(100)]
            try:
                await eventually(lambda: refused > 100)
                async with asyncio.timeout(6):
                    await asyncio.gather(*(app.rate_limit("gh") for _ in range(10)))
            finally:
                await cancel_and_wait(*others)

    async def test_the_app_has_to_be_open(self, app: App) -> None:
        with pytest.raises(awa.AwaError, match="not open"):
            await app.rate_limit("gh")


async def is_promised(session: Session, tokens: float) -> bool:
    return bool((await bucket(session))["tokens"] <= -tokens)


class TestEnds:
    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    @pytest.mark.parametrize("promised", [True, False])
    async def test_a_cancelled_job_waits_no_longer(self, app: App, session: Session, kind: str, promised: bool) -> None:
        ended: list[type[BaseException]] = []

        @app.job
        async def in_loop(ctx: Context) -> None:
            try:
                await ctx.rate_limit("gh")
            except BaseException as error:
                ended.append(type(error))
                raise

        @app.job
        def in_thread(ctx: Context) -> None:
            try:
                ctx.rate_limit("gh")
            except BaseException as error:
                ended.append(type(error))
                raise

        async with exhausted(app, session), working(app):
            if promised:
                await drain_to(session, 9)
            job = await app.enqueue(kind)
            await eventually(lambda: running(app, job.id))
            await eventually(lambda: asks(session))
            await app.cancel(job.id)
            began = time.monotonic()
            with pytest.raises(awa.JobCancelled):
                await app.result(job.id, timeout="20s")
            assert time.monotonic() - began < 6
        assert ended == [awa.HandlerStopped if kind == "in_thread" else asyncio.CancelledError]

    async def test_a_thread_that_was_told_to_stop_does_not_begin_to_wait(self, app: App, session: Session) -> None:
        started, told = threading.Event(), []

        @app.job
        def work(ctx: Context) -> None:
            started.set()
            deadline = time.monotonic() + PATIENCE_S
            while not ctx.cancelled and time.monotonic() < deadline:
                time.sleep(0.01)
            try:
                ctx.rate_limit("gh")
            except awa.HandlerStopped as stopped:
                told.append(str(stopped))

        async with app, working(app):
            job = await app.enqueue("work")
            await eventually(started.is_set)
            await app.cancel(job.id)
            await app.result(job.id, timeout="20s")
        assert told == ["it does not wait for tokens: cancelled by user"]

    async def test_a_thread_whose_time_is_over_waits_no_longer(self, app: App, session: Session) -> None:
        ended = threading.Event()

        @app.job(timeout="0.5s", max_attempts=1)
        def work(ctx: Context) -> None:
            try:
                ctx.rate_limit("gh")
            finally:
                ended.set()

        async with exhausted(app, session), working(app):
            job = await app.enqueue("work")
            with pytest.raises(awa.JobFailed, match="timed out"):
                await app.result(job.id, timeout="20s")
            await eventually(ended.is_set)

    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    async def test_a_worker_that_stops_gives_back_at_once_what_waits_in_vain(
        self, database_url: str, session: Session, kind: str
    ) -> None:
        app = with_settings(database_url, replace(QUICK, shutdown_timeout=seconds(600)))
        waits_in(app)
        async with exhausted(app, session):
            async with working(app):
                jobs = [await app.enqueue(kind) for _ in range(3)]
                jobs.append(await app.enqueue("for_an_hour"))
                for job in jobs:
                    await eventually(partial(running, app, job.id))
                await eventually(lambda: asks(session))
            for job in jobs:  # the worker has stopped, within PATIENCE_S
                found = await app.get(job.id)
                assert (found.state, found.attempt, found.errors) == (State.SCHEDULED, 0, [])
                assert found.run_at - await session.now() <= seconds(60)

    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    async def test_at_the_end_of_the_shutdown_timeout_all_are_given_back(
        self, database_url: str, session: Session, kind: str
    ) -> None:
        app = with_settings(database_url, replace(QUICK, shutdown_timeout=seconds(0.2)))
        waits_in(app)
        async with exhausted(app, session):
            await drain_to(session, 9.5)
            async with working(app):
                job = await app.enqueue(kind)
                await eventually(lambda: is_promised(session, 1))
                await eventually(lambda: running(app, job.id))
                await eventually(lambda: asks(session))
            found = await app.get(job.id)
            assert (found.state, found.attempt, found.errors) == (State.AVAILABLE, 0, [])


def waits_in(app: App) -> None:
    @app.job
    async def in_loop(ctx: Context) -> None:
        await ctx.rate_limit("gh")

    @app.job
    def in_thread(ctx: Context) -> None:
        ctx.rate_limit("gh")

    @app.job
    async def for_an_hour(ctx: Context) -> None:
        await ctx.rate_limit("gh", max_wait="2h")


async def drain_to(session: Session, wait_s: float) -> None:
    """So that the next token comes in about that time."""
    await delete_rate_limit(session, "gh")
    await limit(session, "10/s")
    await drain_rate_limit(session, "gh", seconds(wait_s))


class TestConnection:
    async def test_jobs_that_do_not_ask_cost_nothing_and_those_that_do_ask_together(
        self, database_url: str, session: Session
    ) -> None:
        async with counted(database_url) as (url, wire):
            app = with_settings(url, QUICK)
            together = asyncio.Event()

            @app.job
            async def ask(ctx: Context) -> None:
                await together.wait()
                await ctx.rate_limit("gh")

            @app.job
            async def work(ctx: Context) -> None: ...

            await limit(session, "1000/s")
            async with app, working(app, {"default": 200}, concurrency=200):
                await app.result((await app.enqueue("work")).id, timeout="20s")
                assert "awa rates" not in wire.settings
                jobs = await app.enqueue_many([app.new("ask") for _ in range(200)])
                for job in jobs:
                    await eventually(partial(running, app, job.id))
                together.set()
                for job in jobs:
                    await app.result(job.id, timeout="20s")
            assert 1 <= wire.of("rates", "take_tokens") <= 5
            assert wire.settings["awa rates"]["synchronous_commit"] == "off"

    async def test_a_database_that_is_away_is_waited_for(self, app: App, session: Session) -> None:
        total = 100

        @app.job
        async def work(ctx: Context) -> None:
            await ctx.rate_limit("gh")

        await limit(session, "100/s", 1)
        async with app, working(app, {"default": 5}):
            await app.enqueue_many([app.new("work") for _ in range(total)])
            cut = 0
            while await count(session.connection, "SELECT count(*) FROM awa.completed") < total:
                cut += await count(
                    session.connection,
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND application_name = 'awa rates'",
                )
                await asyncio.sleep(0.1)
        assert cut > 1
        failed = await count(session.connection, "SELECT count(*) FROM awa.completed WHERE attempt > 1")
        assert failed == 0

    @pytest.mark.parametrize("max_wait", [None, "1h"])
    async def test_the_app_waits_for_a_database_that_is_away(
        self, database_url: str, session: Session, caplog: pytest.LogCaptureFixture, max_wait: str | None
    ) -> None:
        await limit(session, "1000/s")
        async with door(database_url) as (url, open_door, close_door), with_settings(url, QUICK) as app:
            await app.rate_limit("gh")
            await close_door()
            asking = asyncio.create_task(app.rate_limit("gh", max_wait=max_wait))
            await eventually(lambda: "cannot reach the database, retrying" in caplog.text)
            await asyncio.wait({asking}, timeout=0.5)
            assert not asking.done()
            await open_door()
            async with asyncio.timeout(PATIENCE_S):
                await asking

    @pytest.mark.parametrize("max_wait", [None, "1h"])
    async def test_an_app_that_closes_waits_for_no_database(
        self,
        database_url: str,
        session: Session,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
        max_wait: str | None,
    ) -> None:
        monkeypatch.setattr("awa_py.client.RECONNECT_DELAYS_S", (600,))
        await limit(session, "1000/s")
        async with door(database_url) as (url, _, close_door):
            async with with_settings(url, QUICK) as app:
                await app.rate_limit("gh")
                await close_door()
                asking = asyncio.create_task(app.rate_limit("gh", max_wait=max_wait))
                await eventually(lambda: "cannot reach the database, retrying" in caplog.text)
            _, waiting = await asyncio.wait({asking}, timeout=5)
            assert not waiting
            if max_wait is None:  # it stood in line
                assert asking.cancelled()
            else:
                assert isinstance(asking.exception(), awa.AwaError)


@asynccontextmanager
async def door(
    database_url: str,
) -> AsyncIterator[tuple[str, Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]]:
    """An open door to the database; how to open it again, and how to close it: then nobody is there."""
    parts = urlsplit(database_url)
    wire = Wire(parts.hostname or "127.0.0.1", parts.port or 5432)
    account, at, _ = parts.netloc.rpartition("@")
    servers = [await asyncio.start_server(wire.connect, "127.0.0.1", 0)]
    port = servers[0].sockets[0].getsockname()[1]

    async def open_again() -> None:
        servers.append(await asyncio.start_server(wire.connect, "127.0.0.1", port))

    async def close() -> None:
        server = servers.pop()
        server.close()
        await wire.hang_up()
        await server.wait_closed()

    try:
        yield urlunsplit(parts._replace(netloc=f"{account}{at}127.0.0.1:{port}")), open_again, close
    finally:
        if servers:
            await close()
