"""Named rate limits for the whole cluster."""  # F14

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import asyncpg
import pytest

import awa_py as awa
from awa_py import App, BatchJob, Context, State, UnknownRateLimit
from awa_py.db import Database, Record
from awa_py.rate import Rate
from awa_py.store.rates import (
    Taken,
    delete_rate_limit,
    drain_rate_limit,
    list_rate_limits,
    set_rate_limit,
    take_tokens,
)
from awa_py.store.session import Session
from tests.processes import FAST, processes
from tests.support import (
    PATIENCE_S,
    QUICK,
    another_session,
    count,
    drain,
    eventually,
    run_one,
    running,
    seconds,
    with_settings,
    working,
)
from tests.wire import counted

pytestmark = pytest.mark.integration

HOUR = timedelta(hours=1)


async def limit(session: Session, rate: str, burst: int | None = None, *, name: str = "gh") -> None:
    await set_rate_limit(session, name, Rate.parse(rate), burst)


async def take(session: Session, tokens: int = 1, *, callers: int = 1, patience_s: float = 60) -> Taken:
    return await take_tokens(session, "gh", tokens=tokens, callers=callers, patience_s=patience_s)


async def bucket(session: Session) -> Record:
    """As it is written, not as it is now."""
    row = await session.connection.fetchrow("SELECT * FROM awa.rate_limits WHERE name = 'gh'")
    assert row is not None
    return row


class TestTokens:
    async def test_two_connections_ask_for_one_token_and_one_gets_it(self, database: Database) -> None:  # F14
        async with another_session(database) as one, another_session(database) as other:
            for _ in range(20):
                await limit(one, "1/100s")
                answers = await asyncio.gather(take(one, patience_s=0), take(other, patience_s=0))
                assert sorted(len(answer.waits_s) for answer in answers) == [0, 1]
                (refused,) = [answer for answer in answers if not answer.waits_s]
                assert 90 < refused.next_s <= 100
                await delete_rate_limit(one, "gh")

    async def test_the_second_may_have_the_next_token_before_it_is_there(self, database: Database) -> None:
        async with another_session(database) as one, another_session(database) as other:
            await limit(one, "1/30s")
            answers = await asyncio.gather(take(one), take(other))
            first_s, second_s = sorted(answer.waits_s[0] for answer in answers)
            assert first_s == 0
            assert 25 < second_s <= 30

    async def test_callers_are_served_in_their_order_within_their_patience(self, session: Session) -> None:
        await limit(session, "1/10s")
        taken = await take(session, callers=5, patience_s=35)
        assert taken.waits_s == pytest.approx([0, 10, 20, 30])
        assert taken.next_s == pytest.approx(40)
        assert (await take(session, callers=5, patience_s=30)).waits_s == []

    async def test_whoever_is_refused_takes_nothing(self, session: Session) -> None:
        await limit(session, "1/h")
        await take(session)
        for _ in range(5):
            refused = await take(session)
            assert not refused.waits_s
            assert 3500 < refused.next_s <= 3600
        assert (await bucket(session))["tokens"] >= 0

    async def test_many_connections_take_exactly_what_comes(self, database: Database, session: Session) -> None:
        """Whatever waits for whom: no token is counted twice, and none is lost."""
        await limit(session, "1000/s", 1)
        before = await bucket(session)

        async def ask_again_and_again() -> int:
            async with another_session(database, synchronous_commit="off") as own:
                return sum([len((await take(own, callers=1 + n % 3)).waits_s) for n in range(60)])

        granted = sum(await asyncio.gather(*(ask_again_and_again() for _ in range(8))))
        assert granted == 8 * 120
        after = await bucket(session)
        came = (after["refilled_at"] - before["refilled_at"]).total_seconds() * 1000
        lost_to_burst = before["tokens"] + came - granted - after["tokens"]
        assert lost_to_burst >= -0.01
        assert after["tokens"] < 1 or lost_to_burst < 0.01

    async def test_more_tokens_than_the_bucket_holds_take_their_time(self, session: Session) -> None:
        await limit(session, "1/s")
        taken = await take(session, tokens=10)
        assert taken.waits_s == pytest.approx([9])
        assert taken.fastest_s == 9

    async def test_what_comes_in_an_hour_is_not_given_twice_in_it(self, session: Session) -> None:
        await limit(session, "5000/h")
        assert (await bucket(session))["burst"] == 1
        assert len((await take(session, callers=5000, patience_s=0)).waits_s) == 1
        await limit(session, "100/s", name="fast")
        assert [row.burst for row in await list_rate_limits(session)] == [100, 1]

    async def test_a_larger_burst_is_there_after_a_pause(self, session: Session) -> None:
        await limit(session, "1/h", 50)
        assert (await take(session, callers=60, patience_s=0)).waits_s == [0] * 50
        await session.connection.execute("UPDATE awa.rate_limits SET refilled_at = refilled_at - interval '1 year'")
        assert (await take(session, callers=60, patience_s=0)).waits_s == [0] * 50

    async def test_a_clock_that_is_set_back_costs_nobody_an_hour(self, session: Session) -> None:
        await limit(session, "1/10s")
        await session.connection.execute(
            "UPDATE awa.rate_limits SET tokens = 0, refilled_at = clock_timestamp() + interval '1 hour'"
        )
        assert (await take(session)).waits_s == [10]
        assert 5 < (await take(session, patience_s=0)).next_s <= 20

    async def test_an_unknown_limit_is_an_error_that_names_it(self, session: Session) -> None:  # F14
        unknown = 'there is no rate limit "gh": `awa rate set gh 5000/h` makes one'
        with pytest.raises(UnknownRateLimit) as raised:
            await take(session)
        assert str(raised.value) == unknown
        for change in (drain_rate_limit, delete_rate_limit):
            with pytest.raises(UnknownRateLimit, match="no rate limit"):
                await change(session, "gh")

    async def test_what_cannot_be_is_refused(self, session: Session) -> None:
        wrong = ("count = 0", "period = '0'", "burst = 0", "name = ''", r"name = E'a\tb'", "name = repeat('x', 201)")
        await limit(session, "1/s")
        for setting in wrong:
            with pytest.raises(asyncpg.CheckViolationError):
                await session.connection.execute(f"UPDATE awa.rate_limits SET {setting}")


class TestChanges:
    async def test_a_drained_bucket_fills_at_its_rate(self, session: Session) -> None:
        await limit(session, "1/10s", 100)
        await drain_rate_limit(session, "gh")
        refused = await take(session, patience_s=0)
        assert not refused.waits_s
        assert 5 < refused.next_s <= 10

    async def test_drained_for_a_time_it_gives_nothing_until_then(self, session: Session) -> None:
        await limit(session, "10/s", 100)
        for _ in range(2):  # a second time it is not twice as long
            await drain_rate_limit(session, "gh", seconds(600))
        refused = await take(session)
        assert not refused.waits_s
        assert 590 < refused.next_s <= 600.1
        (listed,) = await list_rate_limits(session)
        assert 590 < listed.wait_s <= 600.1

    async def test_what_was_promised_stays_so(self, session: Session) -> None:
        await limit(session, "1/s")
        await take(session, callers=31)
        await drain_rate_limit(session, "gh", seconds(10))
        assert 25 < (await take(session, patience_s=0)).next_s <= 31

    async def test_a_changed_limit_keeps_its_tokens(self, session: Session) -> None:
        await limit(session, "1/h", 100)
        await take(session, callers=40)
        await limit(session, "1/h", 80)
        assert (await take(session, callers=100, patience_s=0)).waits_s == [0] * 60
        await limit(session, "1/h", 200)
        assert not (await take(session, patience_s=0)).waits_s

    async def test_a_changed_rate_keeps_the_time_for_which_tokens_were_promised(self, session: Session) -> None:
        await limit(session, "100/s", 1)
        await drain_rate_limit(session, "gh", seconds(600))
        await limit(session, "1/m")
        assert 640 < (await take(session)).next_s <= 660


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
                  AND application_name = 'awa rates' AND state = 'idle' AND query LIKE '-- Takes tokens%'"""
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
            assert 1 <= wire.of("rates", "Takes tokens") <= 5
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


async def test_four_processes_together_keep_the_rate(
    client: App, session: Session, database_url: str, tmp_path: Path
) -> None:  # F14
    """By the database's clock, however late somebody wakes up: each token is taken for a moment, and used after it."""
    rate, total = 50, 600
    await limit(session, f"{rate}/s", 1)
    # What each update takes, and for when.
    await session.connection.execute(
        """CREATE TABLE promises (due timestamptz);
        CREATE FUNCTION promise() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE
            had float8 := least(old.burst, old.tokens
                                + extract(epoch FROM new.refilled_at - old.refilled_at)::float8 / old.token_s);
        BEGIN
            INSERT INTO promises
            SELECT new.refilled_at + greatest(0, n - had) * old.token_s * interval '1 second'
            FROM generate_series(1, round(had - new.tokens)::int) AS n;
            RETURN new;
        END $$;
        CREATE TRIGGER promise BEFORE UPDATE ON awa.rate_limits FOR EACH ROW EXECUTE FUNCTION promise()"""
    )
    await client.enqueue_many([client.new("limited", {"name": "gh"}) for _ in range(total)])
    with processes(tmp_path, database_url, {**FAST, "AWA_HEARTBEAT_STALENESS": "30s"}) as started:
        for _ in range(4):
            started.worker("--concurrency", "50")

        async def all_are_done() -> bool:
            return await count(session.connection, "SELECT count(*) FROM awa.completed") == total

        await eventually(all_are_done, 90)
    workers = await count(session.connection, "SELECT count(DISTINCT worker_id) FROM awa.completed")
    assert workers == 4
    promised = [row["due"] for row in await session.connection.fetch("SELECT due FROM promises ORDER BY due")]
    used = await session.connection.fetch("SELECT finalized_at AS at FROM awa.completed ORDER BY finalized_at")
    assert len(promised) == len(used) == total
    # The n-th use never comes before the n-th token.
    assert all(use["at"] >= due for use, due in zip(used, promised, strict=True))
    # While there was always somebody who wanted one, neither more nor fewer were taken than come in that time.
    steady = [due for due in promised if seconds(2) <= due - promised[0] < seconds(10)]
    assert len(steady) == pytest.approx(8 * rate, abs=0.02 * 8 * rate + 1)
