"""Signals to durable jobs: sent before, during and after the wait, each taken once, in order."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from awa_py import App, Context, Fail, InvalidJob, JobEnded, JobNotFound, Signal, State, TooManySignals
from awa_py.connections import Connection
from awa_py.store.maintenance import delete_stray_signals
from awa_py.store.session import Session
from tests.support import count, drain, eventually, insert, working
from tests.waiting import LONG, all_waiting, is_waiting, waiting_job

pytestmark = pytest.mark.integration


@dataclass
class Approval:
    by: str
    at: datetime


@pytest.fixture
def waits(app: App) -> App:
    """An app with a job that waits for signals, and returns their data."""

    @app.job
    async def wait(ctx: Context, names: list[str]) -> list[Any]:
        found = [await ctx.wait_signal(name) for name in names]
        return [None if signal is None else signal.data for signal in found]

    return app


class TestDelivery:
    async def test_signal_wakes_the_job(self, waits: App) -> None:  # Y5
        async with waiting_job(waits, "wait", {"names": ["go"]}) as job_id:
            assert await waits.signal(job_id, "go", {"n": 1})
            assert await waits.result(job_id, timeout=LONG) == [{"n": 1}]

    async def test_signals_before_the_job_runs_are_kept_in_order(self, waits: App, session: Session) -> None:
        async with waits:
            job = await waits.enqueue("wait", {"names": ["a", "b", "a"]})
            for name, data in (("a", 1), ("a", 2), ("b", 3)):
                await waits.signal(job, name, data)
            await drain(waits)
            assert await waits.result(job, timeout=LONG) == [1, 3, 2]
            assert await count(session.connection, "SELECT count(*) FROM awa.signals") == 0

    async def test_signal_for_another_wait_is_kept_until_that_wait(self, waits: App) -> None:
        async with waiting_job(waits, "wait", {"names": ["first", "second"]}) as job_id:
            await waits.signal(job_id, "second", 2)
            assert await is_waiting(waits, job_id)
            await waits.signal(job_id, "first", 1)
            assert await waits.result(job_id, timeout=LONG) == [1, 2]

    async def test_signal_while_the_handler_runs_is_taken_by_its_next_wait(self, app: App) -> None:
        started, go_on = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            started.set()
            await go_on.wait()

        @app.job
        async def busy(ctx: Context) -> Any:
            await ctx.step("work", work)
            signal = await ctx.wait_signal("go")
            assert signal is not None
            return signal.data

        async with app, working(app):
            job = await app.enqueue("busy")
            await started.wait()
            await app.signal(job, "go", "while it runs")
            go_on.set()
            assert await app.result(job, timeout=LONG) == "while it runs"

    async def test_data_is_converted_to_its_type(self, app: App) -> None:
        @app.job
        async def approve(ctx: Context) -> list[Any]:
            signal = await ctx.wait_signal("approved", Approval)
            assert isinstance(signal, Signal)
            assert isinstance(signal.data, Approval)
            assert signal.sent_at.tzinfo is not None
            return [signal.name, signal.data.by, signal.data.at.isoformat()]

        moment = datetime(2026, 5, 3, tzinfo=UTC)
        async with waiting_job(app, "approve") as job_id:
            await app.signal(job_id, "approved", Approval("ann", moment))
            assert await app.result(job_id, timeout=LONG) == ["approved", "ann", moment.isoformat()]

    async def test_data_of_another_type_fails_the_job_at_once(self, app: App) -> None:
        @app.job
        async def approve(ctx: Context) -> None:
            await ctx.wait_signal("approved", Approval)

        async with app:
            job = await app.enqueue("approve")
            await app.signal(job, "approved", {"by": 7})
            await drain(app)
            ended = await app.get(job)
        assert (ended.state, ended.attempt) == (State.FAILED, 1)
        assert 'step "approved": the recorded result cannot be read' in ended.errors[-1]["error"]

    async def test_synchronous_handler_waits_for_signals(self, app: App) -> None:
        calls = []

        @app.job
        def wait(ctx: Context) -> Any:
            calls.append(ctx.attempt)
            signal = ctx.wait_signal("go").result()
            assert signal is not None
            return signal.data

        async with waiting_job(app, "wait") as job_id:
            await app.signal(job_id, "go", "to a thread")
            assert await app.result(job_id, timeout=LONG) == "to a thread"
        assert calls == [1, 1]

    async def test_two_tasks_wait_for_signals_of_one_name(self, app: App) -> None:
        @app.job
        async def wait(ctx: Context) -> list[Any]:
            signals = await asyncio.gather(*(ctx.wait_signal("go") for _ in range(2)))
            return [signal and signal.data for signal in signals]

        async with waiting_job(app, "wait") as job_id:
            await app.signal(job_id, "go", 1)
            await app.signal(job_id, "go", 2)
            assert await app.result(job_id, timeout=LONG) == [1, 2]


class TestTimeouts:
    async def test_wait_returns_none_after_its_timeout(self, app: App) -> None:  # Y5
        @app.job
        async def wait(ctx: Context) -> bool:
            return await ctx.wait_signal("go", timeout="1.5s") is None

        async with waiting_job(app, "wait") as job_id:
            assert await app.result(job_id, timeout=LONG) is True

    async def test_short_timeout_is_waited_for_in_place(self, app: App) -> None:
        @app.job
        async def wait(ctx: Context) -> list[bool]:
            return [await ctx.wait_signal("go", timeout=timeout) is None for timeout in ("50ms", 0)]

        async with app:
            job = await app.enqueue("wait")
            await drain(app)
            assert await app.result(job, timeout=LONG) == [True, True]
            assert (await app.get(job)).lease == 1

    async def test_signal_after_the_timeout_is_kept_for_the_next_wait(self, app: App) -> None:
        late = asyncio.Event()

        @app.job
        async def wait(ctx: Context) -> Any:
            assert await ctx.wait_signal("go", timeout="10ms") is None
            late.set()
            signal = await ctx.wait_signal("go")
            assert signal is not None
            return signal.data

        async with app, working(app):
            job = await app.enqueue("wait")
            await late.wait()
            await app.signal(job, "go", "late")
            assert await app.result(job, timeout=LONG) == "late"


class TestSenders:
    async def test_signal_of_a_rolled_back_sender_does_not_exist(self, waits: App, session: Session) -> None:
        async with waiting_job(waits, "wait", {"names": ["go"]}) as job_id:
            async with waits.pool.acquire() as sender:
                transaction = sender.transaction()
                await transaction.start()
                await waits.signal(job_id, "go", 1, key="k", connection=sender)
                await transaction.rollback()
            assert await is_waiting(waits, job_id)
            assert await waits.signal(job_id, "go", 2, key="k")
            assert await waits.result(job_id, timeout=LONG) == [2]

    async def test_signal_of_an_open_transaction_delays_nothing(self, waits: App) -> None:
        """The sender locks nothing before its commit: the job and others are claimed, suspended and completed."""
        async with waits, working(waits):
            async with waits.pool.acquire() as sender, sender.transaction():
                jobs = [await waits.enqueue("wait", {"names": ["go"]}) for _ in range(3)]
                for job in jobs:
                    await waits.signal(job, "go", "open", key="k", connection=sender)
                await eventually(lambda: all_waiting(waits, [job.id for job in jobs]))
                await waits.signal(jobs[0], "go", "committed", key="another")
                assert await waits.result(jobs[0], timeout=LONG) == ["committed"]
                assert await all_waiting(waits, [job.id for job in jobs[1:]])
            for job in jobs[1:]:
                assert await waits.result(job, timeout=LONG) == ["open"]

    async def test_signal_that_commits_after_the_end_of_its_job_is_removed(self, waits: App, session: Session) -> None:
        async with waits, working(waits):
            job = await waits.enqueue("wait", {"names": ["go"]})
            async with waits.pool.acquire() as sender, sender.transaction():
                await waits.signal(job, "go", 1, key="late", connection=sender)
                await waits.signal(job, "go", 2)
                await waits.result(job, timeout=LONG)
        assert await count(session.connection, "SELECT count(*) FROM awa.signals") == 0
        assert await count(session.connection, "SELECT count(*) FROM awa.signal_keys") == 0

    async def test_sender_with_an_old_snapshot_repeats_its_transaction(self, waits: App) -> None:
        """It does not see where the job is by now: the COMMIT is refused, rather than the wake-up lost."""
        async with waits, working(waits), waits.pool.acquire() as sender:
            job = await waits.enqueue("wait", {"names": ["go"]}, delay="1h")

            async def send(data: int, *, moves: bool) -> None:
                async with sender.transaction(isolation="repeatable_read"):
                    await waits.signal(job, "go", data, connection=sender)
                    if moves:
                        assert await waits.retry(job)
                        await eventually(lambda: is_waiting(waits, job.id))

            with pytest.raises(asyncpg.SerializationError):
                await send(1, moves=True)
            await send(2, moves=False)
            assert await waits.result(job, timeout=LONG) == [2]

    async def test_job_and_its_signal_may_be_sent_in_one_transaction(self, waits: App) -> None:
        async with waits:
            async with waits.pool.acquire() as sender, sender.transaction():
                job = await waits.enqueue("wait", {"names": ["go"]}, connection=sender)
                await waits.signal(job, "go", 1, connection=sender)
            await drain(waits)
            assert await waits.result(job, timeout=LONG) == [1]

    async def test_signal_with_the_key_of_another_one_is_not_sent(self, waits: App) -> None:
        async with waiting_job(waits, "wait", {"names": ["go", "go", "stop"]}) as job_id:
            assert await waits.signal(job_id, "go", 1, key="k")
            await eventually(lambda: has_checkpoint(waits, job_id, "go"))
            assert not await waits.signal(job_id, "go", "again, after it was taken", key="k")
            assert await waits.signal(job_id, "go", 2, key="other key")
            assert await waits.signal(job_id, "stop", 3, key="k")
            assert await waits.result(job_id, timeout=LONG) == [1, 2, 3]

    async def test_sql_function_sends_signals(self, waits: App, connection: Connection) -> None:
        async with waiting_job(waits, "wait", {"names": ["go", "go"]}) as job_id:
            assert await connection.fetchval("SELECT awa.signal($1, 'go')", job_id)
            assert await connection.fetchval("""SELECT awa.signal($1, 'go', '{"by": "sql"}', key => 'k')""", job_id)
            assert await waits.result(job_id, timeout=LONG) == [None, {"by": "sql"}]


class TestMistakes:
    async def test_signal_to_an_unknown_job_is_refused(self, app: App) -> None:
        async with app:
            with pytest.raises(JobNotFound, match='there is no job 4711: the signal "go" was not sent'):
                await app.signal(4711, "go")

    async def test_signal_to_an_ended_job_is_refused(self, app: App) -> None:
        @app.job
        async def nothing() -> None: ...

        async with app:
            job = await app.enqueue("nothing")
            await drain(app)
            with pytest.raises(JobEnded, match=rf"job {job.id} has ended \(completed\): the signal"):
                await app.signal(job, "go")
            cancelled = await app.enqueue("nothing")
            await app.cancel(cancelled)
            with pytest.raises(JobEnded, match=r"has ended \(cancelled\)"):
                await app.signal(cancelled, "go")

    async def test_sender_is_refused_if_a_thousand_signals_are_not_taken(self, waits: App, session: Session) -> None:
        async with waits:
            job = await waits.enqueue("wait", {"names": ["go"]})
            await session.connection.execute("SELECT awa.signal($1, 'go') FROM generate_series(1, 1000)", job.id)
            with pytest.raises(TooManySignals, match="has 1000 signals that it has not taken"):
                await waits.signal(job, "go", key="k")
            await drain(waits)
            assert (await waits.get(job)).state is State.COMPLETED
        assert await count(session.connection, "SELECT count(*) FROM awa.signals") == 0

    @pytest.mark.parametrize(
        ("name", "data", "key", "problem"),
        [
            ("", None, None, "a signal's name cannot be empty"),
            ("x" * 201, None, None, "a signal's name has at most 200 characters"),
            ("a\nb", None, None, "signal"),
            ("go", object(), None, 'signal "go": data: an object is not JSON-serializable'),
            ("go", float("nan"), None, "NaN is not JSON"),
            ("go", "x" * 2**21, None, "MiB of data, the limit is"),
            ("go", None, "", 'signal "go": its key has 1 to 1000 characters'),
        ],
    )
    async def test_signal_that_cannot_be_stored_is_refused(
        self, app: App, name: str, data: object, key: str | None, problem: str
    ) -> None:
        async with app:
            job = await app.enqueue("any")
            with pytest.raises(InvalidJob, match=problem):
                await app.signal(job, name, data, key=key)

    async def test_sql_function_refuses_a_name_that_is_none(self, connection: Connection, app: App) -> None:
        async with app:
            job = await app.enqueue("any")
        for name in ("", "a\nb", None):
            with pytest.raises(asyncpg.CheckViolationError, match="this is not the name of a signal"):
                await connection.execute("SELECT awa.signal($1, $2)", job.id, name)


async def insert_undelivered(session: Session, first: int, last: int) -> None:
    """Insert signals to jobs by id, whether these exist or not."""
    async with session.connection.transaction():
        await session.connection.execute("SET LOCAL session_replication_role = replica")  # without the trigger
        await session.connection.execute(
            "INSERT INTO awa.signals (job_id, name) SELECT n, 'go' FROM generate_series($1::bigint, $2) AS n",
            first,
            last,
        )


class TestCleanup:
    async def test_signals_of_completed_and_deleted_jobs_are_deleted(self, app: App, session: Session) -> None:
        @app.job
        async def plain(fails: bool) -> None:
            if fails:
                raise Fail("why")

        async with app:
            jobs = [await app.enqueue("plain", {"fails": fails}) for fails in (False, True)]
            later = await app.enqueue("plain", {"fails": False}, delay="1h")
            for job in (*jobs, later):
                for key in ("a", "b", None):
                    await app.signal(job, "go", key=key)
            await drain(app)
            await insert_undelivered(session, 4711, 4711)
            report = await app.maintenance.cleanup()
        assert report.signals == 4
        for table in ("signals", "signal_keys"):
            left = await session.connection.fetch(f"SELECT DISTINCT job_id FROM awa.{table} ORDER BY 1")
            assert [row[0] for row in left] == [jobs[1].id, later.id]  # one failed, and may be retried

    async def test_signals_are_checked_window_by_window(self, session: Session) -> None:
        await insert(session, "scheduled", state="scheduled", id=25)
        await insert_undelivered(session, 1, 25)
        assert await delete_stray_signals(session, after=0, limit=10) == (10, 10)
        assert await delete_stray_signals(session, after=10, limit=10) == (20, 10)
        assert await delete_stray_signals(session, after=20, limit=10) == (None, 4)


class TestOperators:
    async def test_cancelled_job_does_not_wake(self, waits: App) -> None:
        async with waiting_job(waits, "wait", {"names": ["go"]}) as job_id:
            assert await waits.cancel(job_id)
            assert (await waits.get(job_id)).state is State.CANCELLED

    async def test_retry_does_not_wake_a_waiting_job(self, waits: App) -> None:
        async with waiting_job(waits, "wait", {"names": ["go"]}) as job_id:
            assert not await waits.retry(job_id)
            assert await is_waiting(waits, job_id)

    async def test_signals_of_a_failed_job_are_there_when_it_is_retried(self, app: App) -> None:
        fails = [True]

        @app.job(max_attempts=1)
        async def wait(ctx: Context) -> Any:
            if fails.pop():
                fails.append(False)
                raise ValueError("once")
            signal = await ctx.wait_signal("go")
            assert signal is not None
            return signal.data

        async with app:
            job = await app.enqueue("wait")
            await app.signal(job, "go", "kept")
            await drain(app)
            assert (await app.get(job)).state is State.FAILED
            fails[:] = [False]
            assert await app.retry(job)
            await drain(app)
            assert await app.result(job, timeout=LONG) == "kept"

    async def test_move_to_another_queue_keeps_what_the_job_waits_for(self, waits: App) -> None:
        async with waits, working(waits, ("default", "other")):
            job = await waits.enqueue("wait", {"names": ["go"]})
            await eventually(lambda: is_waiting(waits, job.id))
            assert await waits.client.move_many([job.id], queue="other", priority=None) == {job.id}
            await waits.signal(job, "go", 1)
            assert await waits.result(job, timeout=LONG) == [1]


async def has_checkpoint(app: App, job_id: int, name: str) -> bool:
    async with app.session() as session:
        query = "SELECT count(*) FROM awa.checkpoints WHERE job_id = $1 AND name = $2"
        return bool(await count(session.connection, query, job_id, name))
