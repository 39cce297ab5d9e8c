"""Warnings of due jobs whose kind no live worker has a handler for."""

import asyncio
from datetime import timedelta

import pytest

from awa_py import State
from awa_py.db.database import Database
from awa_py.maintenance.task import Task, run_once
from awa_py.maintenance.unserved import Unserved
from awa_py.observability.metrics import Metrics
from awa_py.store.heartbeat import heartbeat_worker
from awa_py.store.session import Session
from tests.support import ago, another_session, count, insert, look, seconds
from tests.workers import worker_info

pytestmark = pytest.mark.integration  # F9

STALENESS = timedelta(seconds=90)


def unserved_task(metrics: Metrics | None = None) -> Unserved:
    return Unserved(staleness=STALENESS, metrics=metrics or Metrics(), grace=seconds(5))


async def test_unserved_job_is_reported_once_and_stays_available(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    (job_id,) = await insert(session, "ready", kind="lost", run_at=ago(10))
    task = unserved_task(metrics)
    assert (await task.run(session)).rows_changed == 1
    assert (await task.run(session)).rows_changed == 0
    job = await look(session, job_id)
    assert (job.state, job.attempt) == (State.AVAILABLE, 0)
    assert [error["error"] for error in job.errors] == ["no handler registered for kind: lost"]
    assert "1 jobs wait in queue default: no handler registered for kind: lost" in caplog.text
    assert metrics.registry.get_sample_value("awa_unserved_jobs_total", {"queue": "default"}) == 1


async def test_served_job_is_not_reported(session: Session) -> None:
    await heartbeat_worker(session, worker_info("default"))
    await insert(session, "ready", run_at=ago(10))
    assert (await unserved_task().run(session)).rows_changed == 0


async def test_workers_of_another_queue_or_kind_and_dead_workers_do_not_serve_a_job(session: Session) -> None:
    await heartbeat_worker(session, worker_info("other"))
    await heartbeat_worker(session, worker_info("default", kind="other"))
    dead = worker_info("default")
    await heartbeat_worker(session, dead)
    await session.connection.execute(
        "UPDATE awa.workers SET heartbeat_at = now() - interval '2 min' WHERE id = $1", dead.id
    )
    await insert(session, "ready", run_at=ago(10))
    assert (await unserved_task().run(session)).rows_changed == 1


async def test_job_is_not_reported_within_the_grace_period(session: Session) -> None:
    await insert(session, "ready", run_at=ago(1))
    assert (await unserved_task().run(session)).rows_changed == 0


async def test_unserved_jobs_are_found_window_by_window(session: Session) -> None:
    await insert(session, "ready", 1200, run_at=ago(10))
    run = Task(name="unserved", interval=seconds(1), run=unserved_task().run)
    assert (await run_once(run, session)).rows_changed == 1200


async def test_two_leaders_report_each_job_once(session: Session, database: Database) -> None:
    jobs = await insert(session, "ready", 300, run_at=ago(10))
    async with another_session(database) as other:
        await asyncio.gather(unserved_task().run(session), unserved_task().run(other))
    errors = [len((await look(session, job_id)).errors) for job_id in jobs[::50]]
    assert errors == [1] * 6
    assert await count(session.connection, "SELECT max(jsonb_array_length(errors)) FROM awa.ready") == 1
