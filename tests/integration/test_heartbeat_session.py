"""What a heartbeat does not wait for, and that the worker keeps its session if PostgreSQL refuses a heartbeat."""

import asyncio
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from awa_py import Context
from awa_py.db.database import Database
from awa_py.store import heartbeat
from awa_py.store.heartbeat import check_leases, renew_leases
from awa_py.store.session import Session
from tests.support import (
    HASTY,
    OWNER,
    Gate,
    another_session,
    eventually,
    insert_running,
    seconds,
    with_settings,
    working,
)

pytestmark = pytest.mark.integration

LOCK_JOB = "SELECT FROM awa.running WHERE id = $1 FOR UPDATE"


async def test_renewal_skips_locked_jobs(session: Session, database: Database) -> None:
    locked, free = await insert_running(session, 2, silent_s=60)
    async with another_session(database) as other, other.connection.transaction():
        await other.connection.execute(LOCK_JOB, locked)
        async with asyncio.timeout(5):
            assert await renew_leases(session, OWNER, [locked, free], [1, 1]) == {free: False}
            assert await check_leases(session, OWNER, [locked, free], [1, 1]) == {locked: False, free: False}


async def test_locked_job_does_not_cost_the_worker_its_other_leases(database_url: str, database: Database) -> None:
    """E.g. because a flush, or the transaction of a user that cancels the job, waits for a standby that hangs."""
    app = with_settings(database_url, replace(HASTY, heartbeat_staleness=seconds(4)))
    gates = {"locked": Gate(), "free": Gate()}

    @app.job
    def work(ctx: Context, name: str) -> str:
        return gates[name](ctx)

    async with app, working(app), another_session(database) as other:
        locked = await app.enqueue("work", {"name": "locked"})
        free = await app.enqueue("work", {"name": "free"})
        await eventually(lambda: all(gate.started.is_set() for gate in gates.values()))
        transaction = other.connection.transaction()
        await transaction.start()
        await other.connection.execute(LOCK_JOB, locked.id)
        await eventually(lambda: gates["locked"].stop_reasons)  # after its lease
        await transaction.rollback()
        gates["free"].open.set()
        await app.result(free.id, timeout="20s")
        found = await app.get(free.id)
    assert gates["locked"].stop_reasons[0] == "its lease expired: the database could not be reached"
    assert gates["free"].stop_reasons == []
    assert (found.attempt, found.lease) == (1, 1)


async def test_worker_keeps_its_session_if_postgresql_refuses_a_heartbeat(
    database_url: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of its session would look like the end of the worker."""
    app = with_settings(database_url, HASTY)
    send = heartbeat.heartbeat_worker
    is_full = False
    refused = 0

    async def send_or_refuse(*values: Any, **options: Any) -> Any:
        nonlocal refused
        if is_full:
            refused += 1
            raise asyncpg.DiskFullError("no space left on device")
        return await send(*values, **options)

    async def pids() -> list[int]:
        rows = await session.connection.fetch(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'awa heartbeat'"
        )
        return [row["pid"] for row in rows]

    monkeypatch.setattr("awa_py.store.heartbeat.heartbeat_worker", send_or_refuse)

    @app.job
    async def work() -> None: ...

    async with app, working(app) as worker:
        before = await pids()
        is_full = True
        await eventually(lambda: refused >= 2)
        is_full = False
        await eventually(lambda: worker._parts.heartbeat.healthy)  # type: ignore[union-attr]
        assert await pids() == before
