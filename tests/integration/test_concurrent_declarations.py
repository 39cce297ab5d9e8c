"""Workers of the same version that start at the same time declare the same, and none of them is overruled."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from awa_py import App
from awa_py.db.database import Database
from awa_py.declaring import declare_kinds, declare_schedules
from awa_py.store.session import Session
from tests.support import another_session, count, eventually

pytestmark = pytest.mark.integration


def version_of(database_url: str, version: str, attempts: int) -> App:
    app = App(database_url, version=version)

    @app.cron(f"{attempts} 9 * * *")
    @app.job(max_attempts=attempts)
    async def digest() -> None: ...

    @app.job(max_attempts=attempts)
    async def send() -> None: ...

    return app


async def declare_kinds_of(session: Session, app: App) -> None:
    await declare_kinds(session, app.declarations())


async def declare_schedules_of(session: Session, app: App) -> None:
    await declare_schedules(session, app.declarations().schedules)


@pytest.mark.parametrize("declare", [declare_kinds_of, declare_schedules_of])
@pytest.mark.parametrize("is_upgrade", [False, True], ids=["first start", "upgrade"])
async def test_worker_that_starts_together_with_another_is_not_overruled(
    database_url: str,
    session: Session,
    database: Database,
    caplog: pytest.LogCaptureFixture,
    is_upgrade: bool,
    declare: Callable[[Session, App], Awaitable[None]],
) -> None:
    """The first worker commits after the second one has begun to wait for it."""
    if is_upgrade:
        await declare(session, version_of(database_url, "1", 3))
    app = version_of(database_url, "2", 4)
    async with another_session(database) as first, another_session(database) as second:
        transaction = first.connection.transaction()
        await transaction.start()
        await declare(first, app)
        declaring = asyncio.ensure_future(declare(second, app))
        waits = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'"
        await eventually(partial(count, session.connection, waits, second.connection.get_server_pid()))
        await transaction.commit()
        await declaring
    assert caplog.messages == []
