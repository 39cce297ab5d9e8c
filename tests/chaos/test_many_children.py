"""Many children of one job, over several processes."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import awa_py as awa
from tests.chaos import child_jobs
from tests.processes import Processes

pytestmark = pytest.mark.chaos  # D5

CHILDREN = int(os.environ.get("AWA_TEST_CHILDREN", "1000"))
PROCESSES = 4


@pytest.fixture
async def app(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[awa.App]:
    monkeypatch.setenv("AWA_DATABASE_URL", database_url)
    async with child_jobs.app as app:
        yield app


@pytest.mark.parametrize("pinned", [False, True], ids=["quiet", "beside-a-pinned-snapshot"])
async def test_parent_of_many_children_runs_again_once(
    app: awa.App, awa_processes: Processes, tmp_path: Path, pinned: bool
) -> None:
    job = await child_jobs.parent.enqueue(CHILDREN)
    async with app.pool.acquire() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        if pinned:
            await connection.fetchval("SELECT count(*) FROM awa.jobs")
        began_at = time.monotonic()
        for _ in range(PROCESSES):
            awa_processes.start("worker", "tests.chaos.child_jobs:app", "-q", "default")
        assert await app.result(job.id, timeout="300s") == sum(n * n for n in range(CHILDREN))
        print(f"{CHILDREN} children, pinned: {pinned}: {time.monotonic() - began_at:.1f} s with the start of processes")
    assert (tmp_path / "runs.log").read_text().splitlines() == ["attempt 1", "attempt 2"]
    workers = await app.pool.fetch(
        "SELECT worker_id, count(*), max(lease) AS lease FROM awa.completed WHERE parent_id = $1 GROUP BY 1", job.id
    )
    print({str(row["worker_id"]): row["count"] for row in workers})
    assert sum(row["count"] for row in workers) == CHILDREN
    assert {row["lease"] for row in workers} == {1}
