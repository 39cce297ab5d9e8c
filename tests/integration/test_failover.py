"""A standby is promoted, and the former primary comes back: no session is opened there."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import asyncpg
import psutil
import pytest

from awa_py import App, StaleServer
from awa_py.connections import Pool
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.errors import CONNECTION_LOST, CONNECTION_REFUSED
from awa_py.db.schema import Schema
from awa_py.db.servers import Servers
from awa_py.doctor import context
from awa_py.embedded import EmbeddedPostgres
from tests.standby import Standby, both, standby_of
from tests.support import PATIENCE_S, QUICK, eventually, working

pytestmark = pytest.mark.integration

QUERY = "target_session_attrs=primary"
UNSAFE = {"fsync": "off", "full_page_writes": "off"}


@pytest.fixture
def primary() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings=UNSAFE) as server:
        yield server


@pytest.fixture
async def standby(primary: EmbeddedPostgres) -> AsyncIterator[Standby]:
    await migrations.migrate(Database(primary.url, Schema()))
    with standby_of(primary.url) as started:
        await started.start()
        yield started


@contextmanager
def cut_off(server: EmbeddedPostgres) -> Iterator[None]:
    """End all sessions and freeze the main process: connections are accepted by the kernel, and never answered.

    When it continues, it recovers from the crash and is a primary again.
    """
    main = psutil.Process(server.server_pid)
    main.suspend()
    try:
        for child in main.children():
            child.kill()
        yield
    finally:
        main.resume()


async def port_of(database: Database) -> int:
    connection = await database.connect("test")
    try:
        return int(await connection.fetchval("SHOW port"))
    finally:
        await connection.close()


async def test_former_primary_is_refused(primary: EmbeddedPostgres, standby: Standby) -> None:
    url = both(primary.url, standby.url, QUERY)
    database = Database(url, Schema())
    assert await port_of(database) != standby.port
    await standby.promote()  # the primary does not notice, as after a partition
    # A process that starts now has seen nothing: it asks all hosts, in whatever order they are named.
    for fresh in (url, both(standby.url, primary.url, QUERY), both(primary.url, standby.url)):
        assert await port_of(Database(fresh, Schema())) == standby.port
    # The server that was used before still answers, and is unchanged. A restart is reason enough to ask all.
    assert await port_of(database) != standby.port
    await asyncio.to_thread(primary.restart)
    assert await port_of(database) == standby.port

    standby.stop()
    refused = "former primary: it is on timeline 1, and a standby was promoted to timeline 2"
    for opening in (
        database.connect("test"),
        database.connect_sessionless("test"),
        context.connect(database),
        fetch_one(database.pool(max_size=1, is_own=True)),
        # A floating address, or a proxy, led to the new primary before, and leads to the former one now.
        Servers(primary.url, database.servers._timelines).connect("test"),
    ):
        with pytest.raises(StaleServer, match=refused):
            await opening
    await standby.start()
    assert await port_of(database) == standby.port


async def test_worker_moves_to_the_standby_of_a_silent_primary(primary: EmbeddedPostgres, standby: Standby) -> None:
    app = App(both(primary.url, standby.url, QUERY), settings=QUICK)
    ran_on: list[int] = []

    @app.job
    async def note() -> None:
        ran_on.append(int(await app.pool.fetchval("SHOW port")))

    async def enqueue() -> bool:
        try:
            await note.options(queue="later").enqueue()
        except (*CONNECTION_LOST, *CONNECTION_REFUSED):
            return False
        return True

    async with app, working(app, ("default", "later"), maintenance=True):
        await app.result((await note.enqueue()).id, timeout=PATIENCE_S)
        with cut_off(primary):
            await standby.promote()
            await eventually(enqueue)
            await eventually(lambda: standby.port in ran_on)
        await eventually(lambda: accepts_writes(primary))
        ran_on.clear()
        await app.result(
            (await note.options(delay="100ms").enqueue()).id, timeout=PATIENCE_S
        )  # the leader is there too
        await app.pool.expire_connections()
        await app.result((await note.enqueue()).id, timeout=PATIENCE_S)
    assert ran_on == [standby.port] * 2
    former = await asyncpg.connect(primary.url)
    try:
        assert await former.fetchval("SELECT count(*) FROM awa.completed") <= 1
        assert await former.fetchval("SELECT count(*) FROM pg_stat_activity WHERE application_name ~ '^awa '") == 0
    finally:
        await former.close()


async def test_sessions_on_a_former_primary_end_when_the_promotion_is_seen(
    primary: EmbeddedPostgres, standby: Standby
) -> None:
    """The primary accepts no new connections, and its sessions go on. Only some connections would move."""
    app = App(both(primary.url, standby.url, QUERY), settings=QUICK)

    @app.job
    async def work() -> None: ...

    async with app, working(app, maintenance=True):
        await app.result((await work.enqueue()).id, timeout=PATIENCE_S)
        main = psutil.Process(primary.server_pid)
        main.suspend()
        try:
            await standby.promote()
            await app.pool.expire_connections()
            await app.pool.fetchval("SELECT 1")
            job = await work.options(delay="100ms").enqueue()  # the leader has to move too
            await app.result(job.id, timeout=PATIENCE_S)
        finally:
            main.resume()
    async with App(standby.url) as client:
        assert await client.pool.fetchval("SELECT count(*) FROM awa.completed") == 2


async def fetch_one(pool: Pool) -> int:
    async with pool:
        return int(await pool.fetchval("SELECT 1"))


async def accepts_writes(server: EmbeddedPostgres) -> bool:
    try:
        connection = await asyncpg.connect(server.url)
    except (OSError, asyncpg.PostgresError):
        return False
    try:
        return not await connection.fetchval("SELECT pg_is_in_recovery()")
    finally:
        await connection.close()
