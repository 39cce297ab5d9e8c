"""Which jobs a worker claims, how many at once, and how it starts."""

import asyncio
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

import awa_py as awa
from awa_py import App, AwaError, Context, State
from awa_py.db.database import Database
from awa_py.store import heartbeat
from awa_py.store.queues import pause_queue
from awa_py.store.session import Session
from awa_py.store.workers import command_workers, list_workers
from awa_py.worker.claiming.claim_loop import ClaimLoop
from awa_py.worker.heartbeat import Heartbeat
from tests.support import (
    HASTY,
    PATIENCE_S,
    QUICK,
    count,
    drain,
    eventually,
    insert,
    insert_queue,
    insert_running,
    leading,
    nothing_runs,
    put,
    run_one,
    seconds,
    states,
    with_settings,
    working,
)

pytestmark = pytest.mark.integration


class TestClaims:
    async def test_job_of_an_unknown_kind_is_not_claimed(self, app: App) -> None:
        @app.job
        async def work() -> None: ...

        async with app:
            unknown = await app.enqueue("elsewhere")
            known = await app.enqueue("work")
            await drain(app)
            assert ((await app.get(unknown.id)).state, (await app.get(unknown.id)).attempt) == (State.AVAILABLE, 0)
            assert (await app.get(known.id)).state is State.COMPLETED

    @pytest.mark.parametrize("how", ["in_loop", "in_thread"])
    async def test_worker_keeps_its_slots_per_queue_and_in_total(self, app: App, how: str) -> None:
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

    async def test_until_idle_ignores_a_paused_queue(self, app: App, session: Session) -> None:  # F1 F5
        @app.job
        async def work() -> None: ...

        async with app:
            await app.enqueue("work")
            await pause_queue(session, "default", paused=True)
            await drain(app)
        assert await states(session) == {"available": 1}

    async def test_resumed_queue_continues_at_once(self, database_url: str, session: Session) -> None:
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(60)))

        @app.job
        async def work() -> None: ...

        await pause_queue(session, "default", paused=True)
        async with app, working(app):
            job = await app.enqueue("work")
            await pause_queue(session, "default", paused=False)
            await app.result(job.id, timeout="20s")

    async def test_failing_claims_are_not_repeated_at_once(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        claims = 0

        async def fail(*_: object, **__: object) -> None:
            nonlocal claims
            claims += 1
            raise asyncpg.InternalServerError("out of order")

        monkeypatch.setattr("awa_py.store.claim.claim_jobs", fail)
        async with app, working(app):
            await eventually(lambda: claims >= 2)
            await asyncio.sleep(2)
        assert claims <= 3  # they wait for 1, 2 and 5 s

    async def test_worker_whose_heartbeats_fail_claims_nothing(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing would renew the leases of the jobs."""
        app = with_settings(database_url, replace(HASTY, poll_interval=seconds(0.05)))
        heartbeats_fail = False
        passes = 0
        ran: list[str] = []
        send, claim = heartbeat.heartbeat_worker, ClaimLoop._claim_from_all

        async def send_or_fail(*values: Any, **options: Any) -> Any:
            if heartbeats_fail:
                raise asyncpg.InternalServerError("out of order")
            return await send(*values, **options)

        async def count_passes(self: ClaimLoop) -> int:
            nonlocal passes
            claimed = await claim(self)
            passes += 1
            return claimed

        async def passed() -> None:
            """Wait for a whole pass of the loop."""
            seen = passes
            await eventually(lambda: passes >= seen + 2)

        monkeypatch.setattr("awa_py.store.heartbeat.heartbeat_worker", send_or_fail)
        monkeypatch.setattr(ClaimLoop, "_claim_from_all", count_passes)

        @app.job
        async def work() -> None:
            ran.append("work")

        async with app, working(app) as worker:
            heartbeats_fail = True
            await eventually(lambda: not worker._parts.heartbeat.healthy)  # type: ignore[union-attr]
            await passed()
            job = await app.enqueue("work")
            await passed()
            assert ran == []
            heartbeats_fail = False
            await app.result(job.id, timeout="20s")
        assert ran == ["work"]

    async def test_until_idle_runs_retries_that_become_due(self, app: App) -> None:
        attempts: list[int] = []

        @app.job
        async def work(ctx: Context) -> None:
            attempts.append(ctx.attempt)
            if ctx.attempt < 3:
                raise awa.Retry(after=0)

        job = await run_one(app, "work")
        assert attempts == [1, 2, 3]
        assert (job.state, len(job.errors)) == (State.COMPLETED, 2)

    async def test_one_statement_polls_many_queues(self, database_url: str, session: Session) -> None:
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(0.1)))

        @app.job
        async def work() -> None: ...

        async with app, working(app, [f"q{n}" for n in range(20)]):
            # Inserted into the table, without a notification.
            await session.connection.execute("INSERT INTO awa.ready (kind, queue) VALUES ('work', 'q13')")
            await eventually(lambda: nothing_runs(session))

    @pytest.mark.parametrize("limits", [{}, {"max_workers": 2}, {"rate_jobs": 500, "rate_period": seconds(1)}], ids=str)
    @pytest.mark.parametrize("lasts_s", [0.005, 0.02])
    async def test_queue_that_is_never_empty_does_not_starve_others(
        self, app: App, session: Session, lasts_s: float, limits: dict[str, Any]
    ) -> None:
        """A busy worker polls, so it may get no wake-up for the other queue."""
        done: Counter[str] = Counter()

        @app.job
        async def endless() -> None:
            await asyncio.sleep(lasts_s)
            done["endless"] += 1

        @app.job
        async def rare() -> None:
            done["rare"] += 1

        await insert_queue(session, "quiet", **limits)
        async with app, working(app, ["busy", "quiet"], concurrency=10) as worker:
            await insert(session, "ready", 100_000, kind="endless", queue="busy")
            await eventually(lambda: done["endless"] > 1_000)
            await insert(session, "ready", 10, kind="rare", queue="quiet")
            await app.enqueue_many([app.new("rare", queue="quiet") for _ in range(10)])
            await eventually(lambda: done["rare"] == 20)
            assert done["endless"] < 100_000
            worker.stop()

    async def test_new_worker_takes_over_jobs_of_a_dead_one(  # D4, Y1
        self, app: App, session: Session, database: Database
    ) -> None:
        @app.job
        async def work(ctx: Context) -> int:
            return ctx.attempt

        job_id = await session.connection.fetchval(
            "INSERT INTO awa.running (kind, worker_id, lease, attempt, attempted_at, heartbeat_at) VALUES "
            "('work', gen_random_uuid(), 1, 1, now() - interval '60 s', now() - interval '60 s') RETURNING id"
        )
        async with app, leading(database, since_s=120):
            await drain(app)
            assert await app.result(job_id, timeout="10s") == 2

    async def test_running_worker_takes_over_jobs_on_request(  # D4
        self, app: App, session: Session, database: Database
    ) -> None:
        @app.job
        async def work(ctx: Context) -> int:
            return ctx.attempt

        async with app, leading(database, since_s=120), working(app, concurrency=2):
            assert await app.take_over() == 0
            jobs = await insert_running(session, 2, silent_s=60)
            assert await app.take_over() == 2
            assert [await app.result(job_id, timeout="10s") for job_id in jobs] == [2, 2]
            await insert_running(session, 3, silent_s=60, kind="other")
            assert await app.take_over() == 0

    async def test_take_over_needs_a_running_worker(self, app: App) -> None:
        worker = app.worker(["default"], maintenance=False)
        with pytest.raises(AwaError, match="no worker of this app runs in this process"):
            await app.take_over()
        with pytest.raises(AwaError, match="the worker does not run"):
            await worker.take_over()
        await worker.run(until_idle=True)
        with pytest.raises(AwaError, match="no worker of this app runs in this process"):
            await app.take_over()

    async def test_quiet_worker_takes_over_nothing(self, app: App, session: Session, database: Database) -> None:
        @app.job
        async def work() -> None: ...

        async with app, leading(database, since_s=120), working(app) as worker:
            await command_workers(session, [worker.id], quiet=True)
            await eventually(lambda: worker._quiet)
            await insert_running(session, silent_s=60)
            assert await app.take_over() == 0

    async def test_take_over_ends_with_its_worker(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Heartbeat, "healthy", False)
        async with app, working(app) as worker:
            asked = asyncio.create_task(app.take_over())
            await asyncio.sleep(0)
            worker.stop()
            with pytest.raises(AwaError, match="the worker stopped before it could take over jobs"):
                await asked

    async def test_worker_is_listed_while_it_runs(self, app: App, session: Session) -> None:
        @app.job
        async def work() -> None: ...

        async with app, working(app, {"default": 3, "mail": 2}, concurrency=4) as worker:
            (row,) = await list_workers(session, staleness=seconds(10))
            assert (row.id, row.queues, row.kinds, row.concurrency) == (
                worker.id,
                ["default", "mail"],
                ["work", "awa.flow"],
                4,
            )
            assert row.alive
            assert await count(session.connection, "SELECT count(*) FROM awa.queues") == 2
        assert await list_workers(session, staleness=seconds(10)) == []

    async def test_database_without_schema_is_a_clear_error(self, fresh_database_url: str) -> None:
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
    async def test_worker_with_wrong_settings_is_refused(
        self, queues: dict[str, int], concurrency: int, says: str
    ) -> None:  # F2
        with pytest.raises(awa.AwaError, match=says):
            App("postgresql://localhost/nowhere").worker(queues, concurrency=concurrency)


async def test_work_runs_jobs_in_the_loop_of_its_caller(app: App) -> None:
    """`app.work` runs in the caller's loop, and can be cancelled."""
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


async def test_ten_thousand_jobs_run_once_and_in_order(app: App, session: Session) -> None:
    ran: list[int] = []

    @app.job
    async def work(number: int) -> None:
        ran.append(number)

    async with app:
        await app.enqueue_many([app.new("work", {"number": n}) for n in range(10_000)])
        await drain(app)
    assert ran == list(range(10_000))
    assert await states(session) == {"completed": 10_000}


async def test_job_inserted_by_the_store_runs(app: App, session: Session) -> None:
    ran: list[str] = []

    @app.job
    async def work() -> None:
        ran.append("work")

    await put(session, awa.NewJob(kind="work"))
    await drain(app)
    assert ran == ["work"]
