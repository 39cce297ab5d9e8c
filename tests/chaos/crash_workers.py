"""Workers that end or freeze at a crash point, and others that go on."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import awa_py as awa
from tests.chaos.crash_point import EXIT_CODE
from tests.processes import Process, Processes

APP = "tests.chaos.crash_jobs:app"
PATIENCE = "60s"


class CrashWorkers:
    """The workers of a test: one that ends or freezes, and another one."""

    def __init__(self, awa_processes: Processes, log: Path) -> None:
        self._processes = awa_processes
        self._log = log

    def start(self, *arguments: str, **env: str) -> Process:
        """Start a worker."""
        env = {"AWA_GONE_AFTER": "1s", "AWA_CLEANUP_INTERVAL": "1h", **env}
        return self._processes.start("worker", APP, "-q", "default", *arguments, env=env)

    def start_exiting(self, point: str) -> Process:
        """Start a worker that ends at the point."""
        return self.start(AWA_TEST_POINT=point, AWA_TEST_ACTION="exit")

    def start_freezing(self, point: str) -> Process:
        """Start a worker that freezes at the point. It is no leader, so that its jobs are rescued sooner."""
        return self.start("--no-maintenance", AWA_TEST_POINT=point, AWA_TEST_ACTION="freeze")

    async def exit_at(self, point: str) -> None:
        """Run a worker until it has ended at the point."""
        await wait_exit(self.start_exiting(point))

    def start_cleanup(self, **env: str) -> Process:
        """Start a process that deletes what is past its retention."""
        return self._processes.start("maintenance", APP, "--once", "cleanup", env=env)

    @property
    def runs(self) -> dict[str, int]:
        """How often each step ran."""
        return dict(Counter(self._log.read_text().splitlines())) if self._log.exists() else {}


async def wait_exit(process: Process) -> None:
    """Wait until the process has ended at its point."""
    assert await asyncio.to_thread(process.wait, 60) == EXIT_CODE


async def completed(app: awa.App, job: awa.Job[Any]) -> awa.Job[Any]:
    """Return the job when it has completed."""
    await app.result(job.id, timeout=PATIENCE)
    return await app.get(job.id)


async def count(app: awa.App, rows: str) -> int:
    return int(await app.pool.fetchval(f"SELECT count(*) FROM {rows}"))


async def exists(app: awa.App, rows: str) -> bool:
    return await count(app, rows) > 0


async def records(app: awa.App, job: awa.Job[Any]) -> dict[str, int]:
    """Return the checkpoints of a completed job by name, with the lease of the attempt that wrote each."""
    rows = await app.pool.fetch(
        "SELECT record ->> 'name', (record ->> 'lease')::int "
        "FROM awa.completed, json_array_elements(checkpoints) AS record WHERE id = $1",
        job.id,
    )
    return dict(tuple(row) for row in rows)
