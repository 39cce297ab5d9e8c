"""Where the checkpoints of a job are while it runs, and after its end."""

import asyncio
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from awa_py import App, Context, State
from awa_py.db.database import Database
from awa_py.store import checkpoints as store
from awa_py.store.checkpoints import AwaitedChildren
from awa_py.store.session import Session
from tests.durable import FailingOnce, Trace, checkpoints, end_of, folded, retrying_at_once, run_to_end, waits
from tests.pages import count_pages, snapshot_held
from tests.support import eventually, insert_completed, insert_running, working

pytestmark = pytest.mark.integration


async def test_checkpoints_move_into_the_row_of_a_completed_job(app: App, session: Session, ran: Trace) -> None:
    @app.job
    async def work(ctx: Context) -> None:
        await ctx.step("a", ran.step, 1)
        await ctx.step("b", ran.step, 2)

    job = await run_to_end(app, session, "work")
    assert await folded(session, job.id) == ["a", "b"]
    assert await checkpoints(session, job.id) == {}


@pytest.mark.parametrize("kind", ["with_context", "without_context"])
async def test_handler_that_has_no_steps_any_more_leaves_no_checkpoints_behind(
    app: App, session: Session, ran: Trace, kind: str, database_url: str
) -> None:
    @app.job(kind=kind)
    async def before(ctx: Context) -> None:
        await ctx.step("a", ran.step, 1)
        raise RuntimeError

    after = App(database_url, settings=app.settings)

    @after.job(kind="with_context")
    async def with_context(ctx: Context) -> int:
        return 1

    @after.job(kind="without_context")
    async def without_context() -> int:
        return 1

    async with app, after:
        job = await app.enqueue(kind)
        async with retrying_at_once(app, session):
            await eventually(lambda: checkpoints(session, job.id))
        async with retrying_at_once(after, session):
            assert (await end_of(after, job)).result == 1
    assert await checkpoints(session, job.id) == {}
    assert await folded(session, job.id) == ["a"]


async def test_jobs_that_are_too_large_for_one_statement_complete_one_by_one(
    app: App, session: Session, ran: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value of PostgreSQL has at most 256 MiB. To fill it takes 20 s, so the test raises its error."""

    async def complete(session: Session, worker_id: UUID, ids: list[int], *values: Any, keep: bool) -> set[int]:
        ran.append(len(ids))
        if len(ids) > 1:
            raise asyncpg.ProgramLimitExceededError("total size of jsonb object elements exceeds the maximum")
        return await original(session, worker_id, ids, *values, keep=keep)

    original = store.complete_durable_jobs
    monkeypatch.setattr(store, "complete_durable_jobs", complete)
    started = asyncio.Barrier(5)

    @app.job
    async def work(ctx: Context) -> None:
        await ctx.step("a", started.wait)

    async with app, retrying_at_once(app, session):
        jobs = [await app.enqueue("work") for _ in range(5)]
        assert [(await end_of(app, job)).state for job in jobs] == [State.COMPLETED] * 5
    assert max(ran) > 1


async def test_failed_job_keeps_its_checkpoints_and_a_retry_goes_on_after_them(
    app: App, session: Session, ran: Trace, fail_once: FailingOnce
) -> None:
    @app.job(max_attempts=1)
    async def work(ctx: Context) -> int:
        value = await ctx.step("a", ran.step, 1)
        fail_once("twice")
        fail_once("thrice")
        return int(value)

    async with app, retrying_at_once(app, session):
        job = await app.enqueue("work")
        failed = await end_of(app, job)
        assert (failed.state, list(await checkpoints(session, job.id))) == (State.FAILED, ["a"])
        assert await app.retry(job.id)
        await eventually(lambda: _completed(app, job.id))
    assert ran == [1]


async def _completed(app: App, job_id: int) -> bool:
    return (await app.get(job_id)).state is State.COMPLETED


async def test_call_that_two_tasks_wait_for_is_recorded_once(app: App, session: Session) -> None:
    """Their requests are in one statement, which would be tried again without end."""

    @app.job
    async def work(ctx: Context) -> None:
        async def wait() -> None:
            await timer

        timer = ctx.sleep("10ms")
        await asyncio.gather(wait(), wait())

    job = await run_to_end(app, session, "work")
    assert (job.state, await folded(session, job.id)) == (State.COMPLETED, ["sleep"])


async def test_lost_lease_is_noticed_if_another_row_of_the_same_flush_is_locked(
    app: App, session: Session, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []

    async def suspend(session: Session, worker_id: UUID, ids: list[int], *values: Any) -> dict[int, bool | None]:
        flushed.append(len(ids))
        return dict.fromkeys(ids if len(ids) == 1 else ids[:1])  # locked; and of two, the second one is lost

    monkeypatch.setattr(store, "suspend_jobs", suspend)

    @app.job
    async def work(ctx: Context) -> None:
        await ctx.sleep("1h")

    async with app, working(app):
        await app.enqueue_many([work.new(), work.new()])
        await eventually(lambda: "job 2 (work): the lease was lost before the 1st attempt could wait" in caplog.text)
        monkeypatch.undo()
        await eventually(lambda: waits(session, 1))
    assert 2 in flushed


async def test_pages_that_a_parent_reads_grow_with_its_children(database: Database, session: Session) -> None:
    """Not with their square: entries of children that ran stay in the index, beside an old snapshot."""
    children, parent_id = 1000, 7
    async with snapshot_held(database):
        first, *_ = await insert_running(session, children, parent_id=parent_id)
        await session.connection.execute("DELETE FROM awa.running")
        *_, last = await insert_completed(session, children, age_s=0, parent_id=parent_id)
        async with count_pages(session) as pages_read:
            ended = await store.read_children(session, parent_id, AwaitedChildren([(first, last)], True))
            spent = await pages_read()
    assert ended is not None
    assert (len(ended), spent.total < 10 * children) == (children, True), spent.blocks
