"""Large arguments: they are written once into `awa.payloads`, and the rows of their jobs move without them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import asyncpg
import pytest

import awa_py as awa
from awa_py import App, BatchJob, Context, InvalidJob, Job, NewJob, State, Unique
from awa_py.db.columns import MAX_INLINE_BYTES
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.enqueue.enqueuer import COPY_MIN_JOBS
from awa_py.store import copy
from awa_py.store.claim import Claimant, take_over_jobs
from awa_py.store.session import Session, statement
from tests.payloads import LARGE, assert_paired, put_large
from tests.support import (
    OWNER,
    another_session,
    drain,
    insert_queue,
    lead,
    run_one,
    seconds,
    states,
)
from tests.tasks import leader_task

pytestmark = pytest.mark.integration


@pytest.fixture
def seen(app: App) -> list[str]:
    """Declare the job `work`. Return the list of texts that it got."""
    texts: list[str] = []

    @app.job
    async def work(text: str) -> None:
        texts.append(text)

    return texts


async def one(app: App) -> Sequence[Job]:
    return [await app.enqueue("work", {"text": LARGE})]


async def unique(app: App) -> Sequence[Job]:
    return [await app.enqueue("work", {"text": LARGE}, unique=Unique()) for _ in range(2)][:1]


async def later(app: App) -> Sequence[Job]:
    return [await app.enqueue("work", {"text": LARGE}, delay="1ms")]


async def together(app: App) -> Sequence[Job]:
    return await asyncio.gather(*(app.enqueue("work", {"text": LARGE}) for _ in range(5)))


async def few(app: App) -> Sequence[Job]:
    return await app.enqueue_many([app.new("work", {"text": LARGE}) for _ in range(3)])


async def many(app: App) -> Sequence[Job]:
    return await app.enqueue_many([app.new("work", {"text": LARGE}) for _ in range(COPY_MIN_JOBS)])


async def many_keyed(app: App) -> Sequence[Job]:
    new = [app.new("work", {"text": LARGE}, concurrency_key=f"k{n % 2}", concurrency_limit=9) for n in range(300)]
    return await app.enqueue_many(new)


async def many_later(app: App) -> Sequence[Job]:
    return await app.enqueue_many([app.new("work", {"text": LARGE}, delay="1ms") for _ in range(COPY_MIN_JOBS)])


async def in_transaction(app: App) -> Sequence[Job]:
    async with app.pool.acquire() as connection, connection.transaction():
        return [await app.enqueue("work", {"text": LARGE}, connection=connection)]


async def in_sql(app: App) -> Sequence[Job]:
    job_id = await app.pool.fetchval("SELECT awa.enqueue('work', jsonb_build_object('text', $1::text))", LARGE)
    return [await app.get(job_id)]


async def undeclared(app: App) -> Sequence[Job]:
    async with App(app.database.url, settings=app.settings) as producer:
        return [await producer.enqueue("work", {"text": LARGE})]


WAYS = (one, unique, later, together, few, many, many_keyed, many_later, in_transaction, in_sql, undeclared)


class TestEnqueue:
    @pytest.mark.parametrize("way", WAYS)
    async def test_each_way_writes_a_payload_that_the_handler_gets(
        self, app: App, session: Session, seen: list[str], way: Callable[[App], Awaitable[Sequence[Job]]]
    ) -> None:
        async with app:
            jobs = await way(app)
            await assert_paired(session, jobs=len(jobs))
            assert (await app.get(jobs[-1].id)).args == jobs[-1].args == {"text": LARGE}
            async with asyncio.timeout(30):
                while len(seen) < len(jobs):
                    await leader_task("promote").run(session)
                    await drain(app)
            assert (await app.get(jobs[-1].id)).args == {"text": LARGE}
        assert seen == [LARGE] * len(jobs)
        assert await states(session) == {"completed": len(jobs)}
        await assert_paired(session, jobs=len(jobs))

    async def test_small_arguments_stay_in_the_row(self, app: App, session: Session, seen: list[str]) -> None:
        async with app:
            await app.enqueue("work", {"text": "x" * (MAX_INLINE_BYTES - 50)})
            await app.enqueue_many([app.new("work", {"text": "x" * (MAX_INLINE_BYTES - 50)})] * 2)
            await app.enqueue_many([app.new("work", {"text": "x" * (MAX_INLINE_BYTES - 50)})] * COPY_MIN_JOBS)
        await assert_paired(session, jobs=0)

    async def test_copy_mixes_small_and_large_arguments(self, app: App, session: Session, seen: list[str]) -> None:
        texts = [LARGE if n % 3 else f"{n}" for n in range(COPY_MIN_JOBS)]
        async with app:
            jobs = await app.enqueue_many([app.new("work", {"text": text}) for text in texts])
            assert [(await app.get(job.id)).args["text"] for job in jobs] == texts
            await drain(app)
        assert seen == texts
        await assert_paired(session, jobs=texts.count(LARGE))

    async def test_duplicate_of_a_unique_job_leaves_no_payload(self, app: App, session: Session) -> None:
        async with app:
            twins = [app.new("work", {"text": LARGE}, unique=Unique()) for _ in range(2)]
            first, second = await app.enqueue_many(twins)
            third = await app.enqueue("work", {"text": LARGE}, unique=Unique())
        assert first.id == second.id == third.id
        await assert_paired(session, jobs=1)

    async def test_refused_payload_names_its_job(self, app: App, session: Session) -> None:
        jobs = [NewJob(kind="work", args_json=f'{{"text":\n"{LARGE}"}}')] * COPY_MIN_JOBS
        jobs[7] = NewJob(kind="odd", args_json=f'["{LARGE}"]')
        async with app:
            with pytest.raises(InvalidJob, match=rf"^odd \(job 8 of {COPY_MIN_JOBS}\): .*args_is_an_object"):
                await app.enqueue_many(jobs)
            with pytest.raises(InvalidJob, match="args_is_an_object"):
                await app.client.enqueue(jobs[7])
        await assert_paired(session, jobs=0)

    async def test_crash_at_any_point_of_a_copy_leaves_neither_job_nor_payload(
        self, database: Database, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        jobs = [NewJob(kind="work", args_json=f'{{"text": "{LARGE}"}}')] * 3
        points = 0
        real_copy, real_fetch = copy._copy, Session.fetchrow

        async def end(enqueuing: Session) -> None:
            nonlocal points
            points += 1
            if points == crash_at and enqueuing is producer:
                pid = enqueuing.connection.get_server_pid()
                await session.connection.execute("SELECT pg_terminate_backend($1, 10000)", pid)

        async def crashing_copy(enqueuing: Session, *values: Any) -> None:
            await real_copy(enqueuing, *values)
            await end(enqueuing)

        async def crashing_fetch(enqueuing: Session, *values: Any) -> Any:
            row = await real_fetch(enqueuing, *values)
            await end(enqueuing)
            return row

        monkeypatch.setattr(copy, "_copy", crashing_copy)
        monkeypatch.setattr(Session, "fetchrow", crashing_fetch)
        crashes = crash_at = 0
        while crashes == crash_at:
            crash_at += 1
            points = 0
            async with another_session(database) as producer:
                try:
                    async with producer.connection.transaction():
                        await copy.copy_jobs(producer, jobs)
                except (asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError):
                    crashes += 1
                    await assert_paired(session, jobs=0)
        assert crashes >= 4  # after the ids, the jobs, the payloads and the wake-up
        await assert_paired(session, jobs=3)

    async def test_rollback_leaves_neither_job_nor_payload(self, app: App, session: Session) -> None:
        async with app, app.pool.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            await app.enqueue("work", {"text": LARGE}, connection=connection)
            await transaction.rollback()
        await assert_paired(session, jobs=0)

    async def test_fired_schedule_writes_a_payload(self, session: Session) -> None:
        await session.connection.execute(
            "INSERT INTO awa.cron (name, expression, kind, args) "
            "VALUES ('c', '@hourly', 'work', jsonb_build_object('text', $1::text))",
            LARGE,
        )
        assert await session.fetchval("trigger_schedule", "c")
        await assert_paired(session, jobs=1)


class TestAttempts:
    async def test_retries_and_snoozes_write_the_payload_only_once(self, app: App, session: Session) -> None:
        attempts: list[str] = []

        @app.job(max_attempts=3)
        async def work(ctx: Context, text: str) -> None:
            attempts.append(text)
            if len(attempts) == 1:
                raise awa.Retry(after="1ms")
            if len(attempts) == 2:
                raise awa.Snooze("1ms")
            assert ctx.job.args == {"text": LARGE}

        async with app:
            job = await app.enqueue("work", {"text": LARGE})
            written = await session.connection.fetchval("SELECT xmin::text FROM awa.payloads")
            async with asyncio.timeout(30):
                while len(attempts) < 3:
                    await drain(app)
                    await leader_task("promote").run(session)
            assert (await app.get(job.id)).state is State.COMPLETED
            await app.retry(job.id)
            await drain(app)
        assert attempts == [LARGE] * 4
        assert await session.connection.fetchval("SELECT xmin::text FROM awa.payloads") == written

    async def test_limited_claim_returns_payloads(self, app: App, session: Session, seen: list[str]) -> None:
        await insert_queue(session, "default", max_workers=3)
        texts = [LARGE, "y" * 100_000]
        async with app:
            for text in texts:
                await app.enqueue("work", {"text": text})
            await drain(app)
        assert sorted(seen) == sorted(texts)

    async def test_batch_handler_gets_payloads(self, app: App) -> None:
        got: list[Any] = []

        @app.job(batch=10, linger="1ms")
        async def work(jobs: Sequence[BatchJob]) -> None:
            got.extend(job.args for job in jobs)

        await run_one(app, "work", {"text": LARGE})
        assert got == [{"text": LARGE}]

    async def test_take_over_returns_payloads(self, session: Session) -> None:
        job_id = await put_large(session)
        await session.connection.execute(
            "WITH taken AS (DELETE FROM awa.ready RETURNING id, kind, args) "
            "INSERT INTO awa.running (id, kind, args, worker_id, lease, attempt, attempted_at, heartbeat_at) "
            "SELECT id, kind, args, gen_random_uuid(), 1, 1, now() - interval '1 hour', now() - interval '1 hour' "
            "FROM taken"
        )
        await lead(session, since_s=3600)
        claimant = Claimant(OWNER, ["work"], ["work"])
        rows = await take_over_jobs(session, claimant, queues=["default"], staleness=seconds(60), limit=9)
        assert [(row["id"], row["args"]) for row in rows] == [(job_id, f'{{"text": "{LARGE}"}}')]

    async def test_next_state_replaces_the_payload(self, app: App, session: Session) -> None:
        large = LARGE + "y"
        got: list[str] = []

        @app.job
        async def work(texts: list[str]) -> awa.Next | None:
            got.append(texts[0])
            await assert_paired(session, jobs=int(len(texts[0]) > 10))
            return awa.Next("work", {"texts": texts[1:]}) if texts[1:] else None

        # The first states carry those after them, so only the last ones are small.
        job = await run_one(app, "work", {"texts": [LARGE, large, large, "a", "b"]})
        assert job.state is State.COMPLETED, job.errors
        assert got == [LARGE, large, large, "a", "b"]
        await assert_paired(session, jobs=0)

    async def test_next_state_with_large_arguments_writes_a_payload(self, app: App, session: Session) -> None:
        @app.job
        async def grow() -> awa.Next:
            return awa.Next("grown", {"text": LARGE})

        @app.job
        async def grown(text: str) -> int:
            return len(text)

        assert (await run_one(app, "grow")).result == len(LARGE)
        await assert_paired(session, jobs=1)

    async def test_children_get_payloads(self, app: App, session: Session) -> None:
        @app.job
        async def child(text: str) -> int:
            return len(text)

        @app.job
        async def parent(ctx: Context) -> int:
            return sum(await ctx.map(child, [LARGE, LARGE]))

        async with app:
            job = await app.enqueue("parent", {})
            await app.work(["default"], until_idle=True)
            assert await app.result(job.id, timeout=30) == 2 * len(LARGE)
        await assert_paired(session, jobs=2)


class TestMissingPayload:
    @pytest.mark.parametrize("limited", [False, True])
    async def test_job_without_its_payload_fails_alone_with_a_reason(
        self, app: App, session: Session, seen: list[str], limited: bool
    ) -> None:
        await insert_queue(session, "default", max_workers=5 if limited else None)
        async with app:
            lost = await app.enqueue("work", {"text": LARGE})
            await app.enqueue("work", {"text": "other"})
            await session.connection.execute("DELETE FROM awa.payloads")
            await drain(app)
            job = await app.get(lost.id)
        assert (job.state, job.attempt) == (State.FAILED, 1)
        assert job.errors[0]["error"] == "its arguments are missing: awa.payloads has no row for this job"
        assert seen == ["other"]

    async def test_batch_runs_without_a_job_that_lost_its_payload(self, app: App, session: Session) -> None:
        got: list[Any] = []

        @app.job(batch=10, linger="1ms")
        async def work(jobs: Sequence[BatchJob]) -> None:
            got.extend(job.args for job in jobs)

        async with app:
            await app.enqueue_many([app.new("work", {"text": text}) for text in (LARGE, "other")])
            await session.connection.execute("DELETE FROM awa.payloads")
            await drain(app)
        assert got == [{"text": "other"}]
        assert await states(session) == {"completed": 1, "failed": 1}


class TestReads:
    async def test_list_reads_only_the_payloads_that_it_returns(self, database: Database, session: Session) -> None:
        async with session.connection.transaction():
            for _ in range(50):
                await put_large(session)
        async with another_session(database, **STABLE_PLAN_SETTINGS) as reader:
            await reader.connection.execute("SET stats_fetch_consistency = none")
            await reader.connection.execute(f"PREPARE p AS {statement('list_jobs', reader.schema)}")
            rows = await reader.connection.fetch(
                "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) EXECUTE p (NULL, NULL, NULL, NULL, NULL, 5)"
            )
        plan = "\n".join(row[0] for row in rows)
        assert "payloads_pkey on payloads (actual rows=1" in plan, plan
        assert "loops=5)" in plan[plan.index("payloads_pkey on payloads") :].splitlines()[0], plan
