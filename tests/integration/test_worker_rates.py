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
from tests.proxy import CountingProxy, counting_proxy
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

pytestmark = pytest.mark.integration


@asynccontextmanager
async def exhausted(app: App, session: Session) -> AsyncIterator[App]:
    """Open the app, with a rate limit that has no token for an hour."""
    await limit(session, "10/s")
    await drain_rate_limit(session, "gh", HOUR)
    async with app:
        yield app


async def has_requested(session: Session) -> bool:
    """Return whether a worker's request for tokens has been answered."""
    answered = """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                  AND application_name = 'awa rates' AND state = 'idle' AND query LIKE '-- take_tokens%'"""
    return bool(await count(session.connection, answered))


class TestHandlers:
    async def test_asynchronous_handler_waits_for_tokens(self, app: App, session: Session) -> None:
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
        assert ran[-1] - ran[0] > 0.95  # the first may be late by the time of a request

    async def test_synchronous_handler_waits_for_tokens(self, app: App, session: Session) -> None:
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

    async def test_event_loop_in_a_thread_can_await_tokens(self, app: App, session: Session) -> None:
        await limit(session, "20/s", 1)

        @app.job
        def work(ctx: Context) -> str:
            async def ask() -> str:
                await ctx.rate_limit("gh")
                return "granted"

            return asyncio.run(ask())

        assert (await run_one(app, "work")).result == "granted"

    async def test_unknown_limit_fails_the_attempt(self, app: App) -> None:  # F14
        @app.job
        async def work(ctx: Context) -> None:
            await ctx.rate_limit("slack")

        job = await run_one(app, "work")
        assert job.state is State.RETRYABLE
        assert 'there is no rate limit "slack": `awa rate set slack' in job.errors[-1]["error"]

    async def test_impossible_number_of_tokens_fails_the_attempt(self, app: App, session: Session) -> None:
        await limit(session, "1/s")

        @app.job
        async def work(ctx: Context, tokens: int, max_wait: str | None = None) -> None:
            await ctx.rate_limit("gh", tokens, max_wait=max_wait)

        for args in ({"tokens": 100}, {"tokens": 5, "max_wait": "3s"}, {"tokens": 100, "max_wait": "1h"}):
            job = await run_one(app, "work", args)
            assert "ask for fewer, or set a larger burst" in job.errors[-1]["error"]
        job = await run_one(app, "work", {"tokens": 0})
        assert "tokens is a number from 1," in job.errors[-1]["error"]

    async def test_handler_waits_for_many_tokens_beyond_the_default_horizon(
        self, database_url: str, session: Session
    ) -> None:
        """They take longer than the default horizon."""
        app = with_settings(database_url, replace(QUICK, shutdown_timeout=seconds(0.2)))
        await limit(session, "1/s")

        @app.job
        async def work(ctx: Context) -> None:
            await ctx.rate_limit("gh", 31)

        async with app, working(app):
            await app.enqueue("work")
            await eventually(lambda: is_booked(session, 29))

    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    async def test_attempt_does_not_count_if_max_wait_is_exceeded(self, app: App, session: Session, kind: str) -> None:
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

    async def test_handler_can_read_when_to_retry(self, app: App, session: Session) -> None:
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
        assert result["text"].startswith('rate limit "gh": retry in ')

    async def test_batch_handler_uses_the_rate_limit_of_the_app(self, app: App, session: Session) -> None:
        await limit(session, "100/s")

        @app.job(batch=10)
        async def work(jobs: list[BatchJob]) -> None:
            await app.rate_limit("gh", len(jobs))

        async with app:
            await app.enqueue_many([app.new("work") for _ in range(30)])
            await drain(app)
        assert await count(session.connection, "SELECT count(*) FROM awa.completed") == 30
        assert (await bucket(session))["tokens"] < 100

    async def test_caller_without_max_wait_is_served_despite_many_callers_with_one(
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They request ten times as many tokens as become available, and take all of them within their max_wait."""
        for name, value in {
            "MAX_HORIZON_S": 2.0,
            "MAX_RETRY_S": 2.0,
            "DEFAULT_HORIZON_S": 0.3,
            "MIN_RETRY_S": 0.1,
        }.items():
            monkeypatch.setattr(f"awa_py.rate_limiter.{name}", value)
        await limit(session, "20/s", 1)
        await take(session, callers=40)
        refused = 0

        async def request_repeatedly() -> None:
            nonlocal refused
            while True:
                try:
                    await app.rate_limit("gh", max_wait="2s")
                except awa.RateLimited:
                    refused += 1
                    await asyncio.sleep(0.25)

        async with app:
            others = [asyncio.create_task(request_repeatedly()) for _ in range(100)]
            try:
                await eventually(lambda: refused > 100)
                async with asyncio.timeout(6):
                    await asyncio.gather(*(app.rate_limit("gh") for _ in range(10)))
            finally:
                await cancel_and_wait(*others)

    async def test_rate_limit_needs_an_open_app(self, app: App) -> None:
        with pytest.raises(awa.AwaError, match="not open"):
            await app.rate_limit("gh")


async def is_booked(session: Session, tokens: float) -> bool:
    return bool((await bucket(session))["tokens"] <= -tokens)


class TestEnds:
    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    @pytest.mark.parametrize("booked", [True, False])
    async def test_cancelled_job_stops_waiting_for_tokens(
        self, app: App, session: Session, kind: str, booked: bool
    ) -> None:
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
            if booked:
                await drain_to(session, 9)
            job = await app.enqueue(kind)
            await eventually(lambda: running(app, job.id))
            await eventually(lambda: has_requested(session))
            await app.cancel(job.id)
            began = time.monotonic()
            with pytest.raises(awa.JobCancelled):
                await app.result(job.id, timeout="20s")
            assert time.monotonic() - began < 6
        assert ended == [awa.HandlerStopped if kind == "in_thread" else asyncio.CancelledError]

    async def test_thread_that_was_told_to_stop_does_not_start_waiting(self, app: App, session: Session) -> None:
        started, messages = threading.Event(), []

        @app.job
        def work(ctx: Context) -> None:
            started.set()
            deadline = time.monotonic() + PATIENCE_S
            while not ctx.cancelled and time.monotonic() < deadline:
                time.sleep(0.01)
            try:
                ctx.rate_limit("gh")
            except awa.HandlerStopped as stopped:
                messages.append(str(stopped))

        async with app, working(app):
            job = await app.enqueue("work")
            await eventually(started.is_set)
            await app.cancel(job.id)
            await app.result(job.id, timeout="20s")
        assert messages == ["not waiting for tokens: cancelled by user"]

    async def test_thread_that_timed_out_stops_waiting(self, app: App, session: Session) -> None:
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
    async def test_stopping_worker_snoozes_jobs_that_cannot_get_tokens_soon(
        self, database_url: str, session: Session, kind: str
    ) -> None:
        app = with_settings(database_url, replace(QUICK, shutdown_timeout=seconds(600)))
        declare_waiting_jobs(app)
        async with exhausted(app, session):
            async with working(app):
                jobs = [await app.enqueue(kind) for _ in range(3)]
                jobs.append(await app.enqueue("for_an_hour"))
                for job in jobs:
                    await eventually(partial(running, app, job.id))
                await eventually(lambda: has_requested(session))
            for job in jobs:  # the worker has stopped
                found = await app.get(job.id)
                assert (found.state, found.attempt, found.errors) == (State.SCHEDULED, 0, [])
                assert found.run_at - await session.now() <= seconds(60)

    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    async def test_worker_releases_waiting_jobs_after_the_shutdown_timeout(
        self, database_url: str, session: Session, kind: str
    ) -> None:
        app = with_settings(database_url, replace(QUICK, shutdown_timeout=seconds(0.2)))
        declare_waiting_jobs(app)
        async with exhausted(app, session):
            await drain_to(session, 9.5)
            async with working(app):
                job = await app.enqueue(kind)
                await eventually(lambda: is_booked(session, 1))
                await eventually(lambda: running(app, job.id))
                await eventually(lambda: has_requested(session))
            found = await app.get(job.id)
            assert (found.state, found.attempt, found.errors) == (State.AVAILABLE, 0, [])


def declare_waiting_jobs(app: App) -> None:
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
    """Drain the limit so that the next token is available in about that time."""
    await delete_rate_limit(session, "gh")
    await limit(session, "10/s")
    await drain_rate_limit(session, "gh", seconds(wait_s))


class TestConnection:
    async def test_only_jobs_that_use_rate_limits_open_a_connection_and_they_share_requests(
        self, database_url: str, session: Session
    ) -> None:
        async with counting_proxy(database_url) as (url, wire):
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
            assert 1 <= wire.count("rates", "take_tokens") <= 5
            assert wire.settings["awa rates"]["synchronous_commit"] == "off"

    async def test_worker_waits_for_an_unreachable_database(self, app: App, session: Session) -> None:
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
    async def test_app_waits_for_an_unreachable_database(
        self, database_url: str, session: Session, caplog: pytest.LogCaptureFixture, max_wait: str | None
    ) -> None:
        await limit(session, "1000/s")
        async with proxy(database_url) as (url, open_proxy, close_proxy), with_settings(url, QUICK) as app:
            await app.rate_limit("gh")
            await close_proxy()
            waiting = asyncio.create_task(app.rate_limit("gh", max_wait=max_wait))
            await eventually(lambda: "cannot reach the database, retrying" in caplog.text)
            await asyncio.wait({waiting}, timeout=0.5)
            assert not waiting.done()
            await open_proxy()
            async with asyncio.timeout(PATIENCE_S):
                await waiting

    @pytest.mark.parametrize("max_wait", [None, "1h"])
    async def test_closing_app_does_not_wait_for_an_unreachable_database(
        self,
        database_url: str,
        session: Session,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
        max_wait: str | None,
    ) -> None:
        monkeypatch.setattr("awa_py.client.RECONNECT_DELAYS_S", (600,))
        await limit(session, "1000/s")
        async with proxy(database_url) as (url, _, close_proxy):
            async with with_settings(url, QUICK) as app:
                await app.rate_limit("gh")
                await close_proxy()
                waiting = asyncio.create_task(app.rate_limit("gh", max_wait=max_wait))
                await eventually(lambda: "cannot reach the database, retrying" in caplog.text)
            _, pending = await asyncio.wait({waiting}, timeout=5)
            assert not pending
            if max_wait is None:  # it waited in line
                assert waiting.cancelled()
            else:
                assert isinstance(waiting.exception(), awa.AwaError)


@asynccontextmanager
async def proxy(
    database_url: str,
) -> AsyncIterator[tuple[str, Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]]:
    """Yield the URL of a proxy to the database, and functions to open it again and to close it."""
    parts = urlsplit(database_url)
    wire = CountingProxy(parts.hostname or "127.0.0.1", parts.port or 5432)
    account, at, _ = parts.netloc.rpartition("@")
    servers = [await asyncio.start_server(wire.connect, "127.0.0.1", 0)]
    port = servers[0].sockets[0].getsockname()[1]

    async def open_again() -> None:
        servers.append(await asyncio.start_server(wire.connect, "127.0.0.1", port))

    async def close() -> None:
        server = servers.pop()
        server.close()
        await wire.close_connections()
        await server.wait_closed()

    try:
        yield urlunsplit(parts._replace(netloc=f"{account}{at}127.0.0.1:{port}")), open_again, close
    finally:
        if servers:
            await close()
