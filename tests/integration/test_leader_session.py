"""The leader's session: what ends a slow statement, and that a session which only takes long is not ended."""

import asyncio
from dataclasses import replace
from functools import partial

import asyncpg
import pytest

from awa_py import App
from awa_py.db.database import Database
from awa_py.maintenance.task import TaskResult
from awa_py.store.election import LOCK_KEY, list_lock_holders, terminate_frozen_leader
from awa_py.store.session import Session
from tests.support import PATIENCE_S, QUICK, another_session, count, eventually, seconds

pytestmark = pytest.mark.integration

SLEEP = f"SELECT pg_sleep({PATIENCE_S})"


async def test_postgresql_ends_a_statement_that_takes_longer_than_the_leader_timeout(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader gets the error and goes on with its session. Its own timeout would end the session."""
    ends: list[type[BaseException]] = []

    async def sleep(session: Session, **_: object) -> TaskResult:
        try:
            await session.connection.execute(SLEEP)
        except BaseException as error:
            ends.append(type(error))
            raise
        raise AssertionError("the statement was not ended")

    monkeypatch.setattr("awa_py.maintenance.tasks.rescue_overdue", sleep)
    settings = replace(QUICK, leader_check_interval=seconds(0.2), leader_timeout=seconds(1))
    candidate = App(database_url, settings=settings).candidate()
    candidate.start()
    try:
        await eventually(lambda: ends)
    finally:
        await candidate.stop()
    assert ends[0] is asyncpg.QueryCanceledError


async def test_leader_that_waits_within_a_statement_is_not_frozen(session: Session, database: Database) -> None:
    async with another_session(database) as leader:
        await leader.connection.execute("SELECT pg_advisory_lock($1)", LOCK_KEY)
        statement = asyncio.ensure_future(leader.connection.execute(SLEEP))
        sleeps = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'"
        await eventually(partial(count, session.connection, sleeps, leader.connection.get_server_pid()))
        (holder,) = await list_lock_holders(session, silence=seconds(0))
        assert not holder.is_frozen
        assert not await terminate_frozen_leader(session, silence=seconds(0))
        statement.cancel()
        await asyncio.wait([statement])
