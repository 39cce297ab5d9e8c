"""Processes with short intervals, for the tests that kill and freeze them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import awa_py as awa
from tests.chaos import crash_jobs
from tests.chaos.crash_workers import CrashWorkers
from tests.processes import FAST, Processes, processes


@pytest.fixture
def awa_processes(database_url: str, tmp_path: Path) -> Iterator[Processes]:
    with processes(tmp_path, database_url, FAST) as started:
        yield started


@pytest.fixture
async def crash_app(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[awa.App]:
    """The app whose jobs pass every crash point, open on the test's database."""
    monkeypatch.setenv("AWA_DATABASE_URL", database_url)
    async with crash_jobs.app as app:
        await app.pool.execute("CREATE TABLE public.booked (number int, value int)")
        yield app


@pytest.fixture
def crash_workers(awa_processes: Processes, tmp_path: Path) -> CrashWorkers:
    return CrashWorkers(awa_processes, tmp_path / "runs.log")
