"""Bulk operations: which jobs they select, how they change them, and that workers continue meanwhile."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from awa_py import App, ConfigError, State
from awa_py.db.database import Database
from awa_py.errors import AwaError
from awa_py.store import bulk, jobs
from awa_py.store.bulk import CANCEL, DELETE, Operation, Selection, retry
from awa_py.store.jobs import SeenJobs
from awa_py.store.session import Session
from tests.support import (
    ago,
    another_session,
    claim,
    drain,
    eventually,
    insert,
    insert_completed,
    insert_running,
    look,
    states,
    working,
)

pytestmark = pytest.mark.integration

ANY = Selection()


async def do(
    session: Session, operation: Operation, selection: Selection = ANY, *, limit: int | None = None, size: int = 500
) -> int:
    """Preview and run an operation. Return the number of changed jobs."""
    preview = await bulk.preview(session, operation, selection, limit=limit)
    batches = bulk.run_operation(session, operation, selection, as_of=preview.as_of, limit=limit, size=size)
    changed = sum([batch.changed async for batch in batches])
    assert preview.jobs == changed  # there are no concurrent changes
    return changed


async def insert_dead(session: Session, count: int = 1, **columns: Any) -> list[int]:
    return await insert(session, "dead", count, **{"state": "failed", "attempt": 1, "lease": 1, **columns})


def error(text: str) -> str:
    return f'[{{"attempt": 1, "error": "an older one"}}, {{"attempt": 2, "error": "{text}"}}]'


class TestSelection:
    @pytest.fixture
    async def all_kinds(self, session: Session) -> dict[str, int]:
        """Insert a job of each state. Return them by name."""
        (mail,) = await insert(session, "ready", queue="mail", created_at=ago(10))
        (digest,) = await insert(session, "ready", kind="digest", created_at=ago(10))
        (tagged,) = await insert(session, "ready", tags=["a", "b"], created_at=ago(10))
        (old,) = await insert(session, "ready", created_at=ago(7200))
        (later,) = await insert(session, "scheduled", state="scheduled", run_at=ago(-900), created_at=ago(10))
        (retryable,) = await insert(
            session, "scheduled", state="retryable", errors=error("it timed out"), created_at=ago(10)
        )
        (waiting,) = await insert(session, "scheduled", state="waiting", waits="{}", created_at=ago(10))
        (running,) = await insert_running(session, created_at=ago(10))
        (completed,) = await insert_completed(session, age_s=5, created_at=ago(9000))
        (failed,) = await insert_dead(session, errors=error("boom"), created_at=ago(9000), finalized_at=ago(5))
        (cancelled,) = await insert_dead(session, state="cancelled", created_at=ago(9000), finalized_at=ago(7200))
        return {
            "mail": mail,
            "digest": digest,
            "tagged": tagged,
            "old": old,
            "later": later,
            "retryable": retryable,
            "waiting": waiting,
            "running": running,
            "completed": completed,
            "failed": failed,
            "cancelled": cancelled,
        }

    @pytest.mark.parametrize(
        ("selection", "names"),
        [
            (Selection(queue="mail"), {"mail"}),
            (Selection(kind="digest"), {"digest"}),
            (Selection(tag="b"), {"tagged"}),
            (Selection(error="timed"), {"retryable"}),
            (Selection(error="an older one"), set()),
            (Selection(states=(State.FAILED, State.SCHEDULED)), {"failed", "later"}),
            (Selection(states=(State.FAILED,), queue="mail"), set()),
            # The age counts from the end; of unfinished jobs from the enqueue.
            (Selection(older_than=timedelta(hours=1)), {"old", "cancelled"}),
            (Selection(older_than=timedelta(hours=1), states=(State.CANCELLED,)), {"cancelled"}),
            (Selection(newer_than=timedelta(seconds=7)), {"completed", "failed"}),
            (Selection(newer_than=timedelta(hours=1), older_than=timedelta(seconds=7), queue="mail"), {"mail"}),
        ],
    )
    async def test_selection_matches_by_each_property(
        self, session: Session, all_kinds: dict[str, int], selection: Selection, names: set[str]
    ) -> None:
        assert await do(session, DELETE, selection) == len(names)
        left = await jobs.get_jobs(session, list(all_kinds.values()))
        assert {name for name, job_id in all_kinds.items() if job_id not in left} == names

    @pytest.mark.parametrize(
        ("operation", "names"),
        [
            (retry(), {"failed", "retryable"}),
            (CANCEL, {"mail", "digest", "tagged", "old", "later", "retryable", "waiting", "running"}),
            (bulk.move(priority=4), {"mail", "digest", "tagged", "old", "later", "retryable", "waiting"}),
        ],
        ids=["retry", "cancel", "move"],
    )
    async def test_selection_without_states_uses_the_operations_default(
        self, session: Session, all_kinds: dict[str, int], operation: Operation, names: set[str]
    ) -> None:
        before = await jobs.get_jobs(session, list(all_kinds.values()))
        assert await do(session, operation) == len(names)
        after = await jobs.get_jobs(session, list(all_kinds.values()))
        assert {name for name, job_id in all_kinds.items() if before[job_id] != after[job_id]} == names

    async def test_delete_selects_all_jobs_except_running_ones(
        self, session: Session, all_kinds: dict[str, int]
    ) -> None:
        preview = await bulk.preview(session, DELETE, ANY)
        assert preview.skipped == 1
        assert await do(session, DELETE) == len(all_kinds) - 1
        assert await states(session) == {"running": 1}

    def test_states_that_an_operation_does_not_apply_to_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="delete does not apply to running jobs: it applies to available"):
            DELETE.states_of(Selection(states=(State.FAILED, State.RUNNING)))
        with pytest.raises(ConfigError, match="name a queue, a priority, or both"):
            bulk.move()


class TestOperations:
    async def test_retry_restores_all_attempts(self, session: Session) -> None:
        (failed,) = await insert_dead(session, attempt=25, rescues=3, queue="mail", concurrency_key=None)
        (done,) = await insert_completed(session, age_s=5)
        (keyed,) = await insert_dead(session, concurrency_key="k", concurrency_limit=2, ordered=False)
        assert await do(session, retry(), Selection(states=(State.FAILED, State.COMPLETED))) == 3
        again = await look(session, failed)
        assert (again.state, again.attempt, again.rescues, again.queue) == (State.AVAILABLE, 0, 0, "mail")
        assert (await look(session, done)).state is State.AVAILABLE
        assert (await look(session, keyed)).concurrency_key == "k"

    async def test_cancel_stops_running_jobs(self, app: App) -> None:
        started = asyncio.Event()

        @app.job
        async def work() -> None:
            started.set()
            await asyncio.sleep(3600)

        async with app, working(app, {"default": 1}), another_session(app.database) as session:
            job = await app.enqueue("work")
            await started.wait()
            waiting = await app.enqueue("work")
            assert await do(session, CANCEL) == 2
            await eventually(lambda: is_state(session, job.id, State.CANCELLED))
            assert (await look(session, waiting.id)).errors[-1]["error"] == "cancelled by user"

    async def test_move_keeps_the_order_and_wakes_the_new_queues_workers(self, app: App) -> None:
        seen: list[int] = []

        @app.job
        async def work(n: int) -> None:
            seen.append(n)

        async with app, working(app, {"other": 1}), another_session(app.database) as session:
            for n in (3, 1, 2):
                await app.enqueue("work", {"n": n})
            later = await app.enqueue("work", {"n": 4}, delay="1h")
            assert await do(session, bulk.move(queue="other", priority=3), size=2) == 4
            await eventually(lambda: len(seen) == 3)
            assert seen == [3, 1, 2]
            moved = await look(session, later.id)
            assert (moved.state, moved.queue, moved.priority) == (State.SCHEDULED, "other", 3)

    async def test_moved_job_goes_to_the_end(self, session: Session) -> None:
        first, *_ = await insert(session, "ready", 3)
        await insert(session, "ready", 2, queue="other")
        await session.connection.execute("UPDATE awa.ready SET entered_at = now() - interval '1 hour'")
        assert await jobs.move_jobs(session, [first], queue="other", priority=None) == {first}
        assert [row["id"] for row in await claim(session, queue="other", limit=3)][-1] == first

    async def test_aging_of_a_moved_job_starts_again(self, session: Session) -> None:
        moved, stays = await insert(session, "ready", 2, entered_at=ago(3600))
        (there,) = await insert(session, "ready", queue="other", entered_at=ago(3600))
        assert await jobs.move_jobs(session, [moved, there], queue="other", priority=None) == {moved, there}
        rows = await session.connection.fetch(
            "SELECT id FROM awa.ready WHERE entered_at < now() - interval '1 minute' ORDER BY id"
        )
        assert [row["id"] for row in rows] == [stays, there]  # a job that is already there keeps its position

    async def test_move_skips_running_and_finished_jobs(self, session: Session) -> None:
        (runs,) = await insert_running(session)
        (dead,) = await insert_dead(session)
        assert await jobs.move_jobs(session, [runs, dead], queue="other", priority=1) == set()
        preview = await bulk.preview(session, bulk.move(queue="other"), ANY)
        assert (preview.jobs, preview.skipped) == (0, 1)
        assert (await look(session, runs)).queue == (await look(session, dead)).queue == "default"


class TestBatches:
    async def test_operation_changes_all_batches(self, session: Session) -> None:
        await insert_dead(session, 23)
        await insert(session, "scheduled", 4, state="retryable", run_at=ago(-900))
        assert await do(session, retry(), size=5) == 27
        assert await states(session) == {"available": 27}

    async def test_operation_with_a_limit_changes_the_oldest_jobs(self, session: Session) -> None:
        ids = await insert_dead(session, 10)
        assert await do(session, DELETE, limit=7, size=3) == 7
        assert sorted(await jobs.get_jobs(session, ids)) == ids[7:]

    async def test_jobs_enqueued_after_the_preview_are_not_changed(self, session: Session) -> None:
        await insert(session, "ready", 2)
        preview = await bulk.preview(session, CANCEL, ANY)
        (late,) = await insert(session, "ready")
        async for _ in bulk.run_operation(session, CANCEL, ANY, as_of=preview.as_of):
            pass
        assert await states(session) == {"cancelled": 2, "available": 1}
        assert (await look(session, late)).state is State.AVAILABLE

    async def test_job_that_fails_again_is_retried_once(self, session: Session) -> None:
        await insert_dead(session, 6)
        preview = await bulk.preview(session, retry(), ANY)
        calls = 0
        async for batch in bulk.run_operation(session, retry(), ANY, as_of=preview.as_of, size=2):
            calls += 1
            assert calls <= 3
            for row in await claim(session, limit=batch.changed):
                await session.connection.execute("DELETE FROM awa.running WHERE id = $1", row["id"])
                await insert_dead(session, id=row["id"], lease=row["lease"])
        assert calls == 3
        assert await states(session) == {"failed": 6}

    async def test_preview_counts_by_state_and_queue(self, session: Session) -> None:
        await insert(session, "ready", 3, queue="a")
        await insert_dead(session, 2, queue="a")
        await insert_dead(session, 1, queue="b")
        preview = await bulk.preview(session, DELETE, ANY)
        assert preview.counts == {
            (State.AVAILABLE, "a"): 3,
            (State.FAILED, "a"): 2,
            (State.FAILED, "b"): 1,
        }
        assert preview.exact
        assert await states(session) == {"available": 3, "failed": 3}

    async def test_preview_counts_at_most_max_counted(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bulk, "MAX_COUNTED", 5)
        await insert(session, "ready", 6)
        preview = await bulk.preview(session, DELETE, ANY)
        assert (preview.jobs, preview.exact) == (None, False)
        assert (await bulk.preview(session, DELETE, ANY, limit=5)).jobs == 5

    async def test_preview_and_batches_have_a_timeout(
        self, session: Session, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bulk, "PREVIEW_TIMEOUT", timedelta(seconds=1))
        monkeypatch.setattr(bulk, "BATCH_TIMEOUT", timedelta(seconds=1))
        await insert(session, "ready", 3)
        async with another_session(database) as other, other.connection.transaction():
            await other.connection.execute("LOCK TABLE awa.dead")
            preview = await bulk.preview(session, DELETE, ANY)
            assert (preview.counts, preview.jobs, preview.exact) == (None, None, False)
            with pytest.raises(AwaError, match="took longer than 1s"):
                async for _ in bulk.run_operation(session, DELETE, ANY, as_of=preview.as_of):
                    pass
        assert await do(session, DELETE) == 3


class TestConcurrentChanges:
    """Jobs that change between the selection and the change."""

    @pytest.mark.parametrize("operation", ["retry", "cancel", "delete", "move"])
    async def test_job_that_ran_since_the_selection_is_left_alone(self, session: Session, operation: str) -> None:
        (job_id,) = await insert(session, "ready", lease=4)
        (ended,) = await insert_dead(session, lease=4)
        changes = {
            "retry": retry().change,
            "cancel": jobs.cancel_jobs,
            "delete": jobs.delete_jobs,
            "move": bulk.move(queue="other").change,
        }
        change = changes[operation]
        stale = SeenJobs([State.AVAILABLE, State.FAILED], [3, 3])
        assert not await change(session, [job_id, ended], stale)
        other = SeenJobs([State.SCHEDULED, State.CANCELLED], [4, 4])
        assert not await change(session, [job_id, ended], other)
        assert await states(session) == {"available": 1, "failed": 1}
        fresh = SeenJobs([State.AVAILABLE, State.FAILED], [4, 4])
        assert (
            set(await change(session, [job_id, ended], fresh))
            == {
                "retry": {ended},
                "cancel": {job_id},
                "delete": {job_id, ended},
                "move": {job_id},
            }[operation]
        )

    async def test_job_that_was_promoted_and_still_matches_is_changed(self, session: Session) -> None:
        (job_id,) = await insert(session, "scheduled", state="scheduled", run_at=ago(1))
        calls: list[list[State]] = []

        async def promote_first(session: Session, ids: Any, seen: SeenJobs) -> set[int]:
            calls.append(list(seen.states))
            if len(calls) == 1:
                await session.connection.execute(
                    "WITH moved AS (DELETE FROM awa.scheduled RETURNING id, kind, created_at) "
                    "INSERT INTO awa.ready (id, kind, created_at) SELECT * FROM moved"
                )
            return await jobs.delete_jobs(session, ids, seen)

        assert await do(session, replace(DELETE, change=promote_first)) == 1
        assert calls == [[State.SCHEDULED], [State.AVAILABLE]]
        assert await jobs.get_jobs(session, [job_id]) == {}

    async def test_job_that_no_longer_matches_is_left_alone(self, session: Session) -> None:
        (job_id,) = await insert_dead(session)

        async def retried_by_another(session: Session, ids: Any, seen: SeenJobs) -> set[int]:
            await jobs.retry_jobs(session, [job_id])
            return await jobs.delete_jobs(session, ids, seen)

        failed = Selection(states=(State.FAILED,))
        preview = await bulk.preview(session, DELETE, failed)
        operation = replace(DELETE, change=retried_by_another)
        batches = [batch async for batch in bulk.run_operation(session, operation, failed, as_of=preview.as_of)]
        assert batches == [bulk.BatchResult(found=1, changed=0)]
        assert (await look(session, job_id)).state is State.AVAILABLE

    async def test_jobs_whose_unique_key_is_held_are_tried_twice_at_most(self, session: Session) -> None:
        await session.connection.execute("SELECT awa.enqueue('work', unique_key => 'k')")
        held = await insert_dead(session, 2, unique_key="k")
        (free,) = await insert_dead(session)
        calls: list[list[int]] = []

        async def counted(session: Session, ids: Any, seen: SeenJobs) -> set[int]:
            calls.append(list(ids))
            return await jobs.retry_jobs(session, ids, seen)

        preview = await bulk.preview(session, retry(), ANY)
        batches = bulk.run_operation(session, replace(retry(), change=counted), ANY, as_of=preview.as_of)
        assert [batch async for batch in batches] == [bulk.BatchResult(found=3, changed=1)]
        assert calls == [[*held, free], held]  # tried twice: they could have changed concurrently
        assert await states(session) == {"available": 2, "failed": 2}

    async def test_batch_is_tried_again_after_a_deadlock(self, session: Session) -> None:
        await insert_dead(session, 2)
        calls: list[list[int]] = []

        async def deadlocked(session: Session, ids: Any, seen: SeenJobs) -> set[int]:
            calls.append(list(ids))
            if len(calls) == 1:
                raise asyncpg.DeadlockDetectedError("deadlock detected")
            return await jobs.delete_jobs(session, ids, seen)

        assert await do(session, replace(DELETE, change=deadlocked)) == 2
        assert len(calls) == 2


class TestConcurrentWorkers:
    async def test_no_job_is_lost_or_runs_twice(self, app: App) -> None:
        """Move jobs back and forth, retry and cancel them, while two workers run them."""
        runs: dict[int, int] = {}

        @app.job
        async def work(n: int) -> None:
            runs[n] = runs.get(n, 0) + 1
            await asyncio.sleep(0.001)

        total = 2000
        async with app, another_session(app.database) as session:
            await app.enqueue_many(app.new("work", {"n": n}) for n in range(total))
            async with working(app, {"default": 5, "other": 5}), working(app, {"default": 5, "other": 5}):
                while await any_left(session):
                    for target in ("other", "default"):
                        preview = await bulk.preview(session, bulk.move(queue=target), ANY)
                        batches = bulk.run_operation(
                            session, bulk.move(queue=target), ANY, as_of=preview.as_of, size=50
                        )
                        async for batch in batches:
                            assert batch.changed <= batch.found
        assert runs == dict.fromkeys(range(total), 1)

    async def test_job_is_either_cancelled_or_run(self, app: App) -> None:
        ran: list[int] = []

        @app.job
        async def work(n: int) -> None:
            ran.append(n)

        total = 3000
        async with app, another_session(app.database) as session:
            await app.enqueue_many(app.new("work", {"n": n}) for n in range(total))
            async with working(app, {"default": 3}):
                preview = await bulk.preview(session, CANCEL, ANY)
                async for _ in bulk.run_operation(session, CANCEL, ANY, as_of=preview.as_of, size=20):
                    pass
                await eventually(lambda: none_left(session))
            counts = await states(session)
            assert counts.get("completed", 0) == len(ran) == len(set(ran))
            assert counts.get("cancelled", 0) == total - len(ran)

    async def test_worker_does_not_wait_for_an_operation(self, app: App) -> None:
        """While the rows of a batch are locked, other jobs are claimed."""

        @app.job
        async def work() -> None: ...

        async with app, another_session(app.database) as session:
            held = [(await app.enqueue("work")).id for _ in range(3)]
            async with session.connection.transaction():
                assert len(await jobs.move_jobs(session, held, queue="other", priority=None)) == 3
                free = await app.enqueue("work")
                async with asyncio.timeout(30):
                    async with working(app):
                        await eventually(lambda: is_state_of(app, free.id, State.COMPLETED))
            await drain(app, "other")
            assert {(await app.get(job_id)).state for job_id in held} == {State.COMPLETED}


async def any_left(session: Session) -> bool:
    return bool({"available", "running", "scheduled", "retryable"} & (await states(session)).keys())


async def none_left(session: Session) -> bool:
    return not await any_left(session)


async def is_state(session: Session, job_id: int, state: State) -> bool:
    return (await look(session, job_id)).state is state


async def is_state_of(app: App, job_id: int, state: State) -> bool:
    return (await app.get(job_id)).state is state
