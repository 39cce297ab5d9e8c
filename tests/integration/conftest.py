"""An app with short intervals, for the tests that need no other."""

import pytest

from awa_py import App
from tests.support import QUICK


@pytest.fixture
def app(database_url: str) -> App:
    return App(database_url, settings=QUICK)
