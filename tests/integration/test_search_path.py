"""Nothing that awa runs calls what others have created in a schema of the search path."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from awa_py import App, Context, Retry, Settings, Snooze, State, Throttled, Unique
from awa_py.connections import Connection
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.doctor.runner import run_checks
from awa_py.enqueue.enqueuer import COPY_MIN_JOBS
from awa_py.maintenance.task import run_once
from awa_py.maintenance.tasks import all_tasks
from awa_py.model.rates import Rate
from awa_py.observability.metrics import Metrics
from awa_py.store import bulk, election, queues, rate_limits, routes, schedules
from awa_py.store.session import SAFE_ON_ANY_PATH, Session
from tests import decoys
from tests.fake_pooler import fake_pooler
from tests.support import QUICK, another_session, eventually, seconds, working

pytestmark = pytest.mark.integration


@pytest.fixture
async def hostile(fresh_database_url: str) -> Database:
    """A database with decoys, migrated after they were planted."""
    connection = await asyncpg.connect(fresh_database_url)
    await decoys.plant(connection)
    await connection.close()
    database = Database(fresh_database_url, Schema())
    await migrations.migrate(database, roles=False)
    return database


async def test_decoy_is_called_by_a_statement_that_does_not_name_schemas(hostile: Database) -> None:
    connection = await asyncpg.connect(hostile.url)
    for call in ("SELECT 1 + 1", "SELECT now()", "SELECT 2 ^ 3", "SELECT lower('A')"):
        with pytest.raises(asyncpg.PostgresError, match=decoys.ERROR):
            await connection.fetch(call)
    await connection.close()


async def test_function_calls_no_decoy(hostile: Database) -> None:
    """Every function has a parsed body, or sets its search path."""
    async with another_session(hostile) as session:
        unsafe = await session.connection.fetch(
            """SELECT oid::regprocedure::text FROM pg_proc
               WHERE pronamespace = 'awa'::regnamespace AND prosqlbody IS NULL
                 AND 'search_path=pg_catalog, pg_temp' <> ALL (coalesce(proconfig, '{}'))"""
        )
        assert unsafe == []
        # Bodies, views, defaults and constraints were parsed by the migration.
        rows = await session.connection.fetch(
            f"""SELECT pg_describe_object(classid, objid, objsubid), pg_describe_object(refclassid, refobjid, 0)
                FROM pg_depend
                WHERE {decoys.IS_DECOY} AND pg_describe_object(classid, objid, objsubid) ~ 'awa'"""
        )
        assert rows == []


async def test_statement_on_a_connection_of_the_user_calls_no_decoy(hostile: Database) -> None:
    connection = await asyncpg.connect(hostile.url)
    assert await decoys.find_called(
        connection, hostile.schema, "update_progress"
    )  # it runs only on sessions of our own
    for name in SAFE_ON_ANY_PATH:
        assert await decoys.find_called(connection, hostile.schema, name) == [], name
    await connection.close()


async def test_unsafe_statement_is_refused_on_a_connection_of_the_user(database: Database) -> None:
    async with another_session(database) as own:
        users = Session(own.connection, database.schema, is_own=False)
        with pytest.raises(AssertionError, match="not safe"):
            await users.fetch("list_queues", seconds(1))


@pytest.fixture(params=["direct", "pooler"])
async def hostile_app(hostile: Database, request: pytest.FixtureRequest) -> AsyncIterator[App]:
    """An app with handlers for all outcomes; through a pooler, its client has no session that keeps settings."""
    if request.param == "direct":
        yield make_app(hostile.url)
    else:
        async with fake_pooler(hostile.url) as pooled_url:
            yield make_app(pooled_url, hostile.url)


def make_app(url: str, direct_url: str | None = None) -> App:
    app = App(url, direct_url=direct_url, settings=QUICK)
    seen = set()

    @app.job
    async def ends(ctx: Context, how: str = "") -> str:
        if how not in seen:
            seen.add(how)
            match how:
                case "retry":
                    raise Retry(after=0)
                case "error":
                    raise ValueError("boom")
                case "snooze":
                    raise Snooze(0)
                case "throttle":
                    raise Throttled("429")
        if how == "fail":
            raise ValueError("boom")
        ctx.progress(0.5, "halfway")
        await ctx.rate_limit("calls")
        return how

    @app.job
    async def waits(ctx: Context) -> None:
        await ctx.wait_cancelled()

    async def read_clock(connection: Connection) -> str:
        return str(await connection.fetchval("SELECT pg_catalog.now()"))

    @app.job
    async def durable(ctx: Context) -> None:
        await ctx.step("step", str)
        await ctx.transact("transact", read_clock)
        await ctx.sleep("1100ms")
        await ctx.first(ctx.wait_signal("go", timeout="1h"), ctx.sleep("2h"))
        async with ctx.transaction() as connection:
            ctx.complete(await read_clock(connection))

    @app.cron("* * * * * *", name="tick")
    @app.job
    async def ticks() -> None: ...

    return app


async def test_life_of_jobs_calls_no_decoy(hostile: Database, hostile_app: App) -> None:
    app = hostile_app
    users: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(hostile.url)
    async with app:
        async with app.session() as session:
            await rate_limits.set_rate_limit(session, "calls", Rate.parse("1000/s"))
            await queues.set_queue(session, "limited", {"max_workers": 2, "rate_jobs": 100, "rate_period": seconds(1)})
            await routes.set_route(session, "routed", "default")
        async with working(app, ("default", "limited", "throttled"), maintenance=True):
            await eventually(lambda: has_leader(app))
            async with users.transaction():  # the user's connection, whose path the user chose
                own = [
                    await app.enqueue("ends", {"how": "own"}, connection=users),
                    await app.enqueue("ends", {"how": "retry"}, delay="10ms", connection=users),
                    await app.enqueue("ends", unique=Unique(key="k"), connection=users),
                    *await app.enqueue_many([app.new("ends") for _ in range(COPY_MIN_JOBS)], connection=users),
                ]
                assert not (await app.enqueue("ends", unique=Unique(key="k"), connection=users)).is_new
                assert await users.fetchval("SHOW search_path") == decoys.PATH
            enqueued = [
                *own,
                *[await app.enqueue("ends", {"how": how}) for how in ("", "retry", "error", "snooze")],
                await app.enqueue("ends", {"how": "throttle"}, queue="throttled"),
                await app.enqueue("ends", {"how": "fail"}, max_attempts=1),
                await app.enqueue("ends", concurrency_key="key", ordered=True),
                *await asyncio.gather(*(app.enqueue("ends", queue="limited") for _ in range(5))),
                *await app.enqueue_many([app.new("ends") for _ in range(COPY_MIN_JOBS)]),
            ]
            async with users.transaction():
                signalled = await app.enqueue("durable", connection=users)
                await app.signal(signalled, "go", {"n": 1}, key="k", connection=users)
            enqueued.append(signalled)
            waiting = await app.enqueue("waits")
            await eventually(lambda: is_in(app, waiting.id, State.RUNNING))
            await app.cancel(waiting.id)
            await eventually(lambda: is_in(app, waiting.id, State.CANCELLED))
            async with app.session() as session:
                await queues.unthrottle_queue(session, "throttled")
            failed = enqueued[len(own) + 5]
            for job in enqueued:
                if job is not failed:
                    await app.result(job.id, timeout="30s")
            await eventually(lambda: is_in(app, failed.id, State.FAILED))
            await eventually(lambda: ticked(app))
            await operate(app, failed.id)
        async with another_session(hostile) as session:
            for task in all_tasks(Settings(), app.registry.schedules, Metrics()):
                await run_once(task, session)
    findings = await run_checks(hostile, Settings())
    assert not [finding for finding in findings if decoys.ERROR in str(finding)]
    assert await migrations.migrate(hostile) == []
    assert all(migration.applied_at for migration in await migrations.status(hostile))
    await users.close()


async def operate(app: App, failed_id: int) -> None:
    """Do what operators do."""
    assert await app.retry(failed_id)
    await app.client.explain(failed_id)
    await app.history(failed_id)
    await app.client.children(failed_id)
    async with app.session() as session:
        selection = bulk.Selection(queue="default", states=[State.COMPLETED])
        preview = await bulk.preview(session, bulk.DELETE, selection)
        async for batch in bulk.run_operation(session, bulk.DELETE, selection, as_of=preview.as_of):
            assert batch.changed
        await queues.pause_queue(session, "limited", paused=True)
        assert await queues.list_queues(session, staleness=seconds(10))
        assert await schedules.list_schedules(session)
        assert await schedules.trigger_schedule(session, "tick")


async def has_leader(app: App) -> bool:
    async with app.session() as session:
        return await election.get_leader(session) is not None


async def is_in(app: App, job_id: int, state: State) -> bool:
    return (await app.get(job_id)).state is state


async def ticked(app: App) -> bool:
    async with app.session() as session:
        return any(schedule.last_enqueued_at for schedule in await schedules.list_schedules(session))
