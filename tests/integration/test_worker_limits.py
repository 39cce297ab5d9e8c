"""Workers keep limits and keys, and every job runs."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

import awa_py as awa
from awa_py import App
from awa_py.store.claim import claim_limited_jobs
from awa_py.store.queues import pause_queue
from awa_py.store.session import Session
from tests.support import (
    count,
    drain,
    eventually,
    insert,
    insert_queue,
    insert_running,
    nothing_runs,
    seconds,
    states,
    working,
)

pytestmark = pytest.mark.integration


class ConcurrencyRecorder:
    """A handler that records how many of its jobs run at once, by key."""

    def __init__(self, app: App) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.order: list[int] = []

        @app.job
        async def work(ctx: awa.Context, key: str = "") -> None:
            self.now[key] += 1
            self.most[key] = max(self.most[key], self.now[key])
            self.order.append(ctx.job.id)
            assert ctx.job.concurrency_key == (key or None)
            await asyncio.sleep(0.005)
            self.now[key] -= 1


async def has_none(session: Session, table: str) -> bool:
    return await count(session.connection, f"SELECT count(*) FROM awa.{table}") == 0


async def insert_keyed(session: Session, key: str, jobs: int, *, limit: int = 1, **columns: Any) -> list[int]:
    args = f'{{"key": "{key}"}}'
    columns = {"concurrency_key": key, "concurrency_limit": limit, "ordered": False} | columns
    return await insert(session, "ready", jobs, args=args, **columns)


async def test_workers_together_never_exceed_max_workers(app: App, session: Session) -> None:
    recorder = ConcurrencyRecorder(app)
    await insert_queue(session, "default", max_workers=5)
    await insert(session, "ready", 300)
    async with app, AsyncExitStack() as workers:
        for _ in range(3):
            await workers.enter_async_context(working(app))
        await eventually(lambda: nothing_runs(session))
    assert recorder.most[""] == 5
    assert len(recorder.order) == 300


async def test_new_max_workers_takes_effect_while_jobs_run(app: App, session: Session) -> None:
    recorder = ConcurrencyRecorder(app)
    await insert(session, "ready", 200)
    async with app, working(app, concurrency=20):
        await eventually(lambda: recorder.most[""] == 20)
        await insert_queue(session, "default", max_workers=2)
        await eventually(lambda: recorder.now[""] <= 2)
        recorder.most.clear()
        await insert(session, "ready", 100)
        await eventually(lambda: nothing_runs(session))
        assert recorder.most[""] <= 2
        await insert_queue(session, "default", max_workers=None)
        await insert(session, "ready", 200)
        await eventually(lambda: recorder.most[""] > 2)


async def test_keys_keep_their_limits_and_every_job_runs(app: App, session: Session) -> None:
    recorder = ConcurrencyRecorder(app)
    for n in range(10):
        await insert_keyed(session, f"k{n}", 30, limit=1 + n % 3)
    await insert(session, "ready", 100)
    async with app, AsyncExitStack() as workers:
        for _ in range(2):
            await workers.enter_async_context(working(app))
        await eventually(lambda: nothing_runs(session))
    assert {key: most for key, most in recorder.most.items() if key} == {f"k{n}": 1 + n % 3 for n in range(10)}
    assert len(recorder.order) == 400


async def test_ordered_key_runs_in_order_even_after_a_retry(app: App, session: Session) -> None:
    begun: list[int] = []
    done: list[int] = []

    @app.job
    async def work(ctx: awa.Context, key: str) -> None:
        begun.append(ctx.job.id)
        if ctx.job.id % 3 == 0 and ctx.attempt == 1:
            raise awa.Retry(after="0s")
        done.append(ctx.job.id)

    await insert_queue(session, "default", backoff_enabled=False)
    jobs = await insert_keyed(session, "one by one", 12, ordered=True)
    async with app, AsyncExitStack() as workers:
        for _ in range(3):
            await workers.enter_async_context(working(app, maintenance=True))
        await eventually(lambda: len(done) == 12)
    assert done == jobs
    assert begun == sorted(begun)


async def test_urgent_job_with_a_key_passes_a_backlog_without_keys(app: App, session: Session) -> None:
    recorder = ConcurrencyRecorder(app)
    async with app, working(app, concurrency=10) as worker:
        await insert(session, "ready", 6_000)
        await eventually(lambda: recorder.order)
        (late,) = await insert_keyed(session, "k", 1, priority=1)
        await eventually(lambda: late in recorder.order)
        assert await count(session.connection, "SELECT count(*) FROM awa.ready") > 0
        worker.stop()


async def test_full_key_does_not_stop_the_others(app: App, session: Session) -> None:
    recorder = ConcurrencyRecorder(app)
    await insert_running(session, concurrency_key="big", concurrency_limit=1, ordered=False)
    await insert_keyed(session, "big", 5_000)
    small = await insert_keyed(session, "small", 20)
    async with app, working(app):
        await eventually(lambda: sorted(recorder.order) == small)


async def test_free_key_is_found_behind_thousands_of_blocked_keys(app: App, session: Session) -> None:
    recorder = ConcurrencyRecorder(app)
    for table, columns, values in (
        ("scheduled", "state, run_at, lease, attempt,", "'retryable', now() + interval '1 hour', 1, 1,"),
        ("ready", "", ""),
    ):
        await session.connection.execute(
            f"INSERT INTO awa.{table} ({columns} kind, concurrency_key, concurrency_limit, ordered) "
            f"SELECT {values} 'work', 'k' || n, 1, true FROM generate_series(1, 6000) AS n"
        )
    async with app, working(app):
        free = await insert_keyed(session, "z", 1)
        await eventually(lambda: recorder.order == free, 10)


async def test_until_idle_does_not_wait_for_a_retry(app: App, session: Session) -> None:
    @app.job
    async def work() -> None:
        raise awa.Retry("later", after=3600)

    await insert(session, "ready", 2, concurrency_key="k", concurrency_limit=1, ordered=True)
    async with app:
        await drain(app)
    assert await states(session) == {"retryable": 1, "available": 1}


async def test_job_runs_although_another_worker_has_the_share(database_url: str, session: Session) -> None:
    apps = [App(database_url), App(database_url)]
    done: list[str] = []
    for each, kind in zip(apps, ("alpha", "beta"), strict=True):

        @each.job(kind=kind)
        async def work(ctx: awa.Context) -> None:
            done.append(ctx.job.kind)

    await insert_queue(session, "default", max_workers=1)
    async with AsyncExitStack() as workers:
        for each in apps:
            await workers.enter_async_context(each)
            await workers.enter_async_context(working(each, maintenance=True))
        split = "SELECT array_agg(slots ORDER BY slots) = '{0,1}' FROM awa.slots"
        await eventually(lambda: session.connection.fetchval(split))
        for kind in ("alpha", "beta"):
            await insert(session, "ready", 2, kind=kind)
        await eventually(lambda: sorted(done) == ["alpha", "alpha", "beta", "beta"])


async def test_empty_queue_with_a_rate_is_claimed_rarely(
    app: App, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = 0

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal claims
        claims += 1
        return await claim_limited_jobs(*args, **options)

    monkeypatch.setattr("awa_py.store.claim.claim_limited_jobs", counted)
    recorder = ConcurrencyRecorder(app)
    await insert_queue(session, "default", rate_jobs=1_000, rate_period=seconds(1))
    async with app, working(app):
        await insert(session, "ready", 1)
        await eventually(lambda: recorder.order)
        await asyncio.sleep(0.5)
        before = claims
        await asyncio.sleep(2)  # nothing to wait for: the test counts claims
        assert claims - before < 15  # one per poll interval; after a claim that used up the rate, it would be 20


async def test_rate_is_kept_and_used(app: App, session: Session) -> None:
    """Measured with the clock of the database."""
    recorder = ConcurrencyRecorder(app)
    await insert_queue(session, "default", rate_jobs=40, rate_period=seconds(1))
    await insert(session, "ready", 240)
    async with app, AsyncExitStack() as workers:
        for _ in range(2):
            await workers.enter_async_context(working(app))
        await eventually(lambda: nothing_runs(session))
    assert len(recorder.order) == 240
    took = "SELECT extract(epoch FROM max(attempted_at) - min(attempted_at)) FROM awa.completed"
    assert 5 <= await session.connection.fetchval(took) < 20  # 240 jobs, 40 of them at once


async def test_pause_under_load_lets_running_jobs_finish(app: App, session: Session) -> None:  # F5
    recorder = ConcurrencyRecorder(app)
    await insert(session, "ready", 2_000)
    async with app, working(app, concurrency=10):
        await eventually(lambda: len(recorder.order) > 50)
        await pause_queue(session, "default", paused=True)
        await eventually(lambda: has_none(session, "running"))
        begun = len(recorder.order)
        await asyncio.sleep(1)
        assert len(recorder.order) == begun
        assert (
            await count(session.connection, "SELECT count(*) FROM awa.jobs WHERE attempt > 1 OR state = 'failed'") == 0
        )
        assert await count(session.connection, "SELECT count(*) FROM awa.completed") == begun
        await pause_queue(session, "default", paused=False)
        await eventually(lambda: nothing_runs(session))
        assert len(recorder.order) == 2_000
