from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import awa_py as awa
from tests.chaos import jobs
from tests.processes import FAST, Processes, processes


@pytest.fixture
def awa_processes(database_url: str, tmp_path: Path) -> Iterator[Processes]:
    with processes(tmp_path, database_url, FAST) as started:
        yield started


@pytest.fixture
async def client(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[awa.App]:
    """The chaos tests' app, open on the test's database."""
    monkeypatch.setenv("AWA_DATABASE_URL", database_url)
    async with jobs.app as app:
        yield app
