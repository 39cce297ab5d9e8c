"""An app with short intervals, and the database with large tables."""

import pytest

from awa_py import App
from tests.databases import Server
from tests.support import QUICK


@pytest.fixture
def app(database_url: str) -> App:
    return App(database_url, settings=QUICK)


@pytest.fixture(scope="session")
def big_url(server: Server) -> str:
    """The address of the database with large tables. Tests may change a few rows there."""
    return server.large_database_url
