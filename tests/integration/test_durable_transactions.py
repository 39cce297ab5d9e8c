"""Transactions of durable jobs: their writes and what awa records commit together, exactly once."""

import asyncio

import asyncpg
import pytest

from awa_py import App, Context, JobNotFound, State
from awa_py.connections import Connection
from awa_py.store.session import Session
from tests.support import count, drain
from tests.waiting import LONG, book, booked, create_tables, retry_now, run_handler

pytestmark = pytest.mark.integration

# The job's lease is lost: another worker has it.
LOSE_LEASE = "UPDATE awa.running SET lease = lease + 1"


@pytest.fixture(autouse=True)
async def tables(session: Session) -> None:
    await create_tables(session)


class TestTransact:
    async def test_writes_and_record_commit_once(self, app: App, session: Session) -> None:
        calls, failures = [], [True]

        async def book_once(connection: Connection, account: str) -> int:
            calls.append(account)
            return await book(connection, account, amount=7)

        async def handler(ctx: Context) -> int:
            amount = await ctx.transact("book", book_once, "a")
            if failures and failures.pop():
                raise ValueError("after the commit")
            return amount

        job = await run_handler(app, handler)
        assert job.state is State.RETRYABLE
        job = await retry_now(app, job.id)
        assert (job.state, job.result) == (State.COMPLETED, 7)
        assert (calls, await booked(session)) == (["a"], 1)

    async def test_error_rolls_the_writes_back(self, app: App, session: Session) -> None:
        failures = [True]

        async def fail_once(connection: Connection) -> int:
            await book(connection)
            if failures and failures.pop():
                raise ValueError("after the write")
            return 7

        async def handler(ctx: Context) -> int:
            return await ctx.transact("book", fail_once)

        job = await run_handler(app, handler)
        assert await booked(session) == 0
        job = await retry_now(app, job.id)
        assert (job.result, await booked(session)) == (7, 1)

    async def test_error_that_the_handler_caught_is_raised_again_in_the_next_attempt(
        self, app: App, session: Session
    ) -> None:
        calls, failures = [], [True]

        async def fail(connection: Connection) -> None:
            calls.append(1)
            await book(connection)
            raise LookupError("no account")

        async def handler(ctx: Context) -> str:
            try:
                await ctx.transact("book", fail)
            except LookupError as error:
                found = str(error)
            await ctx.sleep(0)
            if failures and failures.pop():
                raise ValueError("again")
            return found

        job = await retry_now(app, (await run_handler(app, handler)).id)
        assert (job.result, calls, await booked(session)) == ("no account", [1], 0)

    async def test_lost_lease_rolls_everything_back(self, app: App, session: Session) -> None:
        after = []

        async def lose(connection: Connection) -> None:
            await book(connection)
            await session.connection.execute(LOSE_LEASE)

        async def handler(ctx: Context) -> None:
            await ctx.transact("book", lose)
            after.append("the handler went on")

        job = await run_handler(app, handler)
        assert job.state is State.RUNNING  # of the other worker
        assert (after, await booked(session)) == ([], 0)
        assert await count(session.connection, "SELECT count(*) FROM awa.checkpoints") == 0

    async def test_open_transaction_does_not_delay_the_rescue(self, app: App, session: Session) -> None:
        """The job's row is locked by the last statement: a frozen worker cannot keep it."""

        async def lock(connection: Connection) -> None:
            await book(connection)
            await session.connection.execute("SET lock_timeout = '1s'")
            await session.connection.execute("DELETE FROM awa.running")

        async def handler(ctx: Context) -> None:
            await ctx.transact("book", lock)

        with pytest.raises(JobNotFound):
            await run_handler(app, handler)
        assert await booked(session) == 0

    async def test_parallel_transactions(self, app: App, session: Session) -> None:
        async def handler(ctx: Context) -> list[int]:
            return list(await asyncio.gather(*(ctx.transact("book", book, "a", n) for n in range(25))))

        job = await run_handler(app, handler)
        assert (job.result, await booked(session)) == (list(range(25)), 25)

    async def test_transact_in_a_thread(self, app: App, session: Session) -> None:
        @app.job
        def threaded(ctx: Context) -> int:
            return ctx.transact("book", book, "a", 3).result()

        async with app:
            job = await app.enqueue("threaded")
            await drain(app)
            assert await app.result(job, timeout=LONG) == 3
        assert await booked(session) == 1


class TestConflicts:
    async def test_serialization_failure_is_tried_again(self, app: App, session: Session) -> None:
        calls = []

        async def add(connection: Connection) -> int:
            calls.append(1)
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            amount: int = await connection.fetchval("SELECT amount FROM public.balance WHERE id = 1")
            if len(calls) == 1:
                await session.connection.execute("UPDATE public.balance SET amount = 10 WHERE id = 1")
            await connection.execute("UPDATE public.balance SET amount = $1 WHERE id = 1", amount + 1)
            return amount + 1

        async def handler(ctx: Context) -> int:
            return await ctx.transact("add", add)

        job = await run_handler(app, handler)
        assert (job.result, job.attempt, len(calls)) == (11, 1, 2)

    async def test_deadlock_is_tried_again(self, app: App, session: Session) -> None:
        both = asyncio.Barrier(2)
        calls = []

        async def add(connection: Connection, first: int, second: int) -> None:
            calls.append(first)
            await connection.execute("UPDATE public.balance SET amount = amount + 1 WHERE id = $1", first)
            if len(calls) <= 2:
                await both.wait()
            await connection.execute("UPDATE public.balance SET amount = amount + 1 WHERE id = $1", second)

        async def handler(ctx: Context) -> None:
            await asyncio.gather(ctx.transact("add", add, 1, 2), ctx.transact("add", add, 2, 1))

        job = await run_handler(app, handler)
        assert (job.state, len(calls)) == (State.COMPLETED, 3)
        assert await count(session.connection, "SELECT sum(amount) FROM public.balance") == 4

    async def test_endless_conflict_fails_the_attempt(
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("awa_py.worker.durable.transactions.CONFLICT_PAUSE_S", 0.001)
        calls = []

        async def conflict(connection: Connection) -> None:
            calls.append(1)
            raise asyncpg.SerializationError("could not serialize access")

        async def handler(ctx: Context) -> None:
            await ctx.transact("add", conflict)

        job = await run_handler(app, handler)
        assert (job.state, len(calls)) == (State.RETRYABLE, 10)

    async def test_unique_violation_in_a_table_named_checkpoints_is_an_error_of_the_step(
        self, app: App, session: Session
    ) -> None:
        await session.connection.execute(
            "CREATE TABLE public.checkpoints (id int PRIMARY KEY); INSERT INTO public.checkpoints VALUES (1)"
        )

        async def insert(connection: Connection) -> None:
            await connection.execute("INSERT INTO public.checkpoints VALUES (1)")

        async def handler(ctx: Context) -> None:
            await ctx.transact("insert", insert)

        job = await run_handler(app, handler)
        assert job.state is State.RETRYABLE
        assert "duplicate key" in job.errors[-1]["error"]
