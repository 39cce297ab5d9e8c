"""Connections to one of several hosts: silent ones, the one that was used last, and all the ways to name them."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from awa_py import App, DatabaseUnavailable
from awa_py.db import migrations, servers
from awa_py.db.database import Database
from awa_py.db.pooler import PoolerMode, detect_pooler
from awa_py.db.schema import Schema
from awa_py.db.servers import Servers
from awa_py.doctor import context
from tests.chaos.proxy import fault_proxy
from tests.support import PATIENCE_S, QUICK, working

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "OTHER_HOSTS_S", 0.3)


@contextmanager
def silent_host(*, full: bool) -> Iterator[int]:
    """Listen on a port and accept nothing. If `full`, even the queue of new connections is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0 if full else 10)
        waiting = []
        try:
            while full:
                waiting.append(socket.socket())
                waiting[-1].settimeout(0.2)
                try:
                    waiting[-1].connect(listening.getsockname())
                except TimeoutError:
                    break
            yield listening.getsockname()[1]
        finally:
            for each in waiting:
                each.close()


@asynccontextmanager
async def counting_host() -> AsyncIterator[tuple[int, list[int]]]:
    """Listen on a port and close each connection. Yield the port and a list that grows with each connection."""
    heard: list[int] = []

    def count(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(1)
        writer.close()

    server = await asyncio.start_server(count, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heard


def with_first_host(url: str, port: int, query: str = "target_session_attrs=primary") -> str:
    """Return the URL with another host before its own."""
    account, _, host = urlsplit(url).netloc.rpartition("@")
    return urlunsplit(urlsplit(url)._replace(netloc=f"{account}@127.0.0.1:{port},{host}", query=query))


async def open_session(database: Database) -> None:
    await (await database.connect("test")).close()


async def open_sessionless(database: Database) -> None:
    await (await database.connect_sessionless("test")).close()


async def use_pool(database: Database) -> None:
    async with App(database.url) as app:
        assert await app.pool.fetchval("SELECT 1") == 1


async def probe_pooler(database: Database) -> None:
    assert await detect_pooler(database.servers) is PoolerMode.NONE


async def open_doctor(database: Database) -> None:
    await (await context.connect(database)).close()


async def migrate(database: Database) -> None:
    assert await migrations.migrate(database) == []


async def run_a_worker_and_the_leader(database: Database) -> None:
    app = App(database.url, settings=QUICK)

    @app.job
    async def quick() -> None: ...

    async with app, working(app, maintenance=True):
        job = await quick.options(delay="100ms").enqueue()  # the leader promotes it
        await app.result(job.id, timeout=PATIENCE_S)


USES = (open_session, open_sessionless, use_pool, probe_pooler, open_doctor, migrate, run_a_worker_and_the_leader)


@pytest.mark.parametrize("full", [False, True], ids=["does-not-answer", "drops-packets"])
@pytest.mark.parametrize("use", USES, ids=[use.__name__ for use in USES])
async def test_silent_host_does_not_hide_the_next_one(
    database_url: str, use: Callable[[Database], Awaitable[None]], full: bool
) -> None:
    with silent_host(full=full) as port:
        async with asyncio.timeout(PATIENCE_S):
            await use(Database(with_first_host(database_url, port), Schema()))


async def test_silent_host_delays_a_connection_only_for_a_moment(database_url: str) -> None:
    with silent_host(full=False) as port:
        async with asyncio.timeout(servers.CONNECT_TIMEOUT_S / 2):
            await open_session(Database(with_first_host(database_url, port), Schema()))


async def test_host_that_was_used_last_is_asked_first_and_alone(database_url: str) -> None:
    async with counting_host() as (port, heard):
        database = Database(with_first_host(database_url, port), Schema())
        await open_session(database)
        assert len(heard) == 1
        await open_session(database)
        await open_sessionless(database)
        assert len(heard) == 1
        await open_session(Database(database.url, Schema()))  # which knows nothing of the other one
        assert len(heard) == 2


async def test_host_that_was_used_last_and_is_silent_hides_the_others_only_for_a_moment(database_url: str) -> None:
    async with fault_proxy(database_url) as (_, proxy):
        database = Database(with_first_host(database_url, proxy.port), Schema())
        await open_session(database)
        proxy.flowing.clear()
        async with asyncio.timeout(servers.CONNECT_TIMEOUT_S / 2):
            await open_session(database)


async def test_app_worker_and_leader_share_what_they_know_of_the_hosts(database_url: str) -> None:
    async with counting_host() as (port, heard):
        app = App(with_first_host(database_url, port), settings=QUICK)
        async with app:
            await app.pool.fetchval("SELECT 1")
            async with working(app, maintenance=True):
                assert len(heard) == 1


async def test_error_names_each_host_and_its_reason(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "CONNECT_TIMEOUT_S", 0.5)
    refusing = urlsplit(database_url)._replace(netloc="awa:x@127.0.0.1:1").geturl()
    with silent_host(full=False) as port, pytest.raises(DatabaseUnavailable) as raised:
        await Database(with_first_host(refusing, port), Schema()).connect_sessionless("test")
    assert f"(127.0.0.1:{port}: no answer within 0.5 s; 127.0.0.1:1: " in str(raised.value)


async def test_missing_database_on_all_hosts_is_a_refusal(database_url: str) -> None:
    port = urlsplit(database_url).port or 5432
    url = with_first_host(urlsplit(database_url)._replace(path="/no_such_database").geturl(), port)
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await Servers(url.replace("127.0.0.1", "localhost", 1)).connect("test")


@pytest.mark.parametrize(
    ("url", "variables", "expected"),
    [
        # an IPv6 address comes first: the URL parser of newer Python versions refuses it elsewhere
        ("postgresql://a:b@[::1]:3,h1:1,h2:2/d", {}, [("::1", 3), ("h1", 1), ("h2", 2)]),
        ("postgresql://a@h1,h2/d?port=7", {}, [("h1", 5432), ("h2", 5432)]),
        ("postgresql:///d?host=h1,h2&port=1,2", {}, [("h1", 1), ("h2", 2)]),
        ("postgresql:///d?host=/run/x&port=7", {}, ["/run/x/.s.PGSQL.7"]),
        ("postgresql://a@%2Frun%2Fx/d", {"PGPORT": "8"}, ["/run/x/.s.PGSQL.8"]),
        ("postgresql:///d", {"PGHOST": "h1,/run/x", "PGPORT": "1,2"}, [("h1", 1), "/run/x/.s.PGSQL.2"]),
        ("postgresql://h1,h1/d", {}, [("h1", 5432)]),
    ],
)
def test_hosts_are_found_wherever_asyncpg_looks_for_them(
    url: str, variables: dict[str, str], expected: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGPORT", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert servers._parse(url)[0] == expected


async def test_service_file_and_variables_name_the_hosts(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = urlsplit(database_url)
    account = f"user={parts.username}&password={parts.password}"
    service = tmp_path / "services"
    service.write_text(f"[jobs]\nhost=127.0.0.1,{parts.hostname}\nport=1,{parts.port}\n")
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    await open_session(Database(f"postgresql:///{parts.path[1:]}?service=jobs&{account}", Schema()))
    monkeypatch.setenv("PGHOST", f"127.0.0.1,{parts.hostname}")
    monkeypatch.setenv("PGPORT", f"1,{parts.port}")
    await open_session(Database(f"postgresql:///{parts.path[1:]}?{account}", Schema()))


async def test_hosts_that_are_no_standby_are_left_if_one_is_asked_for(database_url: str) -> None:
    port = urlsplit(database_url).port or 5432
    url = with_first_host(database_url, port, "target_session_attrs=standby").replace("127.0.0.1", "localhost", 1)
    with pytest.raises(DatabaseUnavailable, match="None of the hosts match the target attribute requirement"):
        await Database(url, Schema()).connect_sessionless("test")
    await open_session(Database(url.replace("standby", "prefer-standby"), Schema()))


async def test_login_that_may_not_ask_for_the_timeline_can_connect(fresh_database_url: str) -> None:
    admin = await asyncpg.connect(fresh_database_url)
    await admin.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    await admin.execute("CREATE ROLE awa_test_unprivileged LOGIN PASSWORD 'x'")
    try:
        parts = urlsplit(fresh_database_url)
        url = parts._replace(netloc=f"awa_test_unprivileged:x@{parts.hostname}:{parts.port}").geturl()
        await open_session(Database(url, Schema()))
        async with counting_host() as (port, _):
            await open_session(Database(with_first_host(url, port), Schema()))
    finally:
        await admin.execute("DROP ROLE awa_test_unprivileged")
        await admin.close()
