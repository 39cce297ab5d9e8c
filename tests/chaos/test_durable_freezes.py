"""A worker is frozen in a durable job for longer than its lease. What it does afterwards changes nothing."""

import asyncio
import signal
from typing import Any

import pytest

import awa_py as awa
from awa_py import State
from tests.chaos import crash_jobs
from tests.chaos.crash_workers import CrashWorkers, completed, count
from tests.processes import Process, eventually, is_state

pytestmark = pytest.mark.chaos  # Y3

TABLES = ("jobs", "checkpoints", "signals")


async def contents(app: awa.App) -> dict[str, Any]:
    """Return all rows of durable jobs and of the application."""
    tables = [*(f"awa.{table}" for table in TABLES), "public.booked"]
    return {
        table: await app.pool.fetchval(f"SELECT json_agg(t ORDER BY t::text)::text FROM {table} AS t")
        for table in tables
    }


def is_frozen(process: Process) -> bool:
    with open(f"/proc/{process.pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


async def continue_until_lost(frozen: Process) -> None:
    """Let the worker go on until it has noticed that it lost its job, and stop it."""
    frozen.send(signal.SIGCONT)
    await eventually("it found that it lost the job", lambda: "lost" in frozen.output)
    frozen.send(signal.SIGTERM)
    assert await asyncio.to_thread(frozen.wait) == 0


@pytest.mark.parametrize(
    ("kind", "point", "result", "children"),
    [
        (crash_jobs.transact, "before record_transaction", "done", 0),
        (crash_jobs.transact, "after record_transaction", "done", 0),
        (crash_jobs.complete_in_transaction, "before complete_in_transaction", "done", 0),
        (crash_jobs.complete_in_transaction, "after complete_in_transaction", "done", 0),
        (crash_jobs.parent, "before record_checkpoints", 42, 1),
        (crash_jobs.parent, "after lock_parents", 42, 1),
    ],
)
async def test_worker_frozen_in_a_transaction_commits_nothing_after_its_lease(
    crash_app: awa.App, crash_workers: CrashWorkers, kind: Any, point: str, result: object, children: int
) -> None:
    """After the record, the transaction has locked the job: PostgreSQL rolls it back while the worker is frozen."""
    job = await kind.enqueue()
    frozen = crash_workers.start_freezing(point)
    await eventually("it is frozen", lambda: is_frozen(frozen))
    crash_workers.start()
    job = await completed(crash_app, job)
    assert (job.result, len(job.errors)) == (result, 1)
    before = await contents(crash_app)
    await continue_until_lost(frozen)
    assert await contents(crash_app) == before
    assert await count(crash_app, "awa.jobs WHERE parent_id IS NOT NULL") == children
    assert await count(crash_app, "public.booked") == 1 - children


async def test_worker_frozen_before_it_suspends_a_job_does_not_suspend_it_after_its_lease(
    crash_app: awa.App, crash_workers: CrashWorkers
) -> None:
    job = await crash_jobs.take_signals.enqueue(1)
    frozen = crash_workers.start_freezing("before suspend_jobs")
    await eventually("it is frozen", lambda: is_frozen(frozen))
    crash_workers.start()
    await eventually("the job waits", lambda: is_state(crash_app, job.id, State.WAITING))
    before = await contents(crash_app)
    await continue_until_lost(frozen)
    assert await contents(crash_app) == before
    await crash_app.signal(job.id, "go", "a")
    job = await completed(crash_app, job)
    assert (job.result, job.lease, job.attempt, len(job.errors)) == (["a"], 3, 1, 1)
