"""awa with a real PgBouncer: sessionless work goes through it, sessions go past it, and a wrong URL is an error."""

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from awa_py import App, ConfigError, SessionNotKept, State
from awa_py.connections import Connection
from awa_py.db import migrations
from awa_py.db.database import SERVER_KEEPALIVE_SETTINGS, STABLE_PLAN_SETTINGS, Database
from awa_py.db.pooler import PooledConnection, PoolerMode, detect_pooler
from awa_py.db.schema import Schema
from awa_py.db.servers import Servers
from awa_py.enqueue.enqueuer import COPY_MIN_JOBS
from awa_py.store import election
from awa_py.store.election import Leader
from awa_py.store.session import Session
from tests.pgbouncer import PgBouncer, needs_pgbouncer, pgbouncer
from tests.support import PATIENCE_S, QUICK, another_session, count, eventually, states, working

pytestmark = [pytest.mark.integration, needs_pgbouncer]

# PgBouncer is often configured to ignore these parameters: the connection succeeds, and the settings are lost.
IGNORED_PARAMETERS = ["extra_float_digits", *SERVER_KEEPALIVE_SETTINGS, *STABLE_PLAN_SETTINGS]
IGNORING = {"ignore_startup_parameters": ", ".join(IGNORED_PARAMETERS)}


@pytest.fixture
def pooled(database_url: str) -> Iterator[PgBouncer]:
    with pgbouncer(database_url, size=3) as started:
        yield started


@pytest.fixture
def app(database_url: str, pooled: PgBouncer) -> App:
    return App(pooled.url, direct_url=database_url, settings=QUICK)


# Detection of a pooler.


async def test_direct_connection_is_detected(database_url: str) -> None:
    assert await detect_pooler(Servers(database_url)) is PoolerMode.NONE


@pytest.mark.parametrize("size", [1, 2, 20])
@pytest.mark.parametrize("round_robin", ["0", "1"])
async def test_pooler_in_transaction_mode_is_detected(database_url: str, size: int, round_robin: str) -> None:
    with pgbouncer(database_url, size=size, server_round_robin=round_robin) as pooled:
        assert await detect_pooler(Servers(pooled.url)) is PoolerMode.TRANSACTION
        async with asyncio.TaskGroup() as tasks:  # and while other clients use it
            busy = [tasks.create_task(_keep_busy(pooled.url)) for _ in range(size)]
            for _ in range(3):
                assert await detect_pooler(Servers(pooled.url)) is PoolerMode.TRANSACTION
            for task in busy:
                task.cancel()


async def test_pooler_in_session_mode_is_detected(database_url: str) -> None:
    with pgbouncer(database_url, mode="session", size=5) as pooled:
        assert await detect_pooler(Servers(pooled.url)) is PoolerMode.SESSION


async def _keep_busy(url: str) -> None:
    connection = await asyncpg.connect(url, connection_class=PooledConnection, statement_cache_size=0)
    try:
        while True:
            await connection.execute("SELECT pg_sleep(0.001)")
    finally:
        connection.terminate()


# A session through a pooler in transaction mode.


@pytest.mark.parametrize("settings", [{}, IGNORING], ids=["refused", "ignored"])
async def test_session_through_a_pooler_in_transaction_mode_is_refused(
    database_url: str, settings: dict[str, Any]
) -> None:
    with pgbouncer(database_url, **settings) as pooled:
        for app, message in (
            (App(pooled.url), "the database's URL leads through a pooler in transaction mode.*: set AWA_DIRECT_URL"),
            (App(database_url, direct_url=pooled.url), "AWA_DIRECT_URL leads through a pooler.* PostgreSQL itself"),
        ):
            with pytest.raises(SessionNotKept, match=message):
                await asyncio.wait_for(app.work(until_idle=True), PATIENCE_S)
            with pytest.raises(SessionNotKept, match=message):
                await asyncio.wait_for(app.candidate().run(), PATIENCE_S)
    async with another_session(Database(database_url, Schema())) as session:
        assert await election.get_leader(session) is None  # the candidate has never led
        assert await count(session.connection, "SELECT count(*) FROM awa.workers") == 0


async def test_urls_of_different_databases_are_refused(pooled: PgBouncer, fresh_database_url: str) -> None:
    await migrations.migrate(Database(fresh_database_url, Schema()))
    with pytest.raises(ConfigError, match="AWA_DIRECT_URL leads to another database than AWA_DATABASE_URL"):
        await App(pooled.url, direct_url=fresh_database_url).work(until_idle=True)


async def test_refused_session_leaves_no_settings_behind(database_url: str) -> None:
    with pgbouncer(database_url, size=1) as pooled:
        with pytest.raises(SessionNotKept):
            await Database(pooled.url, Schema()).connect("test", STABLE_PLAN_SETTINGS)
        async with App(pooled.url) as app, app.pool.acquire() as connection:
            assert await connection.fetchval("SHOW enable_seqscan") == "on"


async def test_worker_and_leader_work_through_a_pooler_in_session_mode(database_url: str) -> None:
    with pgbouncer(database_url, mode="session", size=40) as pooled:
        connection = await Database(pooled.url, Schema()).connect("test", STABLE_PLAN_SETTINGS)
        assert await connection.fetchval("SHOW enable_seqscan") == "off"
        assert await connection.fetchval("SHOW tcp_keepalives_idle") in ("5", "0")  # 0: a Unix socket
        await connection.close()
        app = App(pooled.url, settings=QUICK)
        _declare(app)
        async with app, working(app, maintenance=True):
            job = await app.enqueue("add", {"a": 1, "b": 2})
            assert await app.result(job.id, timeout="30s") == 3


# Work through the pooler.


async def test_every_client_operation_works_through_the_pooler(pooled: PgBouncer) -> None:
    """With the pooler's URL alone: awa detects the pooler."""
    app = App(pooled.url, settings=QUICK)
    async with app:
        first = await app.enqueue("work", {"n": 1})
        together = await asyncio.gather(*(app.enqueue("work", {"n": n}) for n in range(50)))
        assert len({job.id for job in [first, *together]}) == 51
        assert len(await app.enqueue_many([app.new("work")] * (2 * COPY_MIN_JOBS))) == 2 * COPY_MIN_JOBS
        held = await app.enqueue("work", unique=True, delay="1h")
        assert (await app.enqueue("work", unique=True)).id == held.id
        async with app.pool.acquire() as own:
            async with own.transaction():
                kept = await app.enqueue("work", {"kept": True}, connection=own)
                assert await own.fetchval("SELECT count(*) FROM awa.ready WHERE id = $1", kept.id) == 1
            gone = own.transaction()
            await gone.start()
            lost = await app.enqueue_many([app.new("work")] * COPY_MIN_JOBS, connection=own)
            await gone.rollback()
            assert await own.fetchval("SELECT count(*) FROM awa.jobs WHERE id = $1", lost[0].id) == 0
        assert (await app.get(kept.id)).args == {"kept": True}
        assert await app.explain(held.id)
        assert await app.cancel(held.id)
        assert (await app.get(held.id)).state is State.CANCELLED
        assert await app.retry(held.id)
        assert await app.delete(held.id)


async def test_clients_that_share_sessions_do_not_mix_up_their_statements(pooled: PgBouncer, session: Session) -> None:
    apps = [App(pooled.url) for _ in range(12)]

    async def produce(app: App, number: int) -> None:
        async with app:
            for n in range(15):
                job = await app.enqueue("work", {"app": number, "n": n})
                assert (await app.get(job.id)).args == {"app": number, "n": n}
                async with app.pool.acquire() as own:  # other statements, with values of the same types
                    assert await own.fetchval("SELECT $1::int + $2::int", number, n) == number + n
                    assert await own.fetchval("SELECT $1::int * $2::int", number, n) == number * n

    await asyncio.gather(*(produce(app, number) for number, app in enumerate(apps)))
    assert (await states(session))["available"] == 12 * 15
    assert await _sessions(session.connection) <= 3


async def test_settings_of_other_clients_are_not_reset(database_url: str) -> None:
    with pgbouncer(database_url, size=1) as pooled:
        careless = await asyncpg.connect(pooled.url, statement_cache_size=0)
        await careless.execute("SET work_mem = '5MB'")
        async with App(pooled.url) as app, app.pool.acquire() as connection:
            assert await connection.fetchval("SHOW work_mem") == "5MB"
        assert await careless.fetchval("SHOW work_mem") == "5MB"
        await careless.close()


async def test_migrations_work_through_the_pooler(fresh_database_url: str) -> None:
    with pgbouncer(fresh_database_url, size=2) as pooled:
        database = Database(pooled.url, Schema())
        await asyncio.gather(*(migrations.migrate(database) for _ in range(4)))
        assert all(step.applied_at for step in await migrations.status(database))


async def test_worker_with_a_direct_url_runs_jobs_that_were_enqueued_through_the_pooler(
    app: App, session: Session
) -> None:
    _declare(app)

    @app.job
    async def hand_on(n: int) -> None:
        await app.enqueue("add", {"a": n, "b": n})

    async with app, working(app, maintenance=True) as worker:
        assert worker.listening
        await eventually(lambda: election.get_leader(session))
        await app.enqueue_many([app.new("hand_on", {"n": n}) for n in range(COPY_MIN_JOBS)])
        later = await app.enqueue("add", {"a": 1, "b": 2}, delay="200ms")
        assert await app.result(later.id, timeout="30s") == 3
        await eventually(lambda: _completed(session, 2 * COPY_MIN_JOBS + 1))
        names = await session.connection.fetch(
            "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
        )
        assert {"awa leader", "awa listener", "awa claims"} <= {row["application_name"] for row in names}


async def test_no_job_is_lost_when_pgbouncer_is_killed_under_load(
    app: App, pooled: PgBouncer, session: Session
) -> None:
    _declare(app)
    acknowledged: list[int] = []
    stop = asyncio.Event()

    async def produce(n: int) -> None:
        while not stop.is_set():
            try:
                acknowledged.append((await app.enqueue("add", {"a": n, "b": 1})).id)
                acknowledged.extend(
                    job.id for job in await app.enqueue_many([app.new("add", {"a": n, "b": 1})] * COPY_MIN_JOBS)
                )
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(0.05)

    async with app, working(app, maintenance=True):
        leader = await eventually(lambda: _elected(session))
        producers = [asyncio.create_task(produce(n)) for n in range(4)]
        for _ in range(2):
            await _grows(acknowledged)
            pooled.kill()
            await asyncio.sleep(0.3)
            pooled.start()
        await _grows(acknowledged)
        stop.set()
        await asyncio.gather(*producers)
        await eventually(lambda: _completed(session, len(acknowledged)), timeout_s=60)
        assert await election.get_leader(session) == leader  # sessions that go past the pooler are not affected
    done = await session.connection.fetchval("SELECT count(*) FROM awa.completed WHERE id = ANY ($1)", acknowledged)
    assert done == len(acknowledged) == len(set(acknowledged))


async def _elected(session: Session) -> Leader | None:
    leader = await election.get_leader(session)
    return leader if leader and leader.elected_at else None


async def _grows(ids: list[int]) -> None:
    before = len(ids)
    await eventually(lambda: len(ids) > before + 500)


def _declare(app: App) -> None:
    @app.job
    async def add(a: int, b: int) -> int:
        return a + b


async def _completed(session: Session, least: int) -> bool:
    found = await states(session)
    return found.get("completed", 0) >= least and not {"available", "running", "scheduled"} & found.keys()


async def _sessions(connection: Connection) -> int:
    return await count(
        connection,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'awa client'",
    )
