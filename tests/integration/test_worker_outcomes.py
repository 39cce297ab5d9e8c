"""The outcomes of handlers, and the context that they get."""

import asyncio
import logging
import os
import socket
import sys
import threading
from dataclasses import replace
from typing import Any, NoReturn

import pytest

import awa_py as awa
from awa_py import App, Context, State
from awa_py.model.outcomes import Outcome
from awa_py.store.queues import set_queue
from awa_py.store.session import Session
from tests.support import (
    PATIENCE_S,
    QUICK,
    drain,
    eventually,
    run_one,
    seconds,
    states,
    with_settings,
    working,
)

pytestmark = pytest.mark.integration


class Declined(Exception):
    pass


async def decline() -> NoReturn:
    raise Declined("no card")


async def ended(app: App, job_id: int) -> awa.Job | None:
    job = await app.get(job_id)
    return job if job.errors else None


class TestChildren:
    async def test_job_enqueues_children_and_waits_for_their_results(self, app: App) -> None:  # D5
        @app.job
        async def double(number: int) -> int:
            return number * 2

        @app.job
        async def add_up(ctx: Context) -> int:
            for number in (1, 2, 3):
                await double.options(parent_id=ctx.job.id).enqueue(number)
            children = await app.children(ctx.job.id)
            return sum([await app.result(child.id, timeout="30s") for child in children])

        async with app:
            parent = await add_up.enqueue()
            await drain(app)
            assert await app.result(parent.id, timeout="10s") == 12
            children = await app.children(parent.id)
            assert [(child.kind, child.result, child.parent_id) for child in children] == [
                ("double", 2, parent.id),
                ("double", 4, parent.id),
                ("double", 6, parent.id),
            ]

    async def test_handler_can_enqueue_without_an_open_app(self, app: App, session: Session) -> None:
        @app.job
        async def child() -> None: ...

        @app.job
        async def parent() -> None:
            await child.enqueue()

        async with app:
            await parent.enqueue()
        await drain(app)
        assert await states(session) == {"completed": 2}


class TestOutcomes:
    async def test_return_value_is_the_result(self, app: App) -> None:
        @app.job
        async def add(a: int, b: int) -> dict[str, int]:
            return {"sum": a + b}

        async with app:
            job = await add.enqueue(1, b=2)
            await drain(app)
            assert await app.result(job.id, timeout="10s") == {"sum": 3}
            assert (await app.get(job.id)).state is State.COMPLETED

    async def test_sync_handler_runs_in_a_thread(self, app: App) -> None:
        @app.job
        def thread_name() -> str:
            return threading.current_thread().name

        job = await run_one(app, "thread_name")
        assert job.result != threading.current_thread().name
        assert job.result.startswith("awa-handler")

    async def test_failed_attempt_is_retried_and_keeps_the_causes_of_its_error(self, app: App) -> None:  # P8
        @app.job
        async def work() -> NoReturn:
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise RuntimeError("outer") from error

        job = await run_one(app, "work")
        assert (job.state, job.attempt) == (State.RETRYABLE, 1)
        assert job.errors[-1]["error"] == "RuntimeError: outer ← KeyError: 'inner'"

    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    async def test_error_keeps_the_traceback_the_class_and_the_worker(self, app: App, kind: str) -> None:
        @app.job
        async def in_loop() -> NoReturn:
            raise Declined("no card")

        @app.job
        def in_thread() -> NoReturn:
            raise Declined("no card")

        async with app, working(app) as worker:
            job = await app.enqueue(kind)
            (error,) = (await eventually(lambda: ended(app, job.id))).errors
        assert error["exception"] == f"{__name__}.Declined"
        assert error["worker_id"] == str(worker.id)
        assert error["worker"] == f"{socket.gethostname()}:{os.getpid()}"
        assert error["traceback"].endswith(f'in {kind}\n    raise Declined("no card")\n{__name__}.Declined: no card')
        assert "executor.py" not in error["traceback"]
        assert "handler_calls.py" not in error["traceback"]

    async def test_error_keeps_the_parts_of_an_exception_group(self, app: App) -> None:
        @app.job
        async def work() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.sleep(0)).add_done_callback(lambda _: None)
                tasks.create_task(decline())

        (error,) = (await run_one(app, "work")).errors
        assert error["exception"] == "builtins.ExceptionGroup"
        (part,) = error["parts"]
        assert (part["exception"], part["error"]) == (f"{__name__}.Declined", f"{__name__}.Declined: no card")
        assert "in decline" in part["traceback"]

    @pytest.mark.parametrize("outcome", [awa.Retry("later"), awa.Fail("later")])
    async def test_error_of_a_raised_outcome_keeps_its_cause(self, app: App, outcome: Outcome) -> None:
        @app.job
        async def work() -> None:
            try:
                await decline()
            except Declined as error:
                raise outcome from error

        (error,) = (await run_one(app, "work")).errors
        assert (error["error"], error["exception"]) == ("later", f"{__name__}.Declined")

    async def test_timeout_shows_where_the_handler_waited(self, app: App) -> None:
        @app.job(timeout="50ms")
        async def work() -> None:
            await asyncio.sleep(60)

        (error,) = (await run_one(app, "work")).errors
        assert error["error"] == "HandlerTimeout: timed out after 0.05 s"
        assert "    await asyncio.sleep(60)\n" in error["traceback"]

    async def test_jobs_of_a_batch_share_the_details_of_their_error(self, app: App, session: Session) -> None:
        @app.job(batch=3)
        async def work(jobs: list[awa.BatchJob]) -> None:
            await decline()

        async with app:
            jobs = await app.enqueue_many([work.new() for _ in range(3)])
            await drain(app)
            errors = [(await app.get(job.id)).errors[0] for job in jobs]
        assert [error["exception"] for error in errors] == [f"{__name__}.Declined"] * 3

    async def test_failed_last_attempt_fails_the_job(self, app: App, caplog: pytest.LogCaptureFixture) -> None:  # F20
        @app.job(max_attempts=2)
        def work() -> NoReturn:
            raise ValueError("no")

        async with app:
            await disable_backoff(app)
            job = await app.enqueue("work")
            await drain(app)
            assert ((await app.get(job.id)).state, (await app.get(job.id)).attempt) == (State.FAILED, 2)
            with pytest.raises(awa.JobFailed, match=f"job {job.id} failed: ValueError: no"):
                await app.result(job.id, timeout="10s")
        levels = [record.levelno for record in caplog.records if record.name == "awa.worker" and record.exc_info]
        assert levels == [logging.WARNING, logging.ERROR]
        assert "the 1st attempt of 2 failed, retrying in 0 s: ValueError: no" in caplog.text
        assert "failed permanently on its 2nd attempt of 2" in caplog.text

    @pytest.mark.parametrize("how", ["raised", "returned"])
    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    async def test_outcomes_can_be_raised_or_returned(self, app: App, how: str, kind: str) -> None:
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

    async def test_reason_of_an_outcome_can_be_an_exception(self, app: App) -> None:
        @app.job
        async def work() -> NoReturn:
            raise awa.Fail(ValueError("odd"))  # type: ignore[arg-type]

        job = await run_one(app, "work")
        assert (job.state, job.errors[-1]["error"]) == (State.FAILED, "odd")

    async def test_result_that_is_not_json_fails_the_job_without_a_retry(self, app: App) -> None:
        @app.job
        async def work() -> object:
            return {"when": object()}

        job = await run_one(app, "work")
        assert (job.state, job.attempt) == (State.FAILED, 1)
        assert job.errors[-1]["error"] == "work: result.when: an object is not JSON-serializable"

    async def test_result_that_is_too_large_fails_the_job_without_a_retry(self, database_url: str) -> None:
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
    async def test_base_exception_in_a_handler_does_not_stop_the_worker(
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

    @pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt, SystemExit])
    async def test_error_whose_text_cannot_be_read_fails_the_attempt(
        self, app: App, failure: type[BaseException]
    ) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise failure("no words")

        @app.job
        async def work() -> NoReturn:
            raise Mute

        job = await run_one(app, "work")
        assert job.state is State.RETRYABLE
        assert job.errors[-1]["error"].startswith("Mute")

    async def test_error_whose_class_misbehaves_fails_the_attempt(self, app: App) -> None:
        class Meta(type):
            def __getattribute__(cls, name: str) -> Any:
                raise KeyboardInterrupt

        class Odd(Exception, metaclass=Meta):
            pass

        @app.job
        async def work() -> NoReturn:
            raise Odd

        job = await run_one(app, "work")
        assert job.state is State.RETRYABLE
        assert job.errors[-1]["error"].startswith("Odd")

    async def test_error_with_a_message_of_10_mb_is_bounded_in_the_log_and_in_the_row(
        self, app: App, caplog: pytest.LogCaptureFixture
    ) -> None:
        @app.job
        async def work() -> NoReturn:
            raise ValueError("x" * 10_000_000)

        job = await run_one(app, "work")
        assert len(job.errors[-1]["error"]) <= 4_000
        assert 1_000 < len(caplog.text) < 100_000

    async def test_error_text_that_postgresql_cannot_store_is_cleaned(self, app: App) -> None:
        @app.job
        async def work() -> NoReturn:
            raise ValueError("a\x00b")

        job = await run_one(app, "work")
        assert job.errors[-1]["error"] == "ValueError: a\\0b"

    async def test_outcome_that_cannot_be_stored_fails_only_its_job(self, app: App, session: Session) -> None:
        @app.job
        async def refused() -> NoReturn:
            raise awa.Retry(after=60)

        @app.job
        async def accepted() -> NoReturn:
            raise awa.Retry(after=60)

        await session.connection.execute("ALTER TABLE awa.scheduled ADD CHECK (kind <> 'refused')")
        async with app:
            bad, good = await app.enqueue_many([app.new("refused"), app.new("accepted")])
            await drain(app)
            assert (await app.get(good.id)).state is State.RETRYABLE
            job = await app.get(bad.id)
        assert job.state is State.FAILED
        assert "the outcome cannot be stored" in job.errors[-1]["error"]

    async def test_unfit_arguments_fail_the_job_at_once_and_a_retry_runs_it_after_a_fix(
        self, app: App, session: Session, database_url: str
    ) -> None:
        @app.job
        async def work(number: int) -> None: ...

        job_id = await session.connection.fetchval("""SELECT awa.enqueue('work', '{"number": "many"}')""")
        async with app:
            await drain(app)
            job = await app.get(job_id)
        assert (job.state, job.attempt) == (State.FAILED, 1)
        assert job.errors[-1]["error"] == 'UnfitArguments: work: argument "number" must be int, not str'

        fixed = with_settings(database_url, QUICK)

        @fixed.job(kind="work")
        async def repaired(number: str) -> str:
            return number

        async with fixed:
            assert await fixed.retry(job_id)
            await drain(fixed)
            assert await fixed.result(job_id) == "many"

    async def test_unfit_arguments_of_an_enqueue_in_a_handler_are_an_ordinary_error(self, app: App) -> None:
        @app.job
        async def child(number: int) -> None: ...

        @app.job
        async def work() -> None:
            await app.enqueue("child", {"number": "many"})

        job = await run_one(app, "work")
        assert job.state is State.RETRYABLE
        assert job.errors[-1]["error"] == 'InvalidArguments: child: argument "number" must be int, not str'

    async def test_completed_job_is_deleted_if_the_retention_is_0(self, database_url: str, session: Session) -> None:
        app = with_settings(database_url, replace(QUICK, completed_retention=seconds(0)))

        @app.job
        async def work() -> None: ...

        async with app:
            await app.enqueue("work")
            await drain(app)
        assert await states(session) == {}


async def disable_backoff(app: App) -> None:
    async with app.session() as session:
        await set_queue(session, "default", {"backoff_enabled": False})


class TestContext:
    async def test_context_has_the_job_and_the_attempt(self, app: App) -> None:
        @app.job
        async def work(ctx: Context, number: int) -> dict[str, Any]:
            return {"id": ctx.job.id, "attempt": ctx.attempt, "tags": ctx.job.tags, "args": ctx.job.args}

        job = await run_one(app, "work", {"number": 3}, tags=["t"])
        assert job.result == {"id": job.id, "attempt": 1, "tags": ["t"], "args": {"number": 3}}

    async def test_progress_is_visible_while_the_job_runs(self, app: App) -> None:
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

    async def test_last_progress_is_kept_when_the_job_ends(self, app: App) -> None:
        @app.job
        async def work(ctx: Context) -> None:
            ctx.progress(0.1)
            ctx.progress(1, "done")

        job = await run_one(app, "work")
        assert (job.state, job.progress) == (State.COMPLETED, {"fraction": 1, "message": "done"})

    async def test_progress_is_clamped_to_the_range_from_0_to_1(self, app: App) -> None:
        @app.job
        async def work(ctx: Context) -> None:
            ctx.progress(1.0167)

        job = await run_one(app, "work")
        assert (job.state, job.progress) == (State.COMPLETED, {"fraction": 1.0, "message": ""})
