"""An app with short intervals, and the database with large tables."""

import pytest

from awa_py import App
from tests.databases import Server
from tests.durable import FailingOnce, Trace
from tests.support import QUICK


@pytest.fixture
def app(database_url: str) -> App:
    return App(database_url, settings=QUICK)


@pytest.fixture
def ran() -> Trace:
    """What the steps of a durable job did."""
    return Trace()


@pytest.fixture
def fail_once() -> FailingOnce:
    return FailingOnce()


@pytest.fixture(scope="session")
def big_url(server: Server) -> str:
    """The address of the database with large tables. Tests may change a few rows there."""
    return server.large_database_url
