"""Processes with short intervals, for the tests that kill and freeze them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import FAST, Processes, processes


@pytest.fixture
def awa_processes(database_url: str, tmp_path: Path) -> Iterator[Processes]:
    with processes(tmp_path, database_url, FAST) as started:
        yield started
