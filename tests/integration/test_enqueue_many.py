"""enqueue_many: one transaction, in order, for all kinds of jobs and connections."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from awa_py import App, InvalidJob, NewJob, State, Unique
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.enqueue.enqueuer import COPY_MIN_JOBS
from awa_py.model.job import JobSpec
from awa_py.store.copy import COLUMN_DEFAULTS
from awa_py.store.session import Session
from tests.support import another_session, count, eventually, listen, states

pytestmark = pytest.mark.integration

LATER = datetime(2100, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[App]:
    app = App(database_url)

    @app.job
    async def work(number: int = 0, text: str = "") -> None: ...

    async with app:
        yield app


def many(app: App, count: int = COPY_MIN_JOBS, **options: Any) -> list[NewJob]:
    return [app.new("work", {"number": n}, **options) for n in range(count)]


def interleaved(*lists: list[NewJob]) -> list[NewJob]:
    return [job for together in zip(*lists, strict=True) for job in together]


async def test_ids_and_positions_follow_the_order_of_the_jobs(app: App, session: Session) -> None:
    wanted = interleaved(many(app, priority=3), many(app, delay="1h"), many(app, queue="mail"))
    jobs = await app.enqueue_many(wanted)
    ids = [job.id for job in jobs]
    assert ids == sorted(set(ids))
    assert [job.args["number"] for job in jobs[::3]] == list(range(COPY_MIN_JOBS))
    rows = await session.connection.fetch("SELECT id FROM awa.ready ORDER BY pos")
    assert [row["id"] for row in rows] == [job.id for job in jobs if job.state is State.AVAILABLE]
    assert await states(session) == {"available": 2 * COPY_MIN_JOBS, "scheduled": COPY_MIN_JOBS}


async def test_concurrent_calls_get_different_ids(app: App, session: Session) -> None:
    calls = await asyncio.gather(*(app.enqueue_many(many(app, 5_000)) for _ in range(4)))
    for jobs in calls:
        stored = await session.connection.fetch(
            "SELECT id, args FROM awa.ready WHERE id = ANY ($1)", [j.id for j in jobs]
        )
        assert {row["id"]: json.loads(row["args"])["number"] for row in stored} == {
            j.id: j.args["number"] for j in jobs
        }
    assert await states(session) == {"available": 4 * 5_000}


async def test_columns_that_copy_omits_have_the_tables_defaults(session: Session) -> None:
    filled_in = (
        "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef JOIN pg_attribute ON (attrelid, attnum) = (adrelid, adnum)"
    )
    for table in ("awa.ready", "awa.scheduled"):
        for column, text in COLUMN_DEFAULTS.items():
            default = await session.connection.fetchval(
                f"{filled_in} WHERE attrelid = $1::regclass AND attname = $2", table, column
            )
            assert default.removesuffix("::text").strip("'") == text
    spec = JobSpec(kind="any")
    assert {
        "queue": spec.default_queue,
        "priority": str(spec.priority),
        "max_attempts": str(spec.max_attempts),
    } == COLUMN_DEFAULTS


async def test_returned_jobs_equal_the_stored_jobs(app: App) -> None:
    full: dict[str, Any] = {
        "queue": "mail",
        "priority": 1,
        "max_attempts": 3,
        "timeout": "90s",
        "deadline": LATER + timedelta(days=1),
        "tags": ["a", 'quoted "b"', "back\\slash", "comma, {brace}", "NULL"],
        "metadata": {"trace": {"id": "\u2713 \\ \" '"}},
        "parent_id": 99,
    }
    odd = "ünï ✓ \\u0000 'quoted' \"double\" \n\t\r\x01\x02 \\. \\N"
    wanted = interleaved(
        many(app),
        many(app, **full),
        many(app, run_at=LATER, **full),
        many(app, run_at=datetime(2001, 1, 1, tzinfo=UTC)),
        [app.new("work", {"text": odd}, delay="90s") for _ in range(COPY_MIN_JOBS)],
        [app.new("\\.", {}, queue="back\\slash ✓", max_attempts=1) for _ in range(COPY_MIN_JOBS)],
    )
    jobs = await app.enqueue_many(wanted)
    for job in jobs[:6]:
        assert await app.get(job.id) == job
    assert [job.state for job in jobs[:6]] == [
        State.AVAILABLE,
        "available",
        "scheduled",
        "available",
        "scheduled",
        "available",
    ]
    assert jobs[1].tags == full["tags"]
    assert jobs[2].run_at == LATER
    assert jobs[3].run_at == datetime(2001, 1, 1, tzinfo=UTC)
    assert (jobs[4].args, jobs[4].run_at - jobs[4].created_at) == ({"text": odd}, timedelta(seconds=90))
    assert {job.created_at for job in jobs} == {jobs[0].created_at}


async def test_returned_jobs_share_no_mutable_values(app: App) -> None:
    jobs = await app.enqueue_many(many(app, metadata={"a": [1]}, tags=["t"]))
    jobs[0].metadata["a"].append(2)
    jobs[0].tags.append("u")
    assert (jobs[1].metadata, jobs[1].tags) == ({"a": [1]}, ["t"])


async def test_rollback_leaves_no_jobs(app: App, session: Session) -> None:
    transaction = session.connection.transaction()
    await transaction.start()
    await app.enqueue_many([*many(app), *many(app, delay="1h")], connection=session.connection)
    assert await states(session) == {"available": COPY_MIN_JOBS, "scheduled": COPY_MIN_JOBS}
    await transaction.rollback()
    assert await states(session) == {}


async def test_jobs_are_visible_after_the_callers_commit(app: App, session: Session, database: Database) -> None:
    async with another_session(database) as other:
        async with session.connection.transaction():
            await app.enqueue_many(many(app), connection=session.connection)
            assert await states(other) == {}
        assert await states(other) == {"available": COPY_MIN_JOBS}


async def test_connection_without_a_transaction_gets_one(app: App, session: Session) -> None:
    bad = NewJob(kind="work", delay=timedelta(hours=1), parent_id=2**70)  # in the table that is written last
    with pytest.raises(InvalidJob):
        await app.enqueue_many([*many(app), bad], connection=session.connection)
    assert await states(session) == {}
    assert not session.connection.is_in_transaction()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            NewJob(kind="spoilt", parent_id=2**70),
            r"spoilt \(job 102 of 1200\): PostgreSQL refused the job: .*out of range",
        ),
        (NewJob(kind="spoilt", args_json="[1]"), r"spoilt \(job 102 of 1200\): PostgreSQL refused .*args_is_an_object"),
        (NewJob(kind="spoilt", args_json="{"), r"spoilt \(job 102 of 1200\): PostgreSQL refused .*json"),
        (NewJob(kind="spoilt", args_json='{"a": "\x01"}'), r"spoilt \(job 102 of 1200\): PostgreSQL refused .*json"),
        (NewJob(kind="spoilt", args_json='{"a": "\ud800"}'), "PostgreSQL refused the job: .*surrogates not allowed"),
    ],
)
async def test_error_names_the_refused_job_and_no_job_is_enqueued(
    app: App, session: Session, bad: NewJob, message: str
) -> None:
    by_hand = NewJob(kind="work", args_json='{\n"number":\n1\n}')  # line breaks inside a line of COPY
    jobs = [*many(app, 100), by_hand, bad, *many(app, 98, delay="1h"), *many(app, 1000)]
    with pytest.raises(InvalidJob, match=f"(?s){message}"):
        await app.enqueue_many(jobs)
    assert await states(session) == {}
    assert len(await app.enqueue_many([job for job in jobs if job is not bad])) == 1199


async def test_refused_job_aborts_the_callers_transaction(app: App, session: Session) -> None:
    jobs = [*many(app), NewJob(kind="work", parent_id=2**70)]
    transaction = session.connection.transaction()
    await transaction.start()
    with pytest.raises(InvalidJob):
        await app.enqueue_many(jobs, connection=session.connection)
    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await session.connection.execute("SELECT 1")
    await transaction.rollback()
    assert await states(session) == {}


async def test_copy_works_with_custom_codecs(app: App, session: Session) -> None:
    for name in ("json", "jsonb"):
        await session.connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    await session.connection.execute(
        "SET client_encoding TO 'UTF8'; SET datestyle TO 'German'; SET intervalstyle TO 'iso_8601'"
    )
    wanted = many(app, metadata={"a": [1]}, run_at=LATER, timeout="36h")
    jobs = await app.enqueue_many(wanted, connection=session.connection)
    assert await app.get(jobs[-1].id) == jobs[-1]
    assert jobs[-1].args == {"number": COPY_MIN_JOBS - 1}


async def test_order_is_kept_with_a_unique_job_among_the_jobs(app: App, session: Session) -> None:
    held = await app.enqueue("work", {"number": 7}, unique=Unique(key="held"))
    unique = [app.new("work", unique=Unique(key=str(n))) for n in range(COPY_MIN_JOBS)]
    wanted = [*interleaved(many(app), unique, many(app, delay="1h")), app.new("work", unique=Unique(key="held"))]
    *jobs, last = await app.enqueue_many(wanted)
    ids = [job.id for job in jobs]
    assert ids == sorted(set(ids))
    assert (last.id, last.is_new, last.args) == (held.id, False, {"number": 7})
    assert await states(session) == {"available": 2 * COPY_MIN_JOBS + 1, "scheduled": COPY_MIN_JOBS}


async def test_call_sends_one_wake_up_per_queue_and_one_to_the_leader(app: App, session: Session) -> None:
    notifications = await listen(session, "a", "b", "c", "d")
    await app.enqueue_many([*many(app, queue="a"), *many(app, queue="b"), *many(app, queue="c", delay="5s")])
    await app.enqueue_many(many(app, queue="unsubscribed"))
    await session.connection.execute("SELECT pg_notify('awa', 'end:')")
    assert await count(session.connection, "SELECT count(*) FROM awa.ready") == 3 * COPY_MIN_JOBS
    await eventually(lambda: "end:" in notifications)
    assert sorted(notifications) == ["due:", "end:", "ready:a", "ready:b"]


async def test_copy_works_in_a_schema_of_another_name(fresh_database_url: str) -> None:
    database = Database(fresh_database_url, Schema("My Jobs"))
    await migrations.migrate(database)
    async with App(fresh_database_url, schema="My Jobs") as app:
        jobs = await app.enqueue_many([*many(app), *many(app, delay="1h")])
        assert await app.get(jobs[0].id) == jobs[0]
        assert await app.get(jobs[-1].id) == jobs[-1]


async def test_cancelled_call_leaves_no_jobs(app: App, session: Session) -> None:
    async with session.connection.transaction():
        await session.connection.execute("LOCK TABLE awa.ready IN ACCESS EXCLUSIVE MODE")
        call = asyncio.create_task(app.enqueue_many(many(app)))
        done, _ = await asyncio.wait({call}, timeout=0.3)
        assert not done
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert await states(session) == {}
    assert len(await app.enqueue_many(many(app))) == COPY_MIN_JOBS
