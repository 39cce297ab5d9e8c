"""A worker inside the process: what becomes of handlers, and what happens to a worker in trouble."""

import asyncio
import logging
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

import pytest

import awa_py as awa
from awa_py import App, Context, Job, State
from awa_py.config import Settings
from awa_py.db import Database
from awa_py.outcome import Outcome
from awa_py.store.jobs import cancel_jobs
from awa_py.store.maintain import rescue_overdue_jobs
from awa_py.store.queues import list_workers, pause_queue, set_queue
from awa_py.store.session import Session
from awa_py.worker.service import Worker
from tests.support import (
    PATIENCE_S,
    QUICK,
    another_session,
    count,
    eventually,
    look,
    put,
    seconds,
    states,
    working,
)

pytestmark = pytest.mark.integration

# A lease of a second: for tests of what happens when it is lost.
HASTY = replace(QUICK, heartbeat_interval=seconds(0.2), heartbeat_staleness=seconds(1.5))


@pytest.fixture
def app(database_url: str) -> App:
    return App(database_url, settings=QUICK)


def with_settings(database_url: str, settings: Settings) -> App:
    return App(database_url, settings=settings)


async def drain(app: App, *queues: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await app.work(queues or ("default",), until_idle=True, maintenance=False)


async def run_one(app: App, kind: str, args: dict[str, Any] | None = None, **options: Any) -> Job:
    """Enqueues a job, runs it, and returns it as it is then."""
    async with app:
        job = await app.enqueue(kind, args or {}, **options)
        await drain(app)
        return await app.get(job.id)


def sample(worker: Worker, name: str, **labels: str) -> float:
    return worker.metrics.registry.get_sample_value(name, labels) or 0.0


class TestOutcomes:
    async def test_a_return_completes_with_the_result(self, app: App) -> None:
        @app.job
        async def add(a: int, b: int) -> dict[str, int]:
            return {"sum": a + b}

        async with app:
            job = await add.enqueue(1, b=2)
            await drain(app)
            assert await app.result(job.id, timeout="10s") == {"sum": 3}
            assert (await app.get(job.id)).state is State.COMPLETED

    async def test_a_synchronous_handler_runs_in_a_thread(self, app: App) -> None:
        @app.job
        def where() -> str:
            return threading.current_thread().name

        job = await run_one(app, "where")
        assert job.result != threading.current_thread().name
        assert job.result.startswith("awa-handler")

    async def test_an_error_is_tried_again_and_its_causes_are_kept(self, app: App) -> None:  # P8
        @app.job
        async def work() -> NoReturn:
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise RuntimeError("outer") from error

        job = await run_one(app, "work")
        assert (job.state, job.attempt) == (State.RETRYABLE, 1)
        assert job.errors[-1]["error"] == "RuntimeError: outer ← KeyError: 'inner'"

    async def test_the_last_attempt_fails_for_good(self, app: App, caplog: pytest.LogCaptureFixture) -> None:  # F20
        @app.job(max_attempts=2)
        def work() -> NoReturn:
            raise ValueError("no")

        async with app:
            await set_backoff_off(app)
            job = await app.enqueue("work")
            await drain(app)
            assert ((await app.get(job.id)).state, (await app.get(job.id)).attempt) == (State.FAILED, 2)
            with pytest.raises(awa.JobFailed, match=f"job {job.id} failed: ValueError: no"):
                await app.result(job.id, timeout="10s")
        levels = [record.levelno for record in caplog.records if record.name == "awa.worker" and record.exc_info]
        assert levels == [logging.WARNING, logging.ERROR]
        assert "its 1st attempt of 2 failed, retry in 0 s: ValueError: no" in caplog.text
        assert "failed for good at its 2nd attempt of 2" in caplog.text

    @pytest.mark.parametrize("how", ["raised", "returned"])
    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    async def test_deliberate_ends_may_be_raised_or_returned(self, app: App, how: str, kind: str) -> None:
        ends: dict[str, Outcome] = {
            "retry": awa.Retry("later", after="60s"),
            "snooze": awa.Snooze("60s"),
            "cancel": awa.Cancel("not wanted"),
            "fail": awa.Fail("pointless"),
        }

        def end(name: str) -> Outcome:
            if how == "raised":
                raise ends[name]
            return ends[name]

        @app.job
        async def in_loop(name: str) -> object:
            return end(name)

        @app.job
        def in_thread(name: str) -> object:
            return end(name)

        async with app:
            jobs = {name: (await app.enqueue(kind, {"name": name})).id for name in ends}
            await drain(app)
            found = {name: await app.get(job_id) for name, job_id in jobs.items()}
        assert {name: (job.state, job.attempt) for name, job in found.items()} == {
            "retry": (State.RETRYABLE, 1),
            "snooze": (State.SCHEDULED, 0),
            "cancel": (State.CANCELLED, 1),
            "fail": (State.FAILED, 1),
        }
        assert [found[name].errors[-1]["error"] for name in ("retry", "cancel", "fail")] == [
            "later",
            "not wanted",
            "pointless",
        ]
        assert found["snooze"].errors == []
        for name in ("retry", "snooze"):
            assert seconds(50) < found[name].run_at - found[name].created_at < seconds(90)

    async def test_a_reason_may_be_an_exception(self, app: App) -> None:
        @app.job
        async def work() -> NoReturn:
            raise awa.Fail(ValueError("odd"))  # type: ignore[arg-type]

        job = await run_one(app, "work")
        assert (job.state, job.errors[-1]["error"]) == (State.FAILED, "odd")

    async def test_a_result_that_is_not_json_fails_without_a_retry(self, app: App) -> None:
        @app.job
        async def work() -> object:
            return {"when": object()}

        job = await run_one(app, "work")
        assert (job.state, job.attempt) == (State.FAILED, 1)
        assert job.errors[-1]["error"] == "work: result.when: an object is not JSON-serializable"

    async def test_a_result_that_is_too_large_fails_without_a_retry(self, database_url: str) -> None:
        app = with_settings(database_url, replace(QUICK, max_args_bytes=100))

        @app.job
        async def work() -> str:
            return "x" * 200

        job = await run_one(app, "work")
        assert (job.state, job.errors[-1]["error"]) == (
            State.FAILED,
            "work: 202 bytes of result, the limit is 100 bytes",
        )

    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    @pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit("x"), StopIteration("x")])
    async def test_whatever_a_handler_raises_ends_only_the_handler(
        self, app: App, kind: str, error: BaseException
    ) -> None:
        @app.job
        async def in_loop() -> None:
            raise error

        @app.job
        def in_thread() -> None:
            if isinstance(error, SystemExit):
                sys.exit(3)
            raise error

        @app.job
        async def after() -> str:
            return "alive"

        async with app:
            job = await app.enqueue(kind)
            other = await app.enqueue("after")
            await drain(app)
            assert (await app.get(job.id)).state is State.RETRYABLE
            assert await app.result(other.id, timeout="10s") == "alive"

    async def test_an_error_that_cannot_say_what_it_is_counts_too(self, app: App) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise ValueError("no words")

        @app.job
        async def work() -> NoReturn:
            raise Mute

        job = await run_one(app, "work")
        assert job.state is State.RETRYABLE
        assert job.errors[-1]["error"].startswith("Mute")

    async def test_text_that_postgresql_cannot_store_is_cleaned(self, app: App) -> None:
        @app.job
        async def work() -> NoReturn:
            raise ValueError("a\x00b")

        job = await run_one(app, "work")
        assert job.errors[-1]["error"] == "ValueError: a\\0b"

    async def test_a_delay_that_no_calendar_has_fails_the_job_and_no_other(self, app: App) -> None:
        @app.job
        async def far() -> NoReturn:
            raise awa.Retry(after=999_999_998 * 86_400)

        @app.job
        async def near() -> NoReturn:
            raise awa.Retry(after=60)

        async with app:
            bad, good = await app.enqueue_many([app.new("far"), app.new("near")])
            await drain(app)
            assert (await app.get(good.id)).state is State.RETRYABLE
            job = await app.get(bad.id)
        assert job.state is State.FAILED
        assert "the outcome cannot be stored" in job.errors[-1]["error"]

    async def test_arguments_that_do_not_fit_fail_the_attempt(self, app: App, session: Session) -> None:
        @app.job
        async def work(number: int) -> None: ...

        await session.connection.execute("""SELECT awa.enqueue('work', '{"number": "many"}')""")
        async with app:
            await drain(app)
        assert await states(session) == {"retryable": 1}
        errors = await session.connection.fetchval("SELECT errors -> 0 ->> 'error' FROM awa.scheduled")
        assert 'work: argument "number"' in errors

    async def test_retention_0_keeps_nothing(self, database_url: str, session: Session) -> None:
        app = with_settings(database_url, replace(QUICK, completed_retention=seconds(0)))

        @app.job
        async def work() -> None: ...

        async with app:
            await app.enqueue("work")
            await drain(app)
        assert await states(session) == {}


async def set_backoff_off(app: App) -> None:
    async with app.pool.acquire() as connection:
        await set_queue(app.session(connection), "default", {"backoff_enabled": False})


class TestContext:
    async def test_it_shows_the_job_and_the_attempt(self, app: App) -> None:
        @app.job
        async def work(ctx: Context, number: int) -> dict[str, Any]:
            return {"id": ctx.job.id, "attempt": ctx.attempt, "tags": ctx.job.tags, "args": ctx.job.args}

        job = await run_one(app, "work", {"number": 3}, tags=["t"])
        assert job.result == {"id": job.id, "attempt": 1, "tags": ["t"], "args": {"number": 3}}

    async def test_progress_is_seen_while_the_job_runs(self, app: App) -> None:
        go_on = threading.Event()

        @app.job
        def work(ctx: Context) -> None:
            ctx.progress(0.5, "halfway \x00 \ud800")
            go_on.wait(PATIENCE_S)

        async with app, working(app):
            job = await app.enqueue("work")

            async def seen() -> Any:
                return (await app.get(job.id)).progress

            progress = await eventually(seen)
            assert (await app.get(job.id)).state is State.RUNNING
            go_on.set()
        assert progress["fraction"] == 0.5
        assert progress["message"].startswith("halfway")

    async def test_the_last_word_of_progress_is_there_at_the_end(self, app: App) -> None:
        @app.job
        async def work(ctx: Context) -> None:
            ctx.progress(0.1)
            ctx.progress(1, "done")

        job = await run_one(app, "work")
        assert (job.state, job.progress) == (State.COMPLETED, {"fraction": 1, "message": "done"})

    async def test_progress_is_from_0_to_1(self, app: App) -> None:
        @app.job
        async def work(ctx: Context) -> None:
            ctx.progress(50)

        job = await run_one(app, "work")
        assert job.errors[-1]["error"] == "ValueError: progress goes from 0 to 1, not 50"


class TestTimeout:
    async def test_an_asynchronous_handler_is_interrupted(self, app: App) -> None:  # D3
        @app.job(timeout="0.2s")
        async def work(ctx: Context) -> None:
            await asyncio.sleep(PATIENCE_S)

        job = await run_one(app, "work")
        assert job.state is State.RETRYABLE
        assert job.errors[-1]["error"] == "HandlerTimeout: timed out after 0.2 s"

    async def test_a_synchronous_handler_is_told_and_its_slot_stays_taken_until_it_ends(self, app: App) -> None:
        told: list[str | None] = []
        go_on = threading.Event()

        @app.job(timeout="0.3s", max_attempts=1)
        def work(ctx: Context) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not ctx.cancelled and time.monotonic() < deadline:
                time.sleep(0.01)
            told.append(ctx.cancel_reason)
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
                await eventually(lambda: told)
                await asyncio.sleep(3 * QUICK.poll_interval.total_seconds())
                assert (await app.get(waiting.id)).state is State.AVAILABLE
                assert sample(worker, "awa_jobs_running", queue="default") == 1
            finally:
                go_on.set()
            assert await app.result(waiting.id, timeout="20s") is None
        assert told == ["it overran its time"]

    async def test_a_timeout_error_of_the_handlers_own_is_an_error_like_others(self, app: App) -> None:
        @app.job(timeout="30s")
        async def work() -> None:
            raise TimeoutError("the API was slow")

        job = await run_one(app, "work")
        assert job.errors[-1]["error"] == "TimeoutError: the API was slow"

    async def test_past_the_absolute_deadline_it_fails(self, app: App, session: Session) -> None:  # D3
        @app.job
        async def work() -> None:
            await asyncio.sleep(PATIENCE_S)

        job_id = await session.connection.fetchval(
            "SELECT awa.enqueue('work', deadline => clock_timestamp() + interval '1.5 seconds')"
        )
        async with app:
            await drain(app)
            assert (await app.get(job_id)).state is State.FAILED


class Gate:
    """A handler's start, its end, and the way out."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.open = threading.Event()
        self.told: list[str] = []

    def __call__(self, ctx: Context, until_told: bool = True) -> str:
        self.started.set()
        deadline = time.monotonic() + PATIENCE_S
        while not self.open.is_set() and time.monotonic() < deadline:
            if ctx.cancelled:
                self.told.append(ctx.cancel_reason or "")
                break
            time.sleep(0.01)
        return "the end"


class TestCancel:
    async def test_an_asynchronous_handler_is_interrupted_within_seconds(self, app: App) -> None:  # F7
        told: list[str | None] = []

        @app.job
        async def work(ctx: Context) -> None:
            try:
                await asyncio.sleep(PATIENCE_S)
            finally:
                told.append(ctx.cancel_reason)

        async with app, working(app):
            job = await app.enqueue("work")
            await eventually(lambda: running(app, job.id))
            assert await app.cancel(job.id)
            began = time.monotonic()
            with pytest.raises(awa.JobCancelled, match="cancelled by user"):
                await app.result(job.id, timeout="20s")
            assert time.monotonic() - began < 5
            assert (await app.get(job.id)).attempt == 1
        assert told == ["cancelled by user"]

    async def test_it_works_without_hearing_notifications(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("awa_py.worker.service.Listener.run", lambda self: asyncio.sleep(PATIENCE_S * 2))

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

    async def test_a_synchronous_handler_is_told_and_one_that_finishes_stays_completed(self, app: App) -> None:  # F7
        gate = Gate()

        @app.job
        def work(ctx: Context) -> str:
            return gate(ctx)

        async with app, working(app):
            job = await app.enqueue("work")
            await eventually(gate.started.is_set)
            await app.cancel(job.id)
            assert await app.result(job.id, timeout="20s") == "the end"
        assert gate.told == ["cancelled by user"]

    async def test_a_synchronous_handler_that_gives_up_ends_cancelled(self, app: App) -> None:
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

    async def test_an_asynchronous_handler_that_finishes_anyway_stays_completed(self, app: App) -> None:  # F7
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

    async def test_a_job_that_waits_to_be_told_is(self, app: App) -> None:
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

    async def test_a_job_that_was_cancelled_before_its_first_step_ends(self, app: App, session: Session) -> None:
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


async def running(app: App, job_id: int) -> bool:
    return (await app.get(job_id)).state is State.RUNNING


async def nothing_runs(session: Session) -> bool:
    return not {"running", "available"} & (await states(session)).keys()


class TestWhatItTakes:
    async def test_an_unknown_kind_is_never_claimed_and_waits(self, app: App) -> None:
        @app.job
        async def work() -> None: ...

        async with app:
            unknown = await app.enqueue("elsewhere")
            known = await app.enqueue("work")
            await drain(app)
            assert ((await app.get(unknown.id)).state, (await app.get(unknown.id)).attempt) == (State.AVAILABLE, 0)
            assert (await app.get(known.id)).state is State.COMPLETED

    @pytest.mark.parametrize("how", ["in_loop", "in_thread"])
    async def test_no_more_than_the_slots_of_a_queue_and_of_the_worker(self, app: App, how: str) -> None:
        lock = threading.Lock()
        now: Counter[str] = Counter()
        most: Counter[str] = Counter()

        def enter(queue: str) -> None:
            with lock:
                for name in (queue, "all"):
                    now[name] += 1
                    most[name] = max(most[name], now[name])

        def leave(queue: str) -> None:
            with lock:
                for name in (queue, "all"):
                    now[name] -= 1

        @app.job
        async def in_loop(queue: str) -> None:
            enter(queue)
            await asyncio.sleep(0.01)
            leave(queue)

        @app.job
        def in_thread(queue: str) -> None:
            enter(queue)
            time.sleep(0.01)
            leave(queue)

        async with app:
            await app.enqueue_many([app.new(how, {"queue": q}, queue=q) for q in ("a", "b") for _ in range(60)])
            async with asyncio.timeout(PATIENCE_S):
                await app.work({"a": 2, "b": 3}, concurrency=4, until_idle=True, maintenance=False)
        assert most["a"] == 2
        assert 2 <= most["b"] <= 3
        assert most["all"] <= 4

    async def test_until_idle_leaves_a_paused_queue_alone(self, app: App, session: Session) -> None:
        @app.job
        async def work() -> None: ...

        async with app:
            await app.enqueue("work")
            await pause_queue(session, "default", paused=True)
            await drain(app)
        assert await states(session) == {"available": 1}

    async def test_a_resumed_queue_goes_on_at_once(self, database_url: str, session: Session) -> None:
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(60)))

        @app.job
        async def work() -> None: ...

        await pause_queue(session, "default", paused=True)
        async with app, working(app):
            job = await app.enqueue("work")
            await pause_queue(session, "default", paused=False)
            await app.result(job.id, timeout="20s")

    async def test_until_idle_runs_what_becomes_due_by_failing(self, app: App) -> None:
        attempts: list[int] = []

        @app.job
        async def work(ctx: Context) -> None:
            attempts.append(ctx.attempt)
            if ctx.attempt < 3:
                raise awa.Retry(after=0)

        job = await run_one(app, "work")
        assert attempts == [1, 2, 3]
        assert (job.state, len(job.errors)) == (State.COMPLETED, 2)

    async def test_many_queues_are_polled_with_one_look(self, database_url: str, session: Session) -> None:
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(0.1)))

        @app.job
        async def work() -> None: ...

        async with app, working(app, [f"q{n}" for n in range(20)]):
            # Straight into the table: no notification tells of it.
            await session.connection.execute("INSERT INTO awa.ready (kind, queue) VALUES ('work', 'q13')")
            await eventually(lambda: nothing_runs(session))

    async def test_a_worker_takes_over_what_a_dead_one_left(self, app: App, session: Session) -> None:  # D4, Y1
        @app.job
        async def work(ctx: Context) -> int:
            return ctx.attempt

        job_id = await session.connection.fetchval(
            "INSERT INTO awa.running (kind, worker_id, lease, attempt, attempted_at, heartbeat_at) VALUES "
            "('work', gen_random_uuid(), 1, 1, now() - interval '60 s', now() - interval '60 s') RETURNING id"
        )
        async with app:
            await drain(app)
            assert await app.result(job_id, timeout="10s") == 2

    async def test_it_is_in_the_registry_while_it_works(self, app: App, session: Session) -> None:
        @app.job
        async def work() -> None: ...

        async with app, working(app, {"default": 3, "mail": 2}, concurrency=4) as worker:
            (row,) = await list_workers(session, staleness=seconds(10))
            assert (row.id, row.queues, row.kinds, row.concurrency) == (worker.id, ["default", "mail"], ["work"], 4)
            assert row.alive
            assert await count(session.connection, "SELECT count(*) FROM awa.queues") == 2
        assert await list_workers(session, staleness=seconds(10)) == []

    async def test_a_database_without_schema_is_a_clear_error(self, fresh_database_url: str) -> None:
        app = with_settings(fresh_database_url, QUICK)

        @app.job
        async def work() -> None: ...

        with pytest.raises(awa.SchemaMissing, match="run `awa migrate`"):
            await app.work(until_idle=True, maintenance=False)

    @pytest.mark.parametrize(
        ("queues", "concurrency", "says"),
        [
            ({}, 1, "at least one queue"),
            ({"a": 0}, 1, "1 or more"),
            ({"a": 1}, 0, "1 or more"),
            ({"a,b": 1}, 1, "comma"),
        ],
    )
    async def test_a_worker_that_cannot_work_is_refused(
        self, queues: dict[str, int], concurrency: int, says: str
    ) -> None:  # F2
        with pytest.raises(awa.AwaError, match=says):
            App("postgresql://localhost/nowhere").worker(queues, concurrency=concurrency)


class TestShutdown:  # F19
    async def test_running_jobs_finish(self, app: App, session: Session) -> None:
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
        assert gate.told == []

    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    async def test_what_is_too_slow_is_given_back_unburned(self, database_url: str, kind: str) -> None:
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

    async def test_a_thread_that_does_not_listen_is_counted_as_abandoned(self, database_url: str) -> None:
        app = with_settings(database_url, replace(QUICK, shutdown_timeout=seconds(0.2)))
        started, release = threading.Event(), threading.Event()

        @app.job
        def deaf() -> None:
            started.set()
            release.wait(PATIENCE_S)

        async with app:
            job = await app.enqueue("deaf")
            worker = app.worker(["default"], maintenance=False)
            task = asyncio.create_task(worker.run())
            await eventually(started.is_set)
            worker.stop()
            async with asyncio.timeout(PATIENCE_S):
                await task
            assert worker.abandoned == 1
            assert (await app.get(job.id)).state is State.AVAILABLE
            release.set()

    async def test_a_second_stop_ends_it_at_once(self, database_url: str) -> None:
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

    async def test_heartbeats_go_on_meanwhile(self, database_url: str, session: Session) -> None:
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

    async def test_it_can_start_and_stop_again_and_again(self, app: App, session: Session) -> None:
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


async def beaten_since(session: Session, job_id: int, moment: datetime | None) -> bool:
    return (await look(session, job_id)).heartbeat_at != moment


class TestHeartbeat:
    async def test_a_handler_that_blocks_the_event_loop_does_not_look_dead(self, database_url: str) -> None:
        app = with_settings(database_url, replace(HASTY, heartbeat_rescue_interval=seconds(0.2)))

        @app.job
        async def work() -> str:
            time.sleep(4)  # far longer than the lease
            return "done"

        async with app, working(app, maintenance=True):
            job = await app.enqueue("work")
            await app.result(job.id, timeout="30s")
            found = await app.get(job.id)
        assert (found.result, found.attempt, found.rescues, found.errors) == ("done", 1, 0, [])

    async def test_a_queues_shorter_staleness_is_obeyed_even_by_jobs_in_flight(
        self, database_url: str, session: Session
    ) -> None:
        app = with_settings(
            database_url,
            replace(
                QUICK,
                heartbeat_interval=seconds(20),
                heartbeat_staleness=seconds(60),
                heartbeat_rescue_interval=seconds(0.2),
            ),
        )
        gate = Gate()

        @app.job
        def work(ctx: Context) -> str:
            return gate(ctx)

        async with app, working(app, maintenance=True):
            job = await app.enqueue("work")
            await eventually(gate.started.is_set)
            await set_queue(session, "default", {"staleness": seconds(2)})
            for _ in range(4):  # four beats: longer than the lease that it began with
                last = (await look(session, job.id)).heartbeat_at
                await eventually(partial(beaten_since, session, job.id, last))
            gate.open.set()
            assert await app.result(job.id, timeout="20s") == "the end"
            assert (await app.get(job.id)).rescues == 0
        assert gate.told == []

    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    async def test_a_lost_lease_is_told_and_its_outcome_changes_nothing(  # F8, A12, P7
        self, database_url: str, session: Session, caplog: pytest.LogCaptureFixture, kind: str
    ) -> None:
        app = with_settings(database_url, HASTY)
        gate = Gate()

        @app.job
        async def in_loop(ctx: Context) -> None:
            gate.started.set()
            try:
                await asyncio.sleep(PATIENCE_S)
            finally:
                gate.told.append(ctx.cancel_reason or "")

        @app.job
        def in_thread(ctx: Context) -> str:
            return gate(ctx)

        async with app:
            async with working(app) as worker:
                job = await app.enqueue(kind)
                await eventually(gate.started.is_set)
                await session.connection.execute("UPDATE awa.running SET lease = 7, worker_id = gen_random_uuid()")
                await eventually(lambda: gate.told)
                await eventually(lambda: sample(worker, "awa_lost_leases_total"))
            assert sample(worker, "awa_lost_leases_total") == 1
            found = await app.get(job.id)
        assert gate.told == ["its lease was lost"]
        assert (found.state, found.lease, found.errors) == (State.RUNNING, 7, [])
        assert "the 1st attempt was no longer ours when it ended" in caplog.text

    async def test_a_rescued_job_is_told_at_once_where_it_runs(self, app: App, session: Session) -> None:  # A12
        told: list[str | None] = []

        @app.job
        async def work(ctx: Context) -> None:
            try:
                await asyncio.sleep(PATIENCE_S)
            finally:
                told.append(ctx.cancel_reason)

        async with app, working(app):
            job = await app.enqueue("work")
            await eventually(lambda: running(app, job.id))
            await session.connection.execute("UPDATE awa.running SET deadline_at = now()")
            assert len(await rescue_overdue_jobs(session, limit=5)) == 1
            await eventually(lambda: told)
        assert told == ["its lease was lost"]

    async def test_a_worker_that_cannot_beat_stops_its_handlers_before_their_leases_end(  # P5
        self, database_url: str, database: Database, session: Session
    ) -> None:
        settings = replace(QUICK, heartbeat_interval=seconds(0.3), heartbeat_staleness=seconds(3))
        app = with_settings(database_url, settings)
        told: list[str | None] = []
        attempts: list[int] = []

        @app.job
        async def work(ctx: Context) -> None:
            attempts.append(ctx.attempt)
            if ctx.job.lease > 1:
                return
            try:
                await asyncio.sleep(PATIENCE_S)
            finally:
                told.append(ctx.cancel_reason)

        async with app, working(app), another_session(database) as locker:
            job = await app.enqueue("work")
            await eventually(lambda: attempts)
            async with locker.connection.transaction():
                await locker.connection.execute("LOCK TABLE awa.running IN ACCESS EXCLUSIVE MODE")
                await eventually(lambda: told)
                age_s = await locker.connection.fetchval(
                    "SELECT extract(epoch FROM clock_timestamp() - heartbeat_at)::float8 FROM awa.running"
                )
            assert age_s < 3
            assert await app.result(job.id, timeout="20s") is None
        assert told == ["its lease ran out: the database could not be reached"]
        assert attempts == [1, 1]  # given back unburned


class TestConnections:
    async def test_a_new_job_wakes_an_idle_worker(self, database_url: str) -> None:  # F13
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(60)))

        @app.job
        async def work() -> None: ...

        async with app, working(app):
            for _ in range(5):
                job = await app.enqueue("work")
                began = time.monotonic()
                await app.result(job.id, timeout="20s")
                assert time.monotonic() - began < 5

    async def test_a_lost_listener_listens_again(self, database_url: str, session: Session) -> None:
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(60)))

        @app.job
        async def work() -> None: ...

        async with app, working(app) as worker:
            for _ in range(2):
                before = await listener_pids(session)
                assert await terminate(session, "awa listener") == 1
                await eventually(partial(listens_anew, session, before))
                await eventually(lambda: worker.listening)
                job = await app.enqueue("work")
                await app.result(job.id, timeout="20s")

    async def test_what_was_enqueued_while_nobody_listened_is_found_at_once(
        self, database_url: str, session: Session
    ) -> None:
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(60)))

        @app.job
        async def work() -> None: ...

        async with app, working(app):
            await terminate(session, "awa listener")
            job = await app.enqueue("work")
            await app.result(job.id, timeout="20s")

    async def test_every_connection_cut_under_load_loses_nothing(self, app: App, session: Session) -> None:
        total = 600
        active: set[int] = set()
        twice: list[int] = []
        done: Counter[int] = Counter()

        @app.job
        async def work(ctx: Context) -> None:
            if ctx.job.id in active:
                twice.append(ctx.job.id)
            active.add(ctx.job.id)
            await asyncio.sleep(0.02)
            active.discard(ctx.job.id)
            done[ctx.job.id] += 1

        async with app, working(app, {"default": 10}, maintenance=True):
            jobs = await app.enqueue_many([app.new("work") for _ in range(total)])
            for _ in range(8):
                await asyncio.sleep(0.15)
                await terminate(session, "awa %")
            await eventually(lambda: nothing_runs(session), 60)
        assert await states(session) == {"completed": total}
        assert set(done) == {job.id for job in jobs}
        assert twice == []


async def listener_pids(session: Session) -> set[int]:
    rows = await session.connection.fetch(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'awa listener'"
    )
    return {row["pid"] for row in rows}


async def listens_anew(session: Session, before: set[int]) -> bool:
    return bool(await listener_pids(session) - before)


async def terminate(session: Session, name: str) -> int:
    """Ends the sessions of a name in this database, but for the test's own."""
    return await count(
        session.connection,
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name LIKE $1 AND application_name NOT IN ('awa test', 'awa client')",
        name,
    )


async def test_work_from_the_same_loop_as_its_caller(app: App) -> None:
    """`app.work` inside a program: jobs run on the caller's loop, and cancelling it ends it well."""
    loops: list[object] = []

    @app.job
    async def work() -> None:
        loops.append(asyncio.get_running_loop())

    async with app:
        task = asyncio.create_task(app.work(maintenance=False))
        job = await app.enqueue("work")
        await app.result(job.id, timeout="20s")
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert loops == [asyncio.get_running_loop()]


async def test_ten_thousand_jobs_in_order_and_each_once(app: App, session: Session) -> None:
    ran: list[int] = []

    @app.job
    async def work(number: int) -> None:
        ran.append(number)

    async with app:
        await app.enqueue_many([app.new("work", {"number": n}) for n in range(10_000)])
        await drain(app)
    assert ran == list(range(10_000))
    assert await states(session) == {"completed": 10_000}


async def test_put_from_the_store_is_run_too(app: App, session: Session) -> None:
    ran: list[str] = []

    @app.job
    async def work() -> None:
        ran.append("work")

    await put(session, awa.NewJob(kind="work"))
    await drain(app)
    assert ran == ["work"]
