"""The answer to a claim is lost after its commit: the worker releases the jobs that it does not know."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from awa_py import App, Context, Job, State
from awa_py.connections import DedicatedConnection
from awa_py.db.database import Database
from awa_py.store.session import Session
from tests.chaos.proxy import CLAIMS, FaultProxy, Trap, fault_proxy
from tests.support import (
    QUICK,
    UNDO_CLAIMS,
    Gate,
    another_session,
    count,
    eventually,
    sample,
    seconds,
    with_settings,
    working,
)

pytestmark = pytest.mark.integration

CLAIM_WAITS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'awa claims' "
    "AND wait_event_type = 'Lock'"
)


@asynccontextmanager
async def losing_the_answer(proxy: FaultProxy, database: Database, outside: App) -> AsyncIterator[Job]:
    """Enqueue a job, and let its claim wait for a lock. At the end, the claim commits, and its answer is lost."""
    async with another_session(database) as locker, another_session(database) as session:
        while True:
            lock = locker.connection.transaction()
            await lock.start()
            await locker.connection.execute("LOCK TABLE awa.running IN SHARE ROW EXCLUSIVE MODE")
            trap = proxy.trap = Trap(statements=CLAIMS, action="lose answer")
            job = await outside.enqueue("work", max_attempts=1)
            await eventually(lambda: count(session.connection, CLAIM_WAITS))
            if trap.sprung:
                break
            proxy.trap = None
            await lock.rollback()  # the claim that waits began before the trap was set
            await outside.result(job.id, timeout="20s")
        yield job
        await lock.rollback()
        await trap.lost.wait()


async def test_jobs_of_a_lost_answer_run_at_once(database_url: str, database: Database) -> None:
    async with fault_proxy(database_url) as (url, proxy):
        app = with_settings(url, QUICK)

        @app.job(max_attempts=1)
        async def work() -> None: ...

        async with App(database_url) as outside, working(app):
            async with losing_the_answer(proxy, database, outside) as job:
                pass
            await outside.result(job.id, timeout="20s")
            found = await outside.get(job.id)
    assert (found.attempt, found.lease, found.rescues) == (1, 2, 0)


async def test_quiet_worker_releases_the_jobs_of_a_lost_answer(
    database_url: str, database: Database, session: Session
) -> None:
    """Nothing renews their leases: with one attempt, they would fail without ever having run."""
    async with fault_proxy(database_url) as (url, proxy):
        app = with_settings(url, replace(QUICK, report_interval=seconds(0.2)))

        @app.job(max_attempts=1)
        async def work() -> None: ...

        async with App(database_url) as outside, working(app):
            async with losing_the_answer(proxy, database, outside) as job:
                await session.connection.execute("UPDATE awa.workers SET quiet = true")
                reported = "SELECT count(*) FROM awa.workers WHERE heartbeat_at > $1::timestamptz + interval '1 second'"
                now = await session.connection.fetchval("SELECT now()")
                await eventually(lambda: count(session.connection, reported, now))

            async def is_released() -> bool:
                found = await outside.get(job.id)
                return (found.state, found.attempt, found.lease) == (State.AVAILABLE, 0, 1)

            await eventually(is_released)


async def test_outcome_of_a_claim_that_was_undone_and_repeated_here_is_not_written(
    database_url: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome waits for a connection. Until then, a crash has undone the claim, and the worker repeated it."""
    app = with_settings(database_url, QUICK)
    again = Gate()
    is_undone = False

    @app.job
    def work(ctx: Context) -> str:
        return again(ctx) if is_undone else "of the first attempt"

    async with app, working(app) as worker:
        assert worker._parts is not None
        connection = worker._parts.completer._connection
        get = connection.get

        async def get_late() -> DedicatedConnection:
            nonlocal is_undone
            if not is_undone:
                is_undone = True
                await session.connection.execute(UNDO_CLAIMS)
                await eventually(again.started.is_set)
            return await get()

        connection.drop()
        monkeypatch.setattr(connection, "get", get_late)
        job = await app.enqueue("work")
        await eventually(again.started.is_set)
        await eventually(lambda: sample(worker, "awa_lost_leases_total"))
        assert (await app.get(job.id)).state is State.RUNNING
        again.open.set()
        assert await app.result(job.id, timeout="20s") == "the end"
