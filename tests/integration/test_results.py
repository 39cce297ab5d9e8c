"""Wait for the results of jobs."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from awa_py import App, AwaError, JobCancelled, JobNotFound, ResultTimeout
from awa_py.client import Client
from awa_py.db.database import Database
from awa_py.result_waiter import UNSERVED_INTERVAL_S, ResultWaiter
from awa_py.settings import Settings
from awa_py.store.heartbeat import heartbeat_worker
from awa_py.store.jobs import cancel_jobs, delete_jobs
from awa_py.store.session import Session
from tests.fake_pooler import fake_pooler
from tests.support import PATIENCE_S, QUICK, ago, another_session, count, eventually, insert, insert_completed, seconds
from tests.workers import worker_info

pytestmark = pytest.mark.integration

RARELY = replace(QUICK, result_interval=seconds(600))  # a test that waits for a second look never ends
END = """
    WITH ended AS (DELETE FROM awa.ready WHERE id = ANY ($1::bigint[]) RETURNING id, kind)
    INSERT INTO awa.completed (id, kind, worker_id, attempted_at, result)
    SELECT id, kind, gen_random_uuid(), now(), to_jsonb(ARRAY[id]) FROM ended
"""

LAST_LOOK = """
    SELECT query_start FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '-- find_ended_jobs%'
"""
SEARCHES_FOR_UNSERVED_JOBS = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '-- list_unserved_jobs%'
"""


@pytest.fixture
async def client(database: Database) -> AsyncIterator[Client]:
    async with Client.open(database, QUICK) as client:
        yield client


async def end(session: Session, *job_ids: int) -> None:
    """Complete available jobs. The result of each is a list with its id."""
    await session.connection.execute(END, job_ids)


async def wait_for_looks(session: Session, number: int = 1) -> None:
    """Wait until the client has looked this often."""
    before = None
    while number:
        started_at = await session.connection.fetchval(LAST_LOOK)
        number -= started_at is not None and started_at != before
        before = started_at or before
        await asyncio.sleep(0.01)


class CountingSession(Session):
    """Records the names of the statements that it runs."""

    __slots__ = ("statements",)
    statements: list[str]

    async def fetch(self, name: str, *values: object) -> list[Any]:
        self.statements.append(name)
        return await super().fetch(name, *values)


@asynccontextmanager
async def counted_waiter(
    database: Database, settings: Settings = QUICK
) -> AsyncIterator[tuple[ResultWaiter, list[str]]]:
    """Yield a waiter, and the names of the statements that it has run."""
    statements: list[str] = []

    @asynccontextmanager
    async def open_session() -> AsyncIterator[Session]:
        async with another_session(database) as session:
            counting = CountingSession(session.connection, database.schema)
            counting.statements = statements
            yield counting

    waiter = ResultWaiter(open_session, settings)
    try:
        yield waiter, statements
    finally:
        await waiter.close()


async def test_thousands_of_callers_share_a_look(database: Database, session: Session) -> None:
    ids = await insert(session, "ready", 2_000)
    async with counted_waiter(database) as (waiter, statements):
        began = time.monotonic()
        callers = [asyncio.create_task(waiter.wait(job_id)) for job_id in ids]
        await eventually(lambda: len(statements) > 10)
        looks = statements.count("find_ended_jobs")
        took_s = time.monotonic() - began
        assert looks <= took_s / QUICK.result_interval.total_seconds() + 1
        assert len(statements) - looks <= took_s / UNSERVED_INTERVAL_S
        await end(session, *ids)
        finals = await asyncio.gather(*callers)
    assert [final and final.result_json for final in finals] == [f"[{job_id}]" for job_id in ids]


def test_default_interval_allows_less_than_20_looks_a_second_and_50_ms_at_the_median() -> None:
    interval_s = Settings().result_interval.total_seconds()
    assert 1 / interval_s + 1 / UNSERVED_INTERVAL_S < 20
    assert interval_s / 2 < 0.05


async def test_waiting_callers_use_one_connection(client: Client, session: Session) -> None:
    ids = await insert(session, "ready", 100)
    callers = [asyncio.create_task(client.result(job_id)) for job_id in ids]
    await wait_for_looks(session, 3)
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1"
    assert await count(session.connection, sessions, "awa client") == 1
    await end(session, *ids)
    assert await asyncio.gather(*callers) == [[job_id] for job_id in ids]


async def test_results_of_ended_jobs_are_read_one_by_one_without_waiting(database: Database, session: Session) -> None:
    ids = await insert_completed(session, 50, age_s=1, result="7")
    async with Client.open(database, RARELY) as client, asyncio.timeout(PATIENCE_S):
        assert [await client.result(job_id) for job_id in ids] == [7] * 50


async def test_new_callers_of_unfinished_jobs_cause_no_look_of_their_own(database: Database, session: Session) -> None:
    ids = await insert(session, "ready", 3)
    async with counted_waiter(database, RARELY) as (waiter, statements):
        for job_id in ids:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(waiter.wait(job_id), 0.1)
    assert statements == ["find_ended_jobs"]


async def test_callers_of_the_same_job_get_results_of_their_own(client: Client, session: Session) -> None:
    (job_id,) = await insert(session, "ready")
    callers = [asyncio.create_task(client.result(job_id)) for _ in range(2)]
    await wait_for_looks(session)
    await end(session, job_id)
    first, second = await asyncio.gather(*callers)
    assert first == second == [job_id]
    assert first is not second


async def test_cancelled_caller_does_not_affect_the_others(client: Client, session: Session) -> None:
    (job_id,) = await insert(session, "ready")
    cancelled, other = (asyncio.create_task(client.result(job_id)) for _ in range(2))
    await wait_for_looks(session)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await end(session, job_id)
    assert await other == [job_id]


async def test_job_that_is_deleted_while_a_caller_waits_is_not_found(client: Client, session: Session) -> None:
    (job_id,) = await insert(session, "ready")
    caller = asyncio.create_task(client.result(job_id))
    await wait_for_looks(session)
    await delete_jobs(session, [job_id])
    with pytest.raises(JobNotFound, match=f"there is no job {job_id}"):
        await caller


async def test_job_that_is_cancelled_while_a_caller_waits_has_no_result(client: Client, session: Session) -> None:
    (job_id,) = await insert(session, "scheduled", state="scheduled", run_at=ago(-600))
    caller = asyncio.create_task(client.result(job_id))
    await wait_for_looks(session)
    await cancel_jobs(session, [job_id])
    with pytest.raises(JobCancelled, match=f"job {job_id} was cancelled"):
        await caller


@pytest.mark.parametrize("job_id", [0, -1, 2**63, 10**30])
async def test_impossible_id_is_not_found_and_does_not_affect_others(
    client: Client, session: Session, job_id: int
) -> None:
    (good,) = await insert(session, "ready")
    caller = asyncio.create_task(client.result(good))
    with pytest.raises(JobNotFound):
        await client.result(job_id)
    await end(session, good)
    assert await caller == [good]


async def test_callers_wait_through_a_lost_connection(client: Client, session: Session) -> None:
    (job_id,) = await insert(session, "ready")
    caller = asyncio.create_task(client.result(job_id))
    await wait_for_looks(session)
    terminated = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'awa client'"
    assert await count(session.connection, f"{terminated} AND datname = current_database()") == 1
    await wait_for_looks(session)
    await end(session, job_id)
    assert await caller == [job_id]


async def test_results_arrive_through_a_transaction_pooler(database_url: str, session: Session) -> None:
    ids = await insert(session, "ready", 20)
    async with fake_pooler(database_url) as url, App(url, direct_url=database_url, settings=QUICK) as app:
        callers = [asyncio.create_task(app.result(job_id)) for job_id in ids]
        for job_id in ids:
            await end(session, job_id)
        assert await asyncio.gather(*callers) == [[job_id] for job_id in ids]


async def test_timeout_during_an_outage_names_it(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    async with Client.open(Database("postgresql://u@127.0.0.1:1/d", database.schema), QUICK) as client:
        with pytest.raises(ResultTimeout, match="did not end within 300ms: the database cannot be reached: "):
            await client.result(1, timeout="300ms")
    assert caplog.messages[0].startswith("waiting for 1 job: the database cannot be reached: ")


async def test_error_of_a_look_reaches_the_callers(client: Client, session: Session) -> None:
    ids = await insert(session, "ready", 2)
    callers = [asyncio.create_task(client.result(job_id)) for job_id in ids]
    await wait_for_looks(session)
    await session.connection.execute("ALTER TABLE awa.dead RENAME TO gone")
    for caller in callers:
        with pytest.raises(Exception, match=r'relation "awa\.dead" does not exist'):
            await caller


async def test_closed_client_ends_the_wait(database: Database, session: Session) -> None:
    (job_id,) = await insert(session, "ready")
    async with Client.open(database, QUICK) as client:
        caller = asyncio.create_task(client.result(job_id))
        await wait_for_looks(session)
    with pytest.raises(AwaError, match="the app was closed before the job ended"):
        await caller
    with pytest.raises(AwaError, match="the app was closed before the job ended"):
        await client.result(job_id)


async def test_result_can_be_awaited_in_another_event_loop(client: Client, session: Session) -> None:
    (job_id,) = await insert(session, "ready")
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(client.result(job_id))))
    thread.start()
    await wait_for_looks(session)
    await end(session, job_id)
    await asyncio.to_thread(thread.join, PATIENCE_S)
    assert results == [[job_id]]


class TestUnservedJobs:
    async def test_warning_and_timeout_name_the_kind(
        self, app: App, session: Session, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # F9
        monkeypatch.setattr("awa_py.result_waiter.UNSERVED_INTERVAL_S", 0.1)
        await heartbeat_worker(session, worker_info("default", kind="other"))
        ids = await insert(session, "ready", 2, kind="lost", run_at=ago(10))
        async with app:
            with pytest.raises(ResultTimeout) as raised:
                await asyncio.gather(*(app.result(job_id, timeout="2s") for job_id in ids))
        why = 'no live worker of queue "default" has a handler for kind "lost"'
        assert str(raised.value) == f"job {ids[0]} did not end within 2s: {why}"
        assert caplog.messages == [f"waiting for 2 jobs, e.g. job {ids[0]}: {why}"]

    async def test_served_and_scheduled_jobs_are_not_named(
        self, client: Client, session: Session, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("awa_py.result_waiter.UNSERVED_INTERVAL_S", 0.1)
        await heartbeat_worker(session, worker_info("default"))
        (served,) = await insert(session, "ready", run_at=ago(10))
        (scheduled,) = await insert(session, "scheduled", kind="lost", state="scheduled", run_at=ago(-600))
        callers = [asyncio.create_task(client.result(job_id)) for job_id in (served, scheduled)]
        await eventually(partial(count, session.connection, SEARCHES_FOR_UNSERVED_JOBS), every_s=0.005)
        await wait_for_looks(session)
        for caller in callers:
            caller.cancel()
        assert caplog.messages == []
