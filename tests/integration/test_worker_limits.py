"""Workers within limits: what they run at once, in which order, and that they go on."""

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


class Crowd:
    """A handler that notes how many of it run at once, by key."""

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


async def test_never_more_than_max_workers_of_all_workers_together(app: App, session: Session) -> None:
    crowd = Crowd(app)
    await insert_queue(session, "default", max_workers=5)
    await insert(session, "ready", 300)
    async with app, AsyncExitStack() as workers:
        for _ in range(3):
            await workers.enter_async_context(working(app))
        await eventually(lambda: nothing_runs(session))
    assert crowd.most[""] == 5
    assert len(crowd.order) == 300


async def test_a_limit_that_is_set_meanwhile_holds_from_then_on(app: App, session: Session) -> None:
    crowd = Crowd(app)
    await insert(session, "ready", 200)
    async with app, working(app, concurrency=20):
        await eventually(lambda: crowd.most[""] == 20)
        await insert_queue(session, "default", max_workers=2)
        await eventually(lambda: crowd.now[""] <= 2)
        crowd.most.clear()
        await insert(session, "ready", 100)
        await eventually(lambda: nothing_runs(session))
        assert crowd.most[""] <= 2
        await insert_queue(session, "default", max_workers=None)
        await insert(session, "ready", 200)
        await eventually(lambda: crowd.most[""] > 2)


async def test_keys_keep_to_their_limits_and_everything_runs(app: App, session: Session) -> None:
    crowd = Crowd(app)
    for n in range(10):
        await insert_keyed(session, f"k{n}", 30, limit=1 + n % 3)
    await insert(session, "ready", 100)
    async with app, AsyncExitStack() as workers:
        for _ in range(2):
            await workers.enter_async_context(working(app))
        await eventually(lambda: nothing_runs(session))
    assert {key: most for key, most in crowd.most.items() if key} == {f"k{n}": 1 + n % 3 for n in range(10)}
    assert len(crowd.order) == 400


async def test_an_ordered_key_runs_in_order_also_where_one_fails_at_first(app: App, session: Session) -> None:
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


async def test_a_job_with_a_key_does_not_wait_behind_a_flood_without(app: App, session: Session) -> None:
    crowd = Crowd(app)
    async with app, working(app, concurrency=10) as worker:
        await insert(session, "ready", 6_000)
        await eventually(lambda: crowd.order)
        (late,) = await insert_keyed(session, "k", 1, priority=1)
        await eventually(lambda: late in crowd.order)
        assert await count(session.connection, "SELECT count(*) FROM awa.ready") > 0
        worker.stop()


async def test_a_blocked_key_does_not_stop_the_others(app: App, session: Session) -> None:
    crowd = Crowd(app)
    await insert_running(session, concurrency_key="big", concurrency_limit=1, ordered=False)
    await insert_keyed(session, "big", 5_000)
    small = await insert_keyed(session, "small", 20)
    async with app, working(app):
        await eventually(lambda: sorted(crowd.order) == small)


async def test_a_free_key_is_found_soon_behind_thousands_that_wait_for_a_retry(app: App, session: Session) -> None:
    crowd = Crowd(app)
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
        await eventually(lambda: crowd.order == free, 10)


async def test_a_drain_does_not_wait_for_the_retry_of_another(app: App, session: Session) -> None:
    @app.job
    async def work() -> None:
        raise awa.Retry("later", after=3600)

    await insert(session, "ready", 2, concurrency_key="k", concurrency_limit=1, ordered=True)
    async with app:
        await drain(app)
    assert await states(session) == {"retryable": 1, "available": 1}


async def test_a_job_runs_though_the_queues_part_is_with_a_worker_that_does_not_know_it(
    database_url: str, session: Session
) -> None:
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


async def test_an_empty_queue_with_a_rate_is_left_in_peace(
    app: App, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = 0

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal claims
        claims += 1
        return await claim_limited_jobs(*args, **options)

    monkeypatch.setattr("awa_py.store.claim.claim_limited_jobs", counted)
    crowd = Crowd(app)
    await insert_queue(session, "default", rate_jobs=1_000, rate_period=seconds(1))
    async with app, working(app):
        await insert(session, "ready", 1)
        await eventually(lambda: crowd.order)
        await asyncio.sleep(0.5)
        before = claims
        await asyncio.sleep(2)  # that little happens has no event to wait for
        assert claims - before < 10


async def test_a_rate_is_kept_and_used(app: App, session: Session) -> None:
    """By the database's clock: the jobs of each second, but for the first and the last."""
    crowd = Crowd(app)
    await insert_queue(session, "default", rate_jobs=40, rate_period=seconds(1))
    await insert(session, "ready", 240)
    async with app, AsyncExitStack() as workers:
        for _ in range(2):
            await workers.enter_async_context(working(app))
        await eventually(lambda: nothing_runs(session))
    assert len(crowd.order) == 240
    took = "SELECT extract(epoch FROM max(attempted_at) - min(attempted_at)) FROM awa.completed"
    assert 5 <= await session.connection.fetchval(took) < 20  # 240 jobs, of which 40 may begin at once


async def test_a_pause_under_load_lets_running_jobs_finish_and_burns_nothing(app: App, session: Session) -> None:  # F5
    crowd = Crowd(app)
    await insert(session, "ready", 2_000)
    async with app, working(app, concurrency=10):
        await eventually(lambda: len(crowd.order) > 50)
        await pause_queue(session, "default", paused=True)
        await eventually(lambda: has_none(session, "running"))
        begun = len(crowd.order)
        await asyncio.sleep(1)
        assert len(crowd.order) == begun
        assert (
            await count(session.connection, "SELECT count(*) FROM awa.jobs WHERE attempt > 1 OR state = 'failed'") == 0
        )
        assert await count(session.connection, "SELECT count(*) FROM awa.completed") == begun
        await pause_queue(session, "default", paused=False)
        await eventually(lambda: nothing_runs(session))
        assert len(crowd.order) == 2_000
