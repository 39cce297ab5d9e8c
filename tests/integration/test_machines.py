"""State machines: a handler returns the next state of its job."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import awa_py as awa
from awa_py import App, Context, State
from awa_py.errors import ConfigError, InvalidStep
from awa_py.observability.metrics import Metrics, Reason
from awa_py.store.finish import advance_jobs
from awa_py.store.jobs import cancel_jobs
from awa_py.store.routes import set_route
from awa_py.store.session import Session
from tests.support import (
    OWNER,
    QUICK,
    drain,
    insert_queue,
    insert_running,
    listen,
    look,
    run_one,
    sample,
    seconds,
    working,
)

pytestmark = pytest.mark.integration


def order(app: App) -> Any:
    """A machine of three states, whose data is checked by its functions' parameters."""

    class Order:
        @app.job
        @staticmethod
        async def start(order_id: int) -> awa.Next:
            return Order.charge.next(order_id, amount=42)

        @app.job(retries=2, timeout="30s", priority=1)
        @staticmethod
        def charge(ctx: Context, order_id: int, amount: int) -> awa.Next:
            raise Order.ship.next(
                datetime(2026, 5, 1, tzinfo=UTC), order=f"{order_id}: {amount}, attempt {ctx.attempt}"
            )

        @app.job
        @staticmethod
        async def ship(day: datetime, order: str) -> str:
            return f"{order}, {day:%d %B}"

    return Order


any_next: Any = awa.Next  # for what type checkers refuse


def state(kind: str, **values: Any) -> str:
    return json.dumps({"kind": kind, "args": {}, **values})


async def without_backoff(app: App) -> None:
    async with app.session() as session:
        await insert_queue(session, backoff_enabled=False)


async def checkpoint(session: Session, job_id: int) -> None:
    await session.connection.execute(
        "INSERT INTO awa.checkpoints (job_id, name, number, type, lease) VALUES ($1, 'charge', 1, 'step', 1)", job_id
    )


class TestAdvance:
    async def test_job_passes_through_its_states(self, app: App) -> None:  # P1
        machine = order(app)
        async with app:
            job = await machine.start.enqueue(5)
            await drain(app)
            ended = await app.get(job)
            assert ended.result == "5: 42, attempt 1, 01 May"
        assert (ended.kind, ended.args) == (
            "Order.ship",
            {"day": "2026-05-01T00:00:00+00:00", "order": "5: 42, attempt 1"},
        )
        assert (ended.attempt, ended.lease, ended.errors) == (1, 3, [])

    async def test_plain_handler_names_the_next_state(self, app: App) -> None:
        @app.job
        async def pack(parcel: int) -> awa.Next:
            return awa.Next("send", {"parcel": parcel, "by": "rail"})

        @app.job
        async def send(parcel: int, by: str) -> str:
            return f"{parcel} by {by}"

        assert (await run_one(app, "pack", {"parcel": 3})).result == "3 by rail"

    async def test_state_has_the_options_of_its_declaration(self, app: App) -> None:
        seen: list[awa.Job] = []

        @app.job(max_attempts=7, timeout="9s", priority=4)
        async def first() -> awa.Next:
            return awa.Next("second", {"customer": 8})

        @app.job(max_attempts=3, queue="other", concurrency_key="customer:{customer}", concurrency_limit=2)
        async def second(ctx: Context, customer: int) -> awa.Next:
            seen.append(ctx.job)
            return awa.Next("third")

        @app.job
        async def third(ctx: Context) -> None:
            seen.append(ctx.job)

        async with app:
            await first.enqueue()
            await drain(app, "default", "other")
        second_job, third_job = seen
        assert (second_job.queue, second_job.priority, second_job.max_attempts, second_job.timeout) == (
            "other",
            2,
            3,
            None,
        )
        assert (second_job.concurrency_key, second_job.concurrency_limit) == ("customer:8", 2)
        # It declares no queue: the job stays where it is. The key was that of the second state.
        assert (third_job.queue, third_job.max_attempts, third_job.concurrency_key) == ("other", 25, None)

    async def test_retry_limit_of_n_means_n_plus_1_runs(self, app: App) -> None:  # P2
        runs: list[str] = []

        @app.job(max_attempts=2)
        async def first() -> awa.Next:
            runs.append("first")
            if len(runs) == 1:
                raise ValueError("once")
            return awa.Next("second")

        @app.job(retries=3)
        async def second(ctx: Context) -> None:
            runs.append(f"second {ctx.attempt}")
            raise ValueError("always")

        async with app:
            await without_backoff(app)
            job = await first.enqueue()
            async with working(app, maintenance=True):
                with pytest.raises(awa.JobFailed, match="always"):
                    await app.result(job.id, timeout="30s")
            assert runs == ["first", "first", "second 1", "second 2", "second 3", "second 4"]
            assert (await app.get(job)).state is State.FAILED

    async def test_delay_makes_the_next_state_scheduled(self, app: App) -> None:
        @app.job
        async def wait() -> awa.Next:
            return go.later("1h", 7)

        @app.job
        async def go(number: int) -> None: ...

        job = await run_one(app, "wait")
        assert (job.state, job.kind, job.args, job.attempt) == (State.SCHEDULED, "go", {"number": 7}, 0)
        assert 3500 < (job.run_at - datetime.now(UTC)).total_seconds() < 3700

    async def test_declared_delay_of_a_state_holds_unless_another_is_given(self, app: App) -> None:
        @app.job
        async def first(now: bool) -> awa.Next:
            return awa.Next("second", delay=0 if now else None)

        @app.job(delay="1h")
        async def second() -> None: ...

        assert (await run_one(app, "first", {"now": False})).state is State.SCHEDULED
        assert (await run_one(app, "first", {"now": True})).state is State.COMPLETED

    async def test_batch_handler_settles_jobs_with_their_next_states(self, app: App) -> None:
        @app.job(batch=10)
        async def sort(jobs: list[awa.BatchJob]) -> None:
            for job in jobs:
                job.settle(awa.Next("keep", job.args))

        @app.job
        async def keep(number: int) -> int:
            return number

        async with app:
            jobs = await app.enqueue_many([sort.new(number=number) for number in range(5)])
            await drain(app)
            assert [(await app.get(job)).result for job in jobs] == [0, 1, 2, 3, 4]

    async def test_history_and_metrics_name_the_next_state(self, app: App) -> None:
        machine = order(app)
        async with app:
            async with working(app) as worker:
                job = await machine.start.enqueue(5)
                await app.result(job.id, timeout="30s")
                assert sample(worker, "awa_jobs_advanced_total", queue="default") == 2
            events = await app.history(job)
        assert [(event.event, event.detail) for event in events if event.event == "advanced"] == [
            ("advanced", "to Order.charge"),
            ("advanced", "to Order.ship"),
        ]

    async def test_durable_calls_of_a_state_are_its_own(self, app: App) -> None:
        @app.job
        async def first(ctx: Context) -> awa.Next:
            return awa.Next("second", {"before": await ctx.step("roll", lambda: 1)})

        @app.job
        async def second(ctx: Context, before: int) -> list[int]:
            return [before, await ctx.step("roll", lambda: 2)]

        assert (await run_one(app, "first")).result == [1, 2]


class TestStatement:
    async def test_next_state_starts_anew(self, session: Session) -> None:
        (job_id,) = await insert_running(
            session,
            attempt=5,
            rescues=2,
            lease=9,
            progress='{"percent": 50}',
            unique_key="k",
            errors='[{"error": "e"}]',
        )
        await checkpoint(session, job_id)
        await session.connection.execute("INSERT INTO awa.signals (job_id, name) VALUES ($1, 'go')", job_id)
        await session.connection.execute("INSERT INTO awa.kept_results VALUES ($1, 7, 'child', '1')", job_id)
        assert await advance_jobs(session, OWNER, [job_id], [9], [state("ship", args={"n": 1})]) == [job_id]
        job = await look(session, job_id)
        assert (job.state, job.kind, job.args, job.attempt, job.rescues) == (State.AVAILABLE, "ship", {"n": 1}, 0, 0)
        assert (job.progress, job.lease, job.unique_key, job.errors) == (None, 9, "k", [{"error": "e"}])
        left = {
            table: await session.connection.fetchval(f"SELECT count(*) FROM awa.{table}")
            for table in ("checkpoints", "kept_results", "signals")
        }
        assert left == {"checkpoints": 0, "kept_results": 0, "signals": 1}

    async def test_undeclared_state_keeps_the_values_of_the_job(self, session: Session) -> None:
        columns: dict[str, Any] = {"queue": "q", "priority": 3, "max_attempts": 4, "timeout": seconds(5)}
        (job_id,) = await insert_running(session, **columns, concurrency_key="k", concurrency_limit=2, ordered=False)
        await advance_jobs(session, OWNER, [job_id], [1], [state("ship")])
        job = await look(session, job_id)
        assert {name: getattr(job, name) for name in columns} == columns
        assert (job.concurrency_key, job.concurrency_limit) == ("k", 2)

    async def test_route_of_an_operator_applies_to_the_next_state(self, session: Session) -> None:
        await set_route(session, "ship*", "dock")
        (job_id,) = await insert_running(session, queue="q")
        heard = await listen(session, "dock")
        await advance_jobs(session, OWNER, [job_id], [1], [state("ship")])
        assert (await look(session, job_id)).queue == "dock"
        await session.connection.execute("SELECT 1")
        assert "ready:dock" in heard

    async def test_requested_cancellation_comes_first(self, session: Session) -> None:
        (job_id,) = await insert_running(session)
        await checkpoint(session, job_id)
        await cancel_jobs(session, [job_id])
        assert await advance_jobs(session, OWNER, [job_id], [1], [state("ship")]) == [job_id]
        job = await look(session, job_id)
        assert (job.state, job.kind) == (State.CANCELLED, "work")
        assert await session.connection.fetchval("SELECT count(*) FROM awa.checkpoints") == 1  # for a retry

    async def test_large_next_states_are_written_by_several_statements(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("awa_py.store.finish.MAX_CHARACTERS", 100)
        ids = await insert_running(session, 5)
        states = [state("ship", args={"text": "x" * 50, "number": number}) for number in range(5)]
        assert await advance_jobs(session, OWNER, ids, [1] * 5, states) == ids
        assert [(await look(session, each)).args["number"] for each in ids] == [0, 1, 2, 3, 4]


class TestMistakes:
    async def test_job_of_an_unknown_state_waits_and_uses_no_attempt(self, app: App, session: Session) -> None:  # P3
        @app.job
        async def first() -> awa.Next:
            return awa.Next("nowhere")

        job = await run_one(app, "first")
        assert (job.state, job.kind, job.attempt) == (State.AVAILABLE, "nowhere", 0)
        await session.connection.execute(
            "UPDATE awa.ready SET run_at = now() - interval '1 h', entered_at = now() - interval '1 h'"
        )
        async with app:
            await app.maintenance.unserved()
            noted = await app.get(job)
            async with working(app):
                assert "nowhere" in " ".join(await app.explain(job))
        assert noted.state is State.AVAILABLE
        assert "nowhere" in noted.errors[-1]["error"]

    async def test_unreadable_data_fails_the_job_and_a_retry_resumes_the_state(  # P3
        self, app: App, session: Session
    ) -> None:
        ran: list[int] = []

        @app.job
        async def good(number: int) -> None:
            ran.append(number)

        async with app:
            bad, other = await good.enqueue(1), await good.enqueue(2)
            await session.connection.execute(
                """UPDATE awa.ready SET args = '{"number": "one"}' WHERE id = $1""", bad.id
            )
            await drain(app)
            failed = await app.get(bad)
            assert (failed.state, failed.attempt, ran) == (State.FAILED, 1, [2])
            assert "number" in failed.errors[-1]["error"]
            await session.connection.execute("""UPDATE awa.dead SET args = '{"number": 3}' WHERE id = $1""", bad.id)
            assert await app.retry(bad)
            again = await app.get(bad)
            assert (again.kind, again.attempt) == ("good", 0)
            await drain(app)
            assert ran == [2, 3]
            assert (await app.get(other)).state is State.COMPLETED

    @pytest.mark.parametrize(
        ("make", "error"),
        [
            (lambda good: awa.Next(""), "a kind's name cannot be empty"),
            (lambda good: awa.Next("x" * 201), "at most 200 characters"),
            (lambda good: awa.Next("a\nb"), "control characters"),
            (lambda good: any_next(5), "a kind's name is a string"),
            (lambda good: awa.Next("good", delay=-1), "is negative"),
            (lambda good: awa.Next("good", delay=float("nan")), "is not a duration"),
            (lambda good: any_next("good", [1]), "data is a mapping of arguments by name, not list"),
            (lambda good: awa.Next("unknown", {"data": object()}), "an object is not JSON-serializable"),
            (lambda good: awa.Next("unknown", {"data": float("nan")}), "NaN is not JSON"),
            (lambda good: any_next("unknown", {1: 2, (1, 2): 3}), "in a key, a tuple is not JSON-serializable"),
            (lambda good: awa.Next("unknown", {"data": "x" * 2_000_000}), "the limit is 1 MiB"),
            (lambda good: awa.Next("good"), 'missing argument "number"'),
            (lambda good: awa.Next("good", {"number": "x"}), 'argument "number"'),
            (lambda good: awa.Next("declared", {"number": "x"}), 'argument "number" must be integer, not string'),
            (lambda good: good.next(1, 2), "takes 1 positional arguments, not 2"),
            (lambda good: good.next(number="x"), 'argument "number"'),
            (lambda good: good.later(-1, 5), "is negative"),
            (lambda good: good.options(queue="other").next(5), "leave out .options"),
        ],
    )
    @pytest.mark.parametrize("is_async", [True, False])
    async def test_invalid_next_state_fails_the_job_at_once(  # P3
        self, app: App, database_url: str, make: Any, error: str, is_async: bool
    ) -> None:
        @app.job
        async def good(number: int) -> int:
            return number

        if is_async:

            @app.job(kind="bad")
            async def bad() -> awa.Next:
                return make(good)  # type: ignore[no-any-return]
        else:

            @app.job(kind="bad")
            def bad_in_thread() -> awa.Next:
                raise make(good)

        other = App(database_url, settings=QUICK)

        @other.job
        async def declared(number: int) -> None: ...

        await drain(other)
        async with app:
            metrics = Metrics()
            job = await app.enqueue("bad")
            worker = app.worker(["default"], maintenance=False, metrics=metrics)
            await worker.run(until_idle=True)
            failed = await app.get(job)
            assert (failed.state, failed.kind, len(failed.errors)) == (State.FAILED, "bad", 1)
            assert error in failed.errors[0]["error"]
            reasons = {
                reason: sample(worker, "awa_jobs_failed_total", queue="default", reason=reason) for reason in Reason
            }
            assert sum(reasons.values()) == reasons[Reason.STEP] + reasons[Reason.RESULT] == 1
            assert (await run_one(app, "good", {"number": 1})).result == 1

    async def test_bad_next_state_of_a_batch_fails_alone(self, app: App) -> None:
        @app.job
        async def first(number: int) -> awa.Next:
            return awa.Next("declared", {"number": number})

        async with app:
            async with app.session() as session:
                await session.connection.execute(
                    "INSERT INTO awa.kinds (kind, priority, max_attempts, args_schema, version) "
                    """VALUES ('declared', 2, 25, '{"properties": {"number": {"type": ["string"]}}}', '1')"""
                )
            jobs = await app.enqueue_many([first.new(number) for number in range(3)])
            await drain(app)
            assert {(await app.get(job)).state for job in jobs} == {State.FAILED}
            error = (await app.get(jobs[0])).errors[-1]["error"]
            assert 'declared: argument "number" must be string, not number' in error


def test_retries_and_max_attempts_exclude_each_other() -> None:
    app = App("postgresql://nowhere/x")
    with pytest.raises(ConfigError, match="either retries or max_attempts"):
        app.job(retries=2, max_attempts=2)
    for retries in (-1, True, "2", 40_000):
        with pytest.raises(ConfigError, match="retries is a number"):
            app.job(retries=retries)  # type: ignore[arg-type]


def test_kind_of_a_function_in_a_class_has_the_name_of_the_class() -> None:
    app = App("postgresql://nowhere/x")
    machine = order(app)
    assert (machine.start.kind, set(app.registry.kinds)) == (
        "Order.start",
        {"Order.start", "Order.charge", "Order.ship"},
    )

    class Other:
        @staticmethod
        @app.job
        async def start() -> None: ...

    assert Other.start.kind == "Other.start"


def test_next_state_is_checked_where_it_is_made() -> None:
    with pytest.raises(InvalidStep, match="Next: a kind's name cannot be empty"):
        awa.Next(" ")
    made = awa.Next("ship", {"a": 1}, delay="2s")
    assert (made.state, made.data, made.delay, str(made)) == ("ship", {"a": 1}, seconds(2), "next state: ship")


async def test_example_of_the_documentation_works(app: App) -> None:
    page = (Path(__file__).parents[2] / "docs" / "machines.md").read_text()
    charged: list[tuple[int, int]] = []

    def charge_card(order_id: int, amount: int) -> None:
        charged.append((order_id, amount))

    names = {"app": app, "awa": awa, "charge_card": charge_card}
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], names)
    async with app:
        job = await app.enqueue("Order.start", {"order_id": 5})
        await drain(app)
        waiting = await app.get(job)
        assert (waiting.kind, waiting.state, charged) == ("Order.ship", State.SCHEDULED, [(5, 42)])
        assert await app.retry(job)  # now
        await drain(app, "warehouse")
        assert (await app.get(job)).result == "order 5 is on its way"
