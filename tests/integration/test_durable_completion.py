"""`ctx.transaction()`, which also completes the job; lost answers to COMMIT; and mistakes with transactions."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from awa_py import App, Context, State
from awa_py.connections import Connection
from awa_py.store import checkpoints
from awa_py.store.checkpoints import NewCheckpoint
from awa_py.store.session import Session
from tests.chaos.proxy import COMMITS, FaultProxy, Trap, fault_proxy
from tests.support import QUICK, count
from tests.waiting import book, booked, create_tables, retry_now, run_handler

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
async def tables(session: Session) -> None:
    await create_tables(session)


class TestCompletion:
    async def test_writes_and_completion_commit_together(self, app: App, session: Session) -> None:
        seen = []

        async def handler(ctx: Context) -> None:
            await ctx.step("before", str)
            async with ctx.transaction() as connection:
                await book(connection)
                ctx.complete({"booked": True})
                seen.append(await booked(session))
            seen.append(await booked(session))

        job = await run_handler(app, handler)
        assert (job.state, job.result, job.attempt) == (State.COMPLETED, {"booked": True}, 1)
        assert seen == [0, 1]
        stored = await session.connection.fetchval("SELECT checkpoints ->> 0 FROM awa.completed")
        assert '"before"' in stored
        for table in ("checkpoints", "running"):
            assert await count(session.connection, f"SELECT count(*) FROM awa.{table}") == 0

    async def test_signals_go_with_the_job(self, app: App, session: Session) -> None:
        async def handler(ctx: Context) -> None:
            await app.signal(ctx.job.id, "go", key="k")
            async with ctx.transaction():
                pass

        assert (await run_handler(app, handler)).state is State.COMPLETED
        for table in ("signals", "signal_keys"):
            assert await count(session.connection, f"SELECT count(*) FROM awa.{table}") == 0

    async def test_kept_results_of_children_go_with_the_job(self, app: App, session: Session) -> None:
        async def handler(ctx: Context) -> None:
            query = "INSERT INTO awa.kept_results VALUES ($1, 7, 'child', '1')"
            await session.connection.execute(query, ctx.job.id)
            async with ctx.transaction():
                pass

        assert (await run_handler(app, handler)).state is State.COMPLETED
        assert await count(session.connection, "SELECT count(*) FROM awa.kept_results") == 0

    async def test_error_rolls_back_and_fails_the_attempt(self, app: App, session: Session) -> None:
        failures = [True]

        async def handler(ctx: Context) -> None:
            async with ctx.transaction() as connection:
                await book(connection)
                if failures and failures.pop():
                    raise ValueError("before the commit")

        job = await run_handler(app, handler)
        assert (job.state, await booked(session)) == (State.RETRYABLE, 0)
        job = await retry_now(app, job.id)
        assert (job.state, job.result, await booked(session)) == (State.COMPLETED, None, 1)

    async def test_stale_attempt_is_refused_as_a_whole(self, app: App, session: Session) -> None:
        async def handler(ctx: Context) -> None:
            async with ctx.transaction() as connection:
                await book(connection)
                await session.connection.execute("UPDATE awa.running SET lease = lease + 1")

        job = await run_handler(app, handler)
        assert (job.state, await booked(session)) == (State.RUNNING, 0)

    async def test_open_transaction_is_not_suspended(self, app: App, session: Session) -> None:
        """Although another task of the handler waits."""

        async def handler(ctx: Context) -> None:
            async def wait() -> None:
                await ctx.sleep("1h")

            waiting = asyncio.create_task(wait())
            async with ctx.transaction() as connection:
                await book(connection)
                await asyncio.sleep(0.3)
            waiting.cancel()

        assert (await run_handler(app, handler)).state is State.COMPLETED
        assert await booked(session) == 1

    @pytest.mark.parametrize(
        ("end", "text"),
        [
            (lambda: {"lost": 1}, "its handler returned a result, which is not stored: call ctx.complete(result)"),
            (lambda: 1 / 0, "its handler raised: division by zero"),
        ],
    )
    async def test_end_of_the_handler_has_no_effect_after_its_transaction(
        self, app: App, caplog: pytest.LogCaptureFixture, end: Callable[[], Any], text: str
    ) -> None:
        async def handler(ctx: Context) -> Any:
            async with ctx.transaction():
                ctx.complete("stored")
            return end()

        with caplog.at_level(logging.WARNING, "awa.worker"):
            job = await run_handler(app, handler)
        assert (job.state, job.result, job.errors) == (State.COMPLETED, "stored", [])
        assert text in caplog.text


class TestLostAnswers:
    """The connection breaks at the COMMIT: before the server has it, or before its answer."""

    @pytest.fixture
    async def proxied(self, database_url: str) -> AsyncIterator[tuple[App, FaultProxy]]:
        async with fault_proxy(database_url) as (url, proxy):
            yield App(url, settings=QUICK), proxy

    @pytest.mark.parametrize(("action", "calls"), [("lose answer", 1), ("lose request", 2)])
    async def test_transact(self, proxied: tuple[App, FaultProxy], session: Session, action: Any, calls: int) -> None:
        app, proxy = proxied
        called = []

        async def book_over_a_bad_line(connection: Connection) -> int:
            called.append(1)
            if len(called) == 1:
                proxy.trap = Trap(statements=COMMITS, action=action)
            return await book(connection)

        async def handler(ctx: Context) -> int:
            return await ctx.transact("book", book_over_a_bad_line)

        job = await run_handler(app, handler)
        assert (job.state, job.result, job.attempt) == (State.COMPLETED, 5, 1)
        assert (len(called), await booked(session)) == (calls, 1)

    async def test_commit_that_is_done_late(self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        """The server still commits when the record is looked for: the second call meets the record of the first."""
        record = checkpoints.record_transaction
        late = [True]

        async def record_twice(own: Session, worker_id: UUID, new: NewCheckpoint) -> bool:
            if late and late.pop():
                async with app.pool.acquire() as other, other.transaction():  # the transaction of the first call
                    await book(other)
                    await record(Session(other, own.schema, is_own=False), worker_id, new)
            return await record(own, worker_id, new)

        async def handler(ctx: Context) -> int:
            return await ctx.transact("book", book)

        monkeypatch.setattr(checkpoints, "record_transaction", record_twice)
        job = await run_handler(app, handler)
        assert (job.state, job.result, await booked(session)) == (State.COMPLETED, 5, 1)

    @pytest.mark.parametrize(("action", "state"), [("lose answer", State.COMPLETED), ("lose request", State.RETRYABLE)])
    async def test_completion(
        self, proxied: tuple[App, FaultProxy], session: Session, action: Any, state: State
    ) -> None:
        app, proxy = proxied
        failures = [True]

        async def handler(ctx: Context) -> None:
            async with ctx.transaction() as connection:
                await book(connection)
                ctx.complete("once")
                if failures and failures.pop():
                    proxy.trap = Trap(statements=COMMITS, action=action)

        job = await run_handler(app, handler)
        assert job.state is state
        if state is State.RETRYABLE:
            assert "the transaction was not committed" in job.errors[-1]["error"]
            job = await retry_now(app, job.id)
        assert (job.state, job.result, await booked(session)) == (State.COMPLETED, "once", 1)


def synchronous(connection: Connection) -> None: ...


async def ignore_an_error(connection: Connection) -> None:
    with suppress(asyncpg.PostgresError):
        await connection.execute("SELECT 1 / 0")


async def nest_transact(ctx: Context) -> None:
    async with ctx.transaction():
        await ctx.transact("book", book)


async def nest_transaction(ctx: Context) -> None:
    async with ctx.transaction(), ctx.transaction():
        pass


async def transact_in_transact(ctx: Context) -> None:
    async def outer(connection: Connection) -> None:
        await ctx.transact("inner", book)

    await ctx.transact("outer", outer)


async def ignore_an_error_in_a_transaction(ctx: Context) -> None:
    async with ctx.transaction() as connection:
        await ignore_an_error(connection)


async def wait_in_a_transaction(ctx: Context) -> None:
    async with ctx.transaction() as connection:
        await book(connection)
        await ctx.sleep("1h")


async def complete_outside(ctx: Context) -> None:
    ctx.complete(1)


async def complete_without_json(ctx: Context) -> None:
    async with ctx.transaction() as connection:
        await book(connection)
        ctx.complete(object())


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (lambda ctx: ctx.transact("book", synchronous), '"book": transact takes an asynchronous function'),
        (lambda ctx: ctx.transact("book", ignore_an_error), 'step "book": a statement of the transaction failed'),
        (ignore_an_error_in_a_transaction, "transaction(): a statement of the transaction failed"),
        (nest_transact, '"book": a transaction of this job is open'),
        (nest_transaction, '"transaction": a transaction of this job is open'),
        (transact_in_transact, '"inner" was called inside step "outer"'),
        (wait_in_a_transaction, '"sleep": a job cannot wait inside its transaction'),
        (complete_outside, "complete() sets the result inside"),
        (complete_without_json, 'step "transaction": result: an object is not JSON-serializable'),
    ],
)
async def test_mistake_fails_the_job_at_once_and_writes_nothing(
    app: App, session: Session, handler: Callable[[Context], Any], problem: str
) -> None:
    async def call(ctx: Context) -> None:
        await handler(ctx)

    job = await run_handler(app, call)
    assert (job.state, job.attempt) == (State.FAILED, 1)
    assert problem in job.errors[-1]["error"]
    assert await booked(session) == 0


async def test_call_after_the_completing_transaction_is_refused(app: App, session: Session) -> None:
    errors = []

    async def handler(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await book(connection)
        for call in (ctx.sleep("1h"), ctx.step("late", str)):
            try:
                await call
            except ValueError as error:
                errors.append(str(error))

    assert (await run_handler(app, handler)).state is State.COMPLETED
    assert errors == [
        '"sleep" was called after the transaction that completed the job',
        '"late" was called after the transaction that completed the job',
    ]
