"""Rows that awa cannot work with, because they are older than a constraint or it was dropped: each fails alone."""

import asyncio
import json

import pytest
from awa_cli.main import app as command
from typer.testing import CliRunner

from awa_py import App, Context, Settings, State
from awa_py.doctor.runner import run_checks
from awa_py.invalid_jobs import InvalidJobs
from awa_py.observability.http.health import Health
from awa_py.observability.metrics import Metrics
from awa_py.store.session import Session
from tests.support import (
    QUICK,
    drain,
    eventually,
    insert,
    insert_completed,
    insert_running,
    look,
    sample,
    working,
)

pytestmark = pytest.mark.integration

# A value of each kind that stopped a worker, a queue or the leader.
INVALID = {
    "infinite timeout": "timeout = 'infinity'",
    "timeout that overflows": "timeout = '3000000 years'",
    "timeout that overflows and compares as small": "timeout = '1000000 years -360000000 days'",
    "time before Christ": "run_at = '4000-01-01 BC'",
    "infinite past": "run_at = '-infinity'",
    "creation after the year 9999": "created_at = '20000-01-01'",
    "creation that never was": "created_at = 'infinity'",
    "infinite deadline": "expires_at = 'infinity'",
    "deadline after the year 9999": "expires_at = '200000-01-01'",
    "largest lease": "lease = 2147483647",
    "largest attempt": "attempt = 32767, max_attempts = 32767",
    "attempt above the maximum": "attempt = 30",
    "errors that are an object": "errors = '{}'",
    "errors that are a number": "errors = '1'",
    "arguments that are a list": "args = '[1]'",
    "metadata that is a text": "metadata = '\"x\"'",
    "tags with a NULL": "tags = ARRAY[NULL]",
    "tags of two dimensions": "tags = '{{a,b},{c,d}}'",
    "kind with a line break": "kind = E'a\\nb'",
    "half of a concurrency key": "concurrency_key = 'k'",
}
every_value = pytest.mark.parametrize("values", INVALID.values(), ids=INVALID)


@pytest.fixture
async def unchecked(session: Session) -> Session:
    """A session on a database whose job tables have lost their constraints."""
    connection = session.connection
    for row in await connection.fetch(
        "SELECT conrelid::regclass::text AS name, conname FROM pg_constraint WHERE contype = 'c' "
        "AND conrelid IN ('awa.ready'::regclass, 'awa.scheduled'::regclass, 'awa.running'::regclass)"
    ):
        await connection.execute(f'ALTER TABLE {row["name"]} DROP CONSTRAINT "{row["conname"]}"')
    return session


def app_of(session: Session, url: str) -> App:
    app = App(url, settings=QUICK)

    @app.job
    async def work(n: int = 0) -> None: ...

    @app.job
    async def looks(ctx: Context, n: int = 0) -> str:
        return ctx.job.run_at.isoformat()

    return app


async def corrupt(session: Session, table: str, job_id: int, values: str) -> None:
    assert await session.connection.execute(f"UPDATE awa.{table} SET {values} WHERE id = $1", job_id) == "UPDATE 1"


@every_value
@pytest.mark.parametrize("kind", ["work", "looks"])
async def test_one_available_job_stops_no_other(unchecked: Session, database_url: str, values: str, kind: str) -> None:
    (bad,) = await insert(unchecked, "ready", kind=kind)
    await corrupt(unchecked, "ready", bad, values)
    good = await insert(unchecked, "ready", 3, kind=kind)
    app = app_of(unchecked, database_url)
    async with app, working(app, maintenance=False) as worker:
        await eventually(lambda: ended(unchecked, good))
        await eventually(lambda: none_is_running(unchecked))
        assert not worker.problems()
    assert [(await look(unchecked, job)).state for job in good] == [State.COMPLETED] * 3


async def none_is_running(session: Session) -> bool:
    return not await session.connection.fetchval("SELECT count(*) FROM awa.running")


async def ended(session: Session, ids: list[int]) -> bool:
    return all([(await look(session, job_id)).state.final for job_id in ids])


async def test_unreadable_job_fails_with_its_reason(unchecked: Session, database_url: str) -> None:
    (bad,) = await insert(unchecked, "ready", kind="looks")
    await corrupt(unchecked, "ready", bad, "created_at = '4000-01-01 BC'")
    app = app_of(unchecked, database_url)
    async with app:
        await drain(app)
    job = await look(unchecked, bad)
    assert job.state is State.FAILED
    assert job.errors[-1]["error"] == (
        "the row has values that awa cannot work with: a time or a duration out of range"
    )


async def test_job_that_breaks_its_queue_fails_with_the_rules_it_breaks(unchecked: Session, database_url: str) -> None:
    (bad,) = await insert(unchecked, "ready")
    await corrupt(unchecked, "ready", bad, "timeout = '3000000 years', errors = '{}'")
    good = await insert(unchecked, "ready", 2)
    app = app_of(unchecked, database_url)
    async with app, working(app, maintenance=False) as worker:
        await eventually(lambda: ended(unchecked, [bad, *good]))
        job = await look(unchecked, bad)
        assert job.errors[-1]["error"] == (
            "the row has values that awa cannot work with: errors_is_a_list, timeout_is_positive_and_below_1000_years"
        )
        assert sample(worker, "awa_jobs_failed_total", queue="default", reason="invalid") == 1
        assert Health(worker.checks()).warnings == [
            "1 job had values that awa cannot work with, and failed: `awa job list --state failed`"
        ]
    findings = await run_checks(app.database, Settings())
    assert any("1 of the last failed jobs had values" in finding.says for finding in findings)


@every_value
async def test_one_scheduled_job_stops_no_promotion(unchecked: Session, database_url: str, values: str) -> None:
    (bad,) = await insert(unchecked, "scheduled", state="scheduled")
    await corrupt(unchecked, "scheduled", bad, values)
    good = await insert(unchecked, "scheduled", 3, state="retryable")
    app = app_of(unchecked, database_url)
    async with app, working(app, maintenance=True):
        await eventually(lambda: ended(unchecked, good))
    assert [(await look(unchecked, job)).state for job in good] == [State.COMPLETED] * 3


@every_value
async def test_one_running_job_stops_no_rescue(unchecked: Session, database_url: str, values: str) -> None:
    (bad,) = await insert_running(unchecked, silent_s=1000)
    await corrupt(unchecked, "running", bad, values)
    good = await insert_running(unchecked, 3, silent_s=1000)
    async with App(database_url, settings=QUICK) as app:
        await app.maintenance.rescue()
    assert await unchecked.connection.fetchval("SELECT count(*) FROM awa.running") == 0
    assert [(await look(unchecked, job)).state for job in good] == [State.RETRYABLE] * 3


async def test_running_job_with_invalid_values_is_left_to_its_live_worker(session: Session) -> None:
    (job_id,) = await insert_running(session, silent_s=1)
    await corrupt(session, "running", job_id, "timeout = 'infinity'")
    assert not await InvalidJobs(Metrics(), silence=QUICK.heartbeat_staleness).discard_all(session)
    assert (await look(session, job_id)).state is State.RUNNING


async def test_old_row_that_a_new_constraint_refuses_is_released_alone(unchecked: Session, database_url: str) -> None:
    (bad, good) = await insert(unchecked, "ready", 2)
    await corrupt(unchecked, "ready", bad, "tags = ARRAY['']")
    await unchecked.connection.execute(
        "ALTER TABLE awa.ready ADD CONSTRAINT tags_are_names CHECK (awa.are_names(tags)) NOT VALID"
    )
    app = app_of(unchecked, database_url)
    async with app, working(app, maintenance=False) as worker:
        await eventually(lambda: ended(unchecked, [bad, good]))
        orphans = await insert_running(unchecked, 2, worker_id=worker.id, kind="work")
        await corrupt(unchecked, "running", orphans[0], "tags = ARRAY['']")
        assert worker._parts is not None
        worker._parts.claim_loop._claim_may_be_unreported = True
        worker._parts.claim_loop.wake_all()
        await eventually(lambda: ended(unchecked, orphans))
    assert (await look(unchecked, orphans[0])).state is State.FAILED
    assert (await look(unchecked, orphans[1])).state is State.COMPLETED


@every_value
async def test_one_ended_job_stops_no_roll_up(session: Session, database_url: str, values: str) -> None:
    (bad,) = await insert_completed(session, age_s=60)
    await corrupt(session, "completed", bad, values)
    await insert_completed(session, 3, age_s=60)
    (dead,) = await insert(session, "dead", state="failed")
    await corrupt(session, "dead", dead, values)
    async with App(database_url, settings=QUICK) as app:
        assert (await app.maintenance.rollup()).metric_buckets
        await app.maintenance.cleanup()


@every_value
async def test_commands_show_any_row(unchecked: Session, database_url: str, values: str) -> None:
    ids = []
    ids += await insert(unchecked, "ready")
    await corrupt(unchecked, "ready", ids[-1], values)
    for table, state in (("scheduled", "scheduled"), ("dead", "failed")):
        ids += await insert(unchecked, table, state=state)
        await corrupt(unchecked, table, ids[-1], values)
    ids += await insert_completed(unchecked, age_s=1)
    await corrupt(unchecked, "completed", ids[-1], values)
    ids += await insert_running(unchecked)
    await corrupt(unchecked, "running", ids[-1], values)
    for words in (["job", "list"], ["queue", "list"], ["stats"], *(["job", "show", str(job_id)] for job_id in ids)):
        for options in ([], ["--json"]):
            await asyncio.to_thread(run, database_url, *words, *options)


def run(database_url: str, *words: str) -> str:
    result = CliRunner().invoke(command, list(words), env={"AWA_DATABASE_URL": database_url}, prog_name="awa")
    assert result.exit_code == 0, (words, result.output, result.exception)
    if "--json" in words:
        json.loads(result.output)
    return result.output


async def test_failed_task_is_a_warning_of_the_leader(session: Session, database_url: str) -> None:
    await session.connection.execute(
        "ALTER TABLE awa.metric_buckets ADD CONSTRAINT nothing_fits CHECK (false) NOT VALID"
    )
    await insert_completed(session, age_s=60)
    app = App(database_url, settings=QUICK)
    candidate = app.candidate()
    candidate.start()
    try:
        await eventually(lambda: any("rollup fails" in warning for warning in Health(candidate.checks()).warnings))
        assert not candidate.problems()
    finally:
        await candidate.stop()
