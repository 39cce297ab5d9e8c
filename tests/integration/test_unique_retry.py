"""A finished job that is retried acquires its unique key again, and is left alone if another job holds it."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from awa_py import App, State, Unique
from awa_py.db.database import Database
from awa_py.store import bulk
from awa_py.store.bulk import Selection
from awa_py.store.finish import complete_jobs
from awa_py.store.jobs import SeenJobs, retry_jobs
from awa_py.store.maintenance import delete_free_unique_keys
from awa_py.store.session import Session, statement
from tests.support import OWNER, another_session, claim, eventually, insert, insert_completed, look, states

pytestmark = pytest.mark.integration

K = Unique(key="k")
UNFINISHED = ["scheduled", "available", "running", "retryable", "waiting"]


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[App]:
    app = App(database_url)

    @app.job
    async def work(number: int = 0) -> None: ...

    async with app:
        yield app


async def cancelled(app: App, **options: Any) -> int:
    job = await app.enqueue("work", **{"unique": K, **options})
    assert job.is_new
    assert await app.cancel(job.id)
    return job.id


async def completed(app: App, session: Session, **options: Any) -> int:
    job = await app.enqueue("work", **{"unique": K, **options})
    assert job.is_new
    (row,) = await claim(session)
    await complete_jobs(session, OWNER, [job.id], [row["lease"]], [None], keep=True)
    return job.id


async def insert_dead(session: Session, count: int = 1, **columns: Any) -> list[int]:
    return await insert(session, "dead", count, **{"state": "failed", "attempt": 1, "lease": 1, **columns})


async def delete_free_keys(session: Session) -> int:
    _, deleted = await delete_free_unique_keys(session, after="", limit=100)
    return deleted


async def holder(session: Session) -> tuple[Any, ...]:
    """Return the holder of the key, whether it expires, and its states."""
    (row,) = await session.connection.fetch("SELECT job_id, expires_at IS NOT NULL, states FROM awa.unique_keys")
    return tuple(row)


async def waits_for_a_lock(session: Session) -> bool:
    return bool(await session.connection.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"))


class TestHeld:
    @pytest.mark.parametrize("unique", [True, "1h"])
    async def test_failed_job_whose_key_is_held_is_not_retried(self, app: App, session: Session, unique: Any) -> None:
        ended = await cancelled(app, unique=unique)
        live = await app.enqueue("work", unique=unique)
        before = await look(session, ended)
        assert not await app.retry(ended)
        assert await look(session, ended) == before
        assert await states(session) == {"cancelled": 1, "available": 1}
        assert (await holder(session))[0] == live.id

    async def test_completed_job_whose_key_is_held_is_not_retried(self, app: App, session: Session) -> None:
        ended = await completed(app, session)
        live = await app.enqueue("work", unique=K)
        assert not await app.retry(ended)
        assert await app.cancel(live.id)
        assert await app.retry(ended)

    async def test_completed_holder_keeps_the_key_for_its_period(self, app: App, session: Session) -> None:
        ended = await cancelled(app, unique="1h")
        await completed(app, session, unique="1h")
        assert not await app.retry(ended)
        await session.connection.execute("UPDATE awa.unique_keys SET expires_at = now()")
        assert await app.retry(ended)

    async def test_retryable_job_is_retried_whoever_holds_its_key(self, app: App, session: Session) -> None:
        """It is unfinished already: the retry adds no unfinished job."""
        waits = await app.enqueue("work", unique="1h", delay="2h")
        await session.connection.execute("UPDATE awa.unique_keys SET expires_at = now()")
        assert (await app.enqueue("work", unique="1h")).is_new
        assert await app.retry(waits.id)
        assert await states(session) == {"available": 2}


class TestFree:
    async def test_retried_job_acquires_a_deleted_key(self, app: App, session: Session) -> None:
        ended = await cancelled(app)
        assert await delete_free_keys(session) == 1
        assert await app.retry(ended)
        again = await app.enqueue("work", unique=K)
        assert (again.id, again.is_new) == (ended, False)

    async def test_retried_job_takes_the_key_over_from_a_finished_job(self, app: App, session: Session) -> None:
        ended = await cancelled(app)
        await cancelled(app)
        assert await app.retry(ended)
        again = await app.enqueue("work", unique=K)
        assert (again.id, again.is_new) == (ended, False)

    @pytest.mark.parametrize("deleted", [False, True], ids=["expired", "deleted"])
    async def test_retried_job_with_an_expired_period_holds_the_key_until_it_ends(
        self, app: App, session: Session, deleted: bool
    ) -> None:
        ended = await completed(app, session, unique="1h")
        await session.connection.execute("UPDATE awa.unique_keys SET expires_at = now()")
        assert await delete_free_keys(session) == 1 if deleted else True
        assert await app.retry(ended)
        assert await holder(session) == (ended, False, UNFINISHED)
        assert (await app.enqueue("work", unique="1h")).id == ended
        (row,) = await claim(session)
        await complete_jobs(session, OWNER, [ended], [row["lease"]], [None], keep=True)
        assert (await app.enqueue("work", unique="1h")).is_new

    async def test_retried_holder_keeps_period_and_states(self, app: App, session: Session) -> None:
        ended = await completed(app, session, unique="1h")
        before = await session.connection.fetchrow("SELECT * FROM awa.unique_keys")
        assert await app.retry(ended)
        assert await session.connection.fetchrow("SELECT * FROM awa.unique_keys") == before
        assert (await app.enqueue("work", unique="1h")).id == ended

    async def test_key_is_free_after_the_retried_job_ends(self, app: App, session: Session) -> None:
        ended = await cancelled(app)
        assert await delete_free_keys(session) == 1
        assert await app.retry(ended)
        assert await app.cancel(ended)
        assert await delete_free_keys(session) == 1
        assert (await app.enqueue("work", unique=K)).is_new

    async def test_cleanup_with_an_old_snapshot_keeps_the_key_of_a_retried_job(
        self, app: App, database: Database
    ) -> None:
        """The cleanup's snapshot is older than the retry, which writes the key's row without changing it."""
        ended = await cancelled(app)
        async with another_session(database) as other:
            before = await other.connection.fetchval("SELECT ctid FROM awa.unique_keys")
            assert await app.retry(ended)
            # The cleanup recognizes a key that was acquired since by the new ctid of its row.
            assert await other.connection.fetchval("SELECT ctid FROM awa.unique_keys") != before

    async def test_cleanup_never_deletes_the_key_of_a_job_that_was_just_retried(
        self, app: App, session: Session, database: Database
    ) -> None:
        await app.enqueue_many(app.new("work", unique=Unique(key=f"a{n:04}")) for n in range(900))
        job = await app.enqueue("work", unique=Unique(key="z"))
        stop = asyncio.Event()

        async def sweeping() -> None:
            async with another_session(database) as other:
                while not stop.is_set():
                    await delete_free_unique_keys(other, after="", limit=1000)

        task = asyncio.create_task(sweeping())
        try:
            for _ in range(100):
                await app.cancel(job.id)
                assert await app.retry(job.id)
                assert (await app.enqueue("work", unique=Unique(key="z"))).id == job.id
        finally:
            stop.set()
            await task


class TestMany:
    async def test_older_of_two_jobs_with_the_same_key_is_retried(self, app: App, session: Session) -> None:
        first, second = await insert_dead(session, 2, unique_key="k")
        (third,) = await insert_completed(session, age_s=1, unique_key="k")
        (free,) = await insert_dead(session)
        (other,) = await insert_dead(session, unique_key="another")
        assert await retry_jobs(session, [third, second, first, free, other]) == {first, free, other}
        assert await states(session) == {"available": 3, "failed": 1, "completed": 1}
        assert (await app.enqueue("work", unique=K)).id == first

    async def test_holder_among_two_jobs_with_the_same_key_is_retried(self, app: App, session: Session) -> None:
        ended = await cancelled(app, unique="1h")
        done = await completed(app, session, unique="1h")
        assert await retry_jobs(session, [ended, done]) == {done}

    async def test_job_that_changed_since_does_not_take_the_key(self, session: Session) -> None:
        changed, same = await insert_dead(session, 2, unique_key="k")
        seen = SeenJobs([State.FAILED, State.FAILED], [0, 1])
        assert await retry_jobs(session, [changed, same], seen) == {same}

    async def test_bulk_retry_retries_one_job_per_key(self, session: Session) -> None:
        for key in ("a", "b", "c"):
            await insert_dead(session, 4, unique_key=key)
        preview = await bulk.preview(session, bulk.retry(), Selection())
        batches = bulk.run_operation(session, bulk.retry(), Selection(), as_of=preview.as_of, size=5)
        assert [(batch.found, batch.changed) async for batch in batches] == [(5, 2), (5, 1), (2, 0)]
        assert await states(session) == {"available": 3, "failed": 9}

    async def test_retry_of_jobs_without_key_reads_no_keys(self, session: Session) -> None:
        ids = [*await insert_dead(session, 20), *await insert_completed(session, 20, age_s=1)]
        assert await key_lookups(session, ids) == 0
        keyed = await insert_dead(session, unique_key="k")
        assert await key_lookups(session, ids[:5] + keyed) == 1


async def key_lookups(session: Session, ids: list[int]) -> int:
    """Return how often a retry of these jobs looked for keys."""

    def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield node
        for child in node.get("Plans", ()):
            yield from nodes(child)

    transaction = session.connection.transaction()
    await transaction.start()
    text = await session.connection.fetchval(
        f"EXPLAIN (ANALYZE, FORMAT JSON) {statement('retry_jobs', session.schema)}", ids, None, True
    )
    await transaction.rollback()
    (found,) = [node for node in nodes(json.loads(text)[0]["Plan"]) if node.get("Subplan Name") == "CTE keyed"]
    return int(found["Actual Loops"])


class TestConcurrency:
    async def test_retry_waits_for_an_enqueue(self, app: App, session: Session, database: Database) -> None:
        ended = await cancelled(app)
        async with another_session(database) as other:
            async with other.connection.transaction():
                live = await app.enqueue("work", unique=K, connection=other.connection)
                assert live.is_new
                retrying = asyncio.create_task(app.retry(ended))
                await eventually(lambda: waits_for_a_lock(session))
            assert not await retrying
        assert await states(session) == {"cancelled": 1, "available": 1}

    async def test_enqueue_waits_for_a_retry(self, app: App, session: Session, database: Database) -> None:
        ended = await cancelled(app)
        assert await delete_free_keys(session) == 1
        async with another_session(database) as other:
            async with other.connection.transaction():
                assert await retry_jobs(other, [ended]) == {ended}
                adding = asyncio.create_task(app.enqueue("work", unique=K))
                await eventually(lambda: waits_for_a_lock(session))
            job = await adding
        assert (job.id, job.is_new) == (ended, False)

    async def test_retry_waits_for_the_retry_of_another_job(
        self, app: App, session: Session, database: Database
    ) -> None:
        first, second = await insert_dead(session, 2, unique_key="k")
        async with another_session(database) as other:
            async with other.connection.transaction():
                assert await retry_jobs(other, [second]) == {second}
                retrying = asyncio.create_task(app.retry(first))
                await eventually(lambda: waits_for_a_lock(session))
            assert not await retrying

    async def test_concurrent_retries_and_enqueues_leave_one_unfinished_job(self, app: App, session: Session) -> None:
        for n in range(20):
            unique = Unique(key=f"key {n}")
            first, second = await cancelled(app, unique=unique), await cancelled(app, unique=unique)
            tasks = (app.retry(first), app.enqueue("work", unique=unique), app.retry(second), app.retry(first))
            await asyncio.gather(*tasks)
            assert (await states(session))["available"] == n + 1

    async def test_retries_of_keys_in_opposite_order_do_not_deadlock(
        self, app: App, session: Session, database: Database
    ) -> None:
        keys = [f"key {n:03}" for n in range(200)]
        async with another_session(database) as other:
            for round_ in range(5):
                ended = [(await insert_dead(session, unique_key=f"{round_} {key}"))[0] for key in reversed(keys)]
                forth = [app.new("work", unique=Unique(key=f"{round_} {key}")) for key in keys]
                again, added = await asyncio.gather(retry_jobs(other, ended), app.enqueue_many(forth))
                assert len(again) + sum(job.is_new for job in added) == len(keys)
