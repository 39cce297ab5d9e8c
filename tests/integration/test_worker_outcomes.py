"""What becomes of a job that a worker ran, and what its handler is given."""

import logging
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


class TestFamilies:
    async def test_a_job_starts_children_waits_for_them_and_sees_their_results(self, app: App) -> None:  # D5
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

    async def test_a_handler_may_enqueue_though_nobody_opened_the_app(self, app: App, session: Session) -> None:
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
        assert "attempt 1 of 2 failed, retrying in 0 s: ValueError: no" in caplog.text
        assert "failed permanently on attempt 2 of 2" in caplog.text

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
        assert job.errors[-1]["error"] == "ValueError: progress is a number from 0 to 1, not 50"
