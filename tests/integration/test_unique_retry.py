"""An ended job that is retried takes its unique key again, and is left alone where another one holds it."""

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


async def sweep(session: Session) -> int:
    _, swept = await delete_free_unique_keys(session, after="", limit=100)
    return swept


async def holder(session: Session) -> tuple[Any, ...]:
    """Who is down for the key, whether for some time only, and in which states."""
    (row,) = await session.connection.fetch("SELECT job_id, expires_at IS NOT NULL, states FROM awa.unique_keys")
    return tuple(row)


async def waits_for_a_lock(session: Session) -> bool:
    return bool(await session.connection.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"))


class TestHeld:
    @pytest.mark.parametrize("unique", [True, "1h"])
    async def test_while_another_holds_the_key_it_is_left_alone(self, app: App, session: Session, unique: Any) -> None:
        ended = await cancelled(app, unique=unique)
        live = await app.enqueue("work", unique=unique)
        before = await look(session, ended)
        assert not await app.retry(ended)
        assert await look(session, ended) == before
        assert await states(session) == {"cancelled": 1, "available": 1}
        assert (await holder(session))[0] == live.id

    async def test_so_is_a_completed_one(self, app: App, session: Session) -> None:
        ended = await completed(app, session)
        live = await app.enqueue("work", unique=K)
        assert not await app.retry(ended)
        assert await app.cancel(live.id)
        assert await app.retry(ended)

    async def test_another_that_has_completed_holds_the_key_for_its_period(self, app: App, session: Session) -> None:
        ended = await cancelled(app, unique="1h")
        await completed(app, session, unique="1h")
        assert not await app.retry(ended)
        await session.connection.execute("UPDATE awa.unique_keys SET expires_at = now()")
        assert await app.retry(ended)

    async def test_one_that_waits_comes_now_whoever_holds_the_key(self, app: App, session: Session) -> None:
        """It is there already: there is no job more than before."""
        waits = await app.enqueue("work", unique="1h", delay="2h")
        await session.connection.execute("UPDATE awa.unique_keys SET expires_at = now()")
        assert (await app.enqueue("work", unique="1h")).is_new
        assert await app.retry(waits.id)
        assert await states(session) == {"available": 2}


class TestFree:
    async def test_it_holds_the_key_again_where_that_was_swept(self, app: App, session: Session) -> None:
        ended = await cancelled(app)
        assert await sweep(session) == 1
        assert await app.retry(ended)
        again = await app.enqueue("work", unique=K)
        assert (again.id, again.is_new) == (ended, False)

    async def test_it_holds_the_key_again_where_another_had_it(self, app: App, session: Session) -> None:
        ended = await cancelled(app)
        await cancelled(app)
        assert await app.retry(ended)
        again = await app.enqueue("work", unique=K)
        assert (again.id, again.is_new) == (ended, False)

    @pytest.mark.parametrize("swept", [False, True], ids=["over", "swept"])
    async def test_once_its_period_is_over_it_holds_the_key_until_it_ends(
        self, app: App, session: Session, swept: bool
    ) -> None:
        ended = await completed(app, session, unique="1h")
        await session.connection.execute("UPDATE awa.unique_keys SET expires_at = now()")
        assert await sweep(session) == 1 if swept else True
        assert await app.retry(ended)
        assert await holder(session) == (ended, False, UNFINISHED)
        assert (await app.enqueue("work", unique="1h")).id == ended
        (row,) = await claim(session)
        await complete_jobs(session, OWNER, [ended], [row["lease"]], [None], keep=True)
        assert (await app.enqueue("work", unique="1h")).is_new

    async def test_one_that_still_holds_its_key_keeps_period_and_states(self, app: App, session: Session) -> None:
        ended = await completed(app, session, unique="1h")
        before = await session.connection.fetchrow("SELECT * FROM awa.unique_keys")
        assert await app.retry(ended)
        assert await session.connection.fetchrow("SELECT * FROM awa.unique_keys") == before
        assert (await app.enqueue("work", unique="1h")).id == ended

    async def test_once_it_has_ended_the_key_is_free(self, app: App, session: Session) -> None:
        ended = await cancelled(app)
        assert await sweep(session) == 1
        assert await app.retry(ended)
        assert await app.cancel(ended)
        assert await sweep(session) == 1
        assert (await app.enqueue("work", unique=K)).is_new

    async def test_a_sweep_that_saw_it_ended_leaves_its_key(self, app: App, database: Database) -> None:
        """The sweep's snapshot is from before the retry; which changes nothing in the key's row, and yet writes it."""
        ended = await cancelled(app)
        async with another_session(database) as other:
            before = await other.connection.fetchval("SELECT ctid FROM awa.unique_keys")
            assert await app.retry(ended)
            # It is by its row's place that the sweep tells a key that was taken since.
            assert await other.connection.fetchval("SELECT ctid FROM awa.unique_keys") != before

    async def test_a_sweep_never_takes_the_key_of_a_job_that_was_just_retried(
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
    async def test_of_two_with_the_same_key_the_older_one_is_retried(self, app: App, session: Session) -> None:
        first, second = await insert_dead(session, 2, unique_key="k")
        (third,) = await insert_completed(session, age_s=1, unique_key="k")
        (free,) = await insert_dead(session)
        (other,) = await insert_dead(session, unique_key="another")
        assert await retry_jobs(session, [third, second, first, free, other]) == {first, free, other}
        assert await states(session) == {"available": 3, "failed": 1, "completed": 1}
        assert (await app.enqueue("work", unique=K)).id == first

    async def test_of_two_with_the_same_key_the_one_that_still_holds_it_is_retried(
        self, app: App, session: Session
    ) -> None:
        ended = await cancelled(app, unique="1h")
        done = await completed(app, session, unique="1h")
        assert await retry_jobs(session, [ended, done]) == {done}

    async def test_one_that_has_changed_since_does_not_take_the_key_from_another(self, session: Session) -> None:
        changed, same = await insert_dead(session, 2, unique_key="k")
        seen = SeenJobs([State.FAILED, State.FAILED], [0, 1])
        assert await retry_jobs(session, [changed, same], seen) == {same}

    async def test_in_bulk_one_job_of_a_key_is_retried(self, session: Session) -> None:
        for key in ("a", "b", "c"):
            await insert_dead(session, 4, unique_key=key)
        preview = await bulk.preview(session, bulk.retry(), Selection())
        batches = bulk.run_operation(session, bulk.retry(), Selection(), as_of=preview.as_of, size=5)
        assert [(batch.found, batch.changed) async for batch in batches] == [(5, 2), (5, 1), (2, 0)]
        assert await states(session) == {"available": 3, "failed": 9}

    async def test_jobs_without_a_key_cost_nothing_more(self, session: Session) -> None:
        ids = [*await insert_dead(session, 20), *await insert_completed(session, 20, age_s=1)]
        assert await looked_for_keys(session, ids) == 0
        keyed = await insert_dead(session, unique_key="k")
        assert await looked_for_keys(session, ids[:5] + keyed) == 1


async def looked_for_keys(session: Session, ids: list[int]) -> int:
    """How often a retry of these looked for jobs with a key."""

    def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield node
        for child in node.get("Plans", ()):
            yield from nodes(child)

    transaction = session.connection.transaction()
    await transaction.start()
    text = await session.connection.fetchval(
        f"EXPLAIN (ANALYZE, FORMAT JSON) {statement('retry_jobs', session.schema)}", ids, None, None, True
    )
    await transaction.rollback()
    (found,) = [node for node in nodes(json.loads(text)[0]["Plan"]) if node.get("Subplan Name") == "CTE keyed"]
    return int(found["Actual Loops"])


class TestAtTheSameTime:
    async def test_a_retry_waits_for_an_enqueue(self, app: App, session: Session, database: Database) -> None:
        ended = await cancelled(app)
        async with another_session(database) as other:
            async with other.connection.transaction():
                live = await app.enqueue("work", unique=K, connection=other.connection)
                assert live.is_new
                retrying = asyncio.create_task(app.retry(ended))
                await eventually(lambda: waits_for_a_lock(session))
            assert not await retrying
        assert await states(session) == {"cancelled": 1, "available": 1}

    async def test_an_enqueue_waits_for_a_retry(self, app: App, session: Session, database: Database) -> None:
        ended = await cancelled(app)
        assert await sweep(session) == 1
        async with another_session(database) as other:
            async with other.connection.transaction():
                assert await retry_jobs(other, [ended]) == {ended}
                adding = asyncio.create_task(app.enqueue("work", unique=K))
                await eventually(lambda: waits_for_a_lock(session))
            job = await adding
        assert (job.id, job.is_new) == (ended, False)

    async def test_a_retry_waits_for_that_of_another_job(self, app: App, session: Session, database: Database) -> None:
        first, second = await insert_dead(session, 2, unique_key="k")
        async with another_session(database) as other:
            async with other.connection.transaction():
                assert await retry_jobs(other, [second]) == {second}
                retrying = asyncio.create_task(app.retry(first))
                await eventually(lambda: waits_for_a_lock(session))
            assert not await retrying

    async def test_retries_and_enqueues_give_one_job(self, app: App, session: Session) -> None:
        for n in range(20):
            unique = Unique(key=f"key {n}")
            first, second = await cancelled(app, unique=unique), await cancelled(app, unique=unique)
            tasks = (app.retry(first), app.enqueue("work", unique=unique), app.retry(second), app.retry(first))
            await asyncio.gather(*tasks)
            assert (await states(session))["available"] == n + 1

    async def test_keys_in_opposite_order_do_not_deadlock(self, app: App, session: Session, database: Database) -> None:
        keys = [f"key {n:03}" for n in range(200)]
        async with another_session(database) as other:
            for round_ in range(5):
                ended = [(await insert_dead(session, unique_key=f"{round_} {key}"))[0] for key in reversed(keys)]
                forth = [app.new("work", unique=Unique(key=f"{round_} {key}")) for key in keys]
                again, added = await asyncio.gather(retry_jobs(other, ended), app.enqueue_many(forth))
                assert len(again) + sum(job.is_new for job in added) == len(keys)
