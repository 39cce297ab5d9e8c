"""Operations on jobs that move to another table concurrently.

A statement that waited for a row does not see it in the other table.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from awa_py import App, State
from awa_py.db.database import Database
from awa_py.store import bulk
from awa_py.store import jobs as job_store
from awa_py.store.session import Session
from tests.processes import processes
from tests.support import another_session, eventually, insert, insert_running, look

pytestmark = pytest.mark.integration

PROMOTE = """WITH moved AS (DELETE FROM awa.scheduled RETURNING id, kind, created_at)
             INSERT INTO awa.ready (id, kind, created_at) SELECT * FROM moved"""
POSTPONE = """WITH moved AS (DELETE FROM awa.ready RETURNING id, kind, created_at)
              INSERT INTO awa.scheduled (id, kind, created_at, state, run_at)
              SELECT *, 'scheduled', now() + interval '1 hour' FROM moved"""
FAIL = """WITH moved AS (DELETE FROM awa.scheduled RETURNING id, kind, created_at)
          INSERT INTO awa.dead (id, kind, created_at, state) SELECT *, 'failed' FROM moved"""
CLAIM = """WITH moved AS (DELETE FROM awa.scheduled RETURNING id, kind, created_at)
           INSERT INTO awa.running (id, kind, created_at, worker_id, lease, attempt)
           SELECT *, gen_random_uuid(), 1, 1 FROM moved"""

Change = Callable[[App, int], Awaitable[Any]]


async def delete(app: App, job_id: int) -> bool:
    return await app.delete(job_id)


async def retry(app: App, job_id: int) -> bool:
    return await app.retry(job_id)


async def cancel(app: App, job_id: int) -> bool:
    return await app.cancel(job_id)


async def move(app: App, job_id: int) -> bool:
    return bool(await app.client.move_many([job_id], queue="other", priority=None))


async def scheduled(session: Session) -> int:
    (job_id,) = await insert(session, "scheduled", state="scheduled")
    return job_id


async def waits_for_a_lock(session: Session) -> bool:
    return bool(await session.connection.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"))


@asynccontextmanager
async def meanwhile(change: Awaitable[Any], database: Database, statement: str) -> AsyncIterator["asyncio.Future[Any]"]:
    """Start the change while the statement is not committed, so that it has to wait for it. Yield its future."""
    async with another_session(database) as other, another_session(database) as observer:
        async with other.connection.transaction():
            await other.connection.execute(statement)
            changing = asyncio.ensure_future(change)
            await eventually(lambda: waits_for_a_lock(observer))
        yield changing


@pytest.mark.parametrize("change", [delete, retry, cancel, move])
async def test_operation_finds_a_job_that_is_promoted_concurrently(
    app: App, session: Session, database: Database, change: Change
) -> None:
    async with app:
        job_id = await scheduled(session)
        async with meanwhile(change(app, job_id), database, PROMOTE) as changing:
            assert await changing
        if change is delete:
            assert await job_store.get_jobs(session, [job_id]) == {}
            return
        job = await look(session, job_id)
        assert job.state is (State.CANCELLED if change is cancel else State.AVAILABLE)
        assert job.queue == ("other" if change is move else "default")


@pytest.mark.parametrize("command", ["delete --yes", "retry", "move --to-queue other"])
async def test_command_finds_a_job_that_is_promoted_concurrently(
    session: Session, database: Database, tmp_path: Path, command: str
) -> None:
    job_id = await scheduled(session)
    name, *options = command.split()
    with processes(tmp_path, database.url, {}) as started:

        async def run() -> int:
            return await asyncio.to_thread(started.start("job", name, str(job_id), *options).wait)

        async with meanwhile(run(), database, PROMOTE) as running:
            assert await running == 0
        done = {"delete": "deleted", "retry": "available", "move": "moved"}[name]
        assert f"job {job_id}: {done}" in started.outputs


async def test_retry_finds_a_job_that_fails_concurrently(app: App, session: Session, database: Database) -> None:
    async with app:
        job_id = await scheduled(session)
        async with meanwhile(app.retry(job_id), database, FAIL) as changing:
            assert await changing
        assert (await look(session, job_id)).state is State.AVAILABLE


@pytest.mark.parametrize("change", [delete, retry, move])
async def test_operation_leaves_a_job_alone_that_is_claimed_concurrently(
    app: App, session: Session, database: Database, change: Change
) -> None:
    async with app:
        job_id = await scheduled(session)
        async with meanwhile(change(app, job_id), database, CLAIM) as changing:
            assert not await changing
        assert (await look(session, job_id)).state is State.RUNNING


@pytest.mark.parametrize("change", [delete, retry, move])
async def test_running_and_missing_jobs_are_tried_once(
    app: App, session: Session, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    asked: list[str] = []
    fetch = Session.fetch

    async def recorded(self: Session, name: str, *values: object) -> Any:
        asked.append(name)
        return await fetch(self, name, *values)

    (runs,) = await insert_running(session)
    async with app:
        monkeypatch.setattr(Session, "fetch", recorded)
        for job_id in (runs, 10**9):
            assert not await change(app, job_id)
    assert asked == [f"{change.__name__}_jobs", "get_jobs"] * 2


async def test_job_that_keeps_changing_is_tried_at_most_max_tries(
    app: App, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    async def always_too_late(session: Session, ids: Any) -> set[int]:
        nonlocal tries
        tries += 1
        await session.connection.execute(PROMOTE if tries % 2 else POSTPONE)
        return set()

    monkeypatch.setattr(job_store, "delete_jobs", always_too_late)
    async with app:
        job_id = await scheduled(session)
        assert not await app.delete(job_id)
    assert tries == bulk.MAX_TRIES


async def test_job_that_does_not_change_is_not_tried_again(
    app: App, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    async def never(session: Session, ids: Any) -> set[int]:
        nonlocal tries
        tries += 1
        return set()

    monkeypatch.setattr(job_store, "delete_jobs", never)
    async with app:
        assert not await app.delete(await scheduled(session))
    assert tries == 2
