"""One PostgreSQL for all tests, and an empty database for each."""

import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from awa_py import App
from awa_py.connections import Connection
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.embedded import EmbeddedPostgres
from awa_py.store.session import Session
from tests.chaos import jobs
from tests.databases import Server, SharedDatabase, make_logins_cheap

SERVER = pytest.StashKey[EmbeddedPostgres]()
TEMPLATE = pytest.StashKey[str]()
# Without autovacuum: its transactions and pages would be counted with a test's own.
SETTINGS = {
    "fsync": "off",
    "max_connections": "400",
    "shared_buffers": "256MB",
    "max_wal_size": "256MB",
    "autovacuum": "off",
}
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 3 * 1024**3  # a run uses less than one

# Variables of the caller that would change what the tests see. AWA_TEST_* and AWA_PG_BIN choose what to test.
FOREIGN = re.compile(
    r"(?!AWA_TEST_|AWA_PG_BIN$)(AWA_|PG|OTEL_|TTY_|JUPYTER_|_TYPER_)"
    r"|(DATABASE_URL|CI|GITHUB_ACTIONS|NO_COLOR|FORCE_COLOR|PY_COLORS|COLORTERM|TERMINAL_WIDTH|CREDENTIALS_DIRECTORY"
    r"|NOTIFY_SOCKET|WATCHDOG_USEC|WATCHDOG_PID|INVOCATION_ID|JOURNAL_STREAM)$"
    r"|PYTHON(ASYNCIODEBUG|DEVMODE|IOENCODING|OPTIMIZE|UNBUFFERED|UTF8|WARNINGS)$"
)
# Without COLUMNS, rich would measure the terminal that standard error may still be connected to.
TERMINAL = {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}


def pytest_configure(config: pytest.Config) -> None:
    """Start a server in the first process; xdist's workers inherit its address. AWA_TEST_URL names another one."""
    if not config.getoption("numprocesses", None):  # this process runs tests; otherwise it only shows the results
        os.environ.update(TERMINAL)
        for name in filter(FOREIGN.match, list(os.environ)):
            del os.environ[name]
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Plain `pytest` leaves the chaos tests out; naming a file or a marker includes them.
    if not config.option.markexpr and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.option.markexpr = "not chaos"
    # Without bytecode in files, half of the start of each process would be the compiler.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    # The background of a shell ignores Ctrl-C, nohup ignores SIGHUP, and what the tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "AWA_TEST_URL" not in os.environ and not config.option.collectonly:
        server = EmbeddedPostgres(settings=SETTINGS)
        with in_memory():
            server.start()
        config.stash[SERVER] = server
        os.environ["AWA_TEST_URL"] = server.url
        make_logins_cheap(server.url)
    if "AWA_TEST_TEMPLATE" not in os.environ:
        os.environ["AWA_TEST_TEMPLATE"] = config.stash[TEMPLATE] = f"awa_template_{uuid4().hex[:12]}"


@contextmanager
def in_memory() -> Iterator[None]:
    """Create temporary directories in memory, if there is enough: each database has hundreds of small files."""
    before = tempfile.tempdir
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES:
        tempfile.tempdir = str(MEMORY)
    yield
    tempfile.tempdir = before


def pytest_unconfigure(config: pytest.Config) -> None:
    if TEMPLATE in config.stash:
        del os.environ["AWA_TEST_TEMPLATE"]
    if SERVER in config.stash:
        config.stash[SERVER].stop()
        del os.environ["AWA_TEST_URL"]
    elif TEMPLATE in config.stash and not config.option.collectonly:
        Server(os.environ["AWA_TEST_URL"], config.stash[TEMPLATE]).drop_shared()


@pytest.fixture(scope="session")
def server() -> Server:
    return Server(os.environ["AWA_TEST_URL"], os.environ["AWA_TEST_TEMPLATE"])


@pytest.fixture(scope="session")
def server_url(server: Server) -> str:
    return server.url


@pytest.fixture(scope="session")
def shared_database(server: Server) -> Iterator[SharedDatabase]:
    shared = SharedDatabase(server)
    yield shared
    shared.close()


@pytest.fixture
def database_url(shared_database: SharedDatabase) -> str:
    """The address of a migrated database without jobs. The test may change it as it likes."""
    return shared_database.empty()


@pytest.fixture
def fresh_database_url(server: Server) -> Iterator[str]:
    """The address of an empty database: nothing was migrated there."""
    with server.database() as url:
        yield url


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


@pytest.fixture
async def client(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    """The app of the processes that tests start, open on the test's database."""
    monkeypatch.setenv("AWA_DATABASE_URL", database_url)
    async with jobs.app as app:
        yield app
