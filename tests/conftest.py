"""One PostgreSQL for a test session, a database for each test."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest

from awa_py import App
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.db.types import Connection
from awa_py.embedded import EmbeddedPostgres
from awa_py.store.session import Session
from tests.chaos import jobs

SERVER = pytest.StashKey[EmbeddedPostgres]()
# Without autovacuum: its transactions and pages would be counted with a test's own.
SETTINGS = {"fsync": "off", "max_connections": "400", "shared_buffers": "256MB", "autovacuum": "off"}


# Variables of the caller that would change what the tests see. AWA_TEST_* and AWA_PG_BIN choose what to test.
FOREIGN = re.compile(
    r"(?!AWA_TEST_|AWA_PG_BIN$)(AWA_|PG|OTEL_|TTY_|JUPYTER_|_TYPER_)"
    r"|(DATABASE_URL|CI|GITHUB_ACTIONS|NO_COLOR|FORCE_COLOR|PY_COLORS|COLORTERM|TERMINAL_WIDTH|CREDENTIALS_DIRECTORY"
    r"|NOTIFY_SOCKET|WATCHDOG_USEC|WATCHDOG_PID|INVOCATION_ID|JOURNAL_STREAM)$"
)
# Without COLUMNS, rich would measure the terminal that standard error may still be connected to.
TERMINAL = {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}


def pytest_configure(config: pytest.Config) -> None:
    """Start a server in the first process; xdist's workers inherit its address. AWA_TEST_URL names another one."""
    if not config.getoption("numprocesses", None):  # this process runs tests; otherwise it only shows the results
        os.environ.update(TERMINAL)
        for name in filter(FOREIGN.match, list(os.environ)):
            del os.environ[name]
    # Where the tests run in the background of a shell, Ctrl-C is ignored, and so it would be by all that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "AWA_TEST_URL" not in os.environ and not config.option.collectonly:
        server = EmbeddedPostgres(settings=SETTINGS)
        server.start()
        config.stash[SERVER] = server
        os.environ["AWA_TEST_URL"] = server.url


def pytest_unconfigure(config: pytest.Config) -> None:
    if SERVER in config.stash:
        config.stash[SERVER].stop()
        del os.environ["AWA_TEST_URL"]


@pytest.fixture(scope="session")
def server_url() -> str:
    return os.environ["AWA_TEST_URL"]


@pytest.fixture(scope="session")
def template(server_url: str) -> Iterator[str]:
    """The name of a migrated database, to be copied for each test."""
    name = f"awa_template_{uuid4().hex[:12]}"
    asyncio.run(_administer(server_url, f"CREATE DATABASE {name}"))
    asyncio.run(_migrate(_with_database(server_url, name)))
    yield name
    asyncio.run(_administer(server_url, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def database_url(server_url: str, template: str) -> Iterator[str]:
    """A migrated database of the test's own."""
    yield from _scratch(server_url, f"TEMPLATE {template}")


@pytest.fixture
def fresh_database_url(server_url: str) -> Iterator[str]:
    """An empty database of the test's own: nothing was migrated there."""
    yield from _scratch(server_url, "")


@pytest.fixture
def database(database_url: str) -> Database:
    return Database(database_url, Schema())


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[Connection]:
    connection = await database.connect("test")
    yield connection
    await connection.close()


@pytest.fixture
def session(connection: Connection, database: Database) -> Session:
    return Session(connection, database.schema)


def _scratch(server_url: str, how: str) -> Iterator[str]:
    name = f"awa_test_{uuid4().hex[:12]}"
    asyncio.run(_administer(server_url, f"CREATE DATABASE {name} {how}"))
    yield _with_database(server_url, name)
    asyncio.run(_administer(server_url, f"DROP DATABASE {name} WITH (FORCE)"))


def _with_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


async def _administer(url: str, command: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(command)
    finally:
        await connection.close()


async def _migrate(url: str) -> None:
    await migrations.migrate(Database(url, Schema()))


@pytest.fixture
async def client(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    """The app of the processes that tests start, open on the test's database."""
    monkeypatch.setenv("AWA_DATABASE_URL", database_url)
    async with jobs.app as app:
        yield app
