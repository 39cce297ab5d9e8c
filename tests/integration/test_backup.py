"""A dump that was made while a worker runs is complete: in the restored database, all work continues."""

import asyncio
from pathlib import Path

import pytest

from awa_py import App, Job, State
from awa_py.embedded.binaries import find_binaries
from tests.payloads import LARGE
from tests.support import (
    HASTY,
    PATIENCE_S,
    eventually,
    running,
    with_settings,
    working,
)

pytestmark = pytest.mark.integration


def app_for(url: str, ran: list[str], go_on: asyncio.Event) -> App:
    app = with_settings(url, HASTY)

    @app.job(max_attempts=3)
    async def note(text: str) -> str:
        ran.append(text)
        return text

    @app.job(max_attempts=3)
    async def hold(text: str) -> str:
        ran.append(text)
        await go_on.wait()
        return text

    @app.cron("0 0 1 1 *", name="yearly")
    @app.job
    async def yearly() -> None: ...

    return app


async def run(program: str, *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        find_binaries() / program, *arguments, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()


@pytest.fixture
async def restored(database_url: str, fresh_database_url: str, tmp_path: Path) -> str:
    """Return a restored copy of a database whose worker was running a job."""
    go_on = asyncio.Event()
    app = app_for(database_url, [], go_on)
    async with app, working(app, maintenance=True):
        done = await app.enqueue("note", {"text": "done"})
        await app.result(done.id, timeout=PATIENCE_S)
        held = await app.enqueue("hold", {"text": "held"}, unique=True)
        await eventually(lambda: running(app, held.id))
        await app.enqueue("note", {"text": "later"}, delay="1h")
        await app.enqueue("note", {"text": "waiting"}, queue="unserved")
        await app.enqueue("note", {"text": LARGE}, queue="unserved")
        dump = str(tmp_path / "dump")
        await run("pg_dump", "--format=custom", f"--file={dump}", database_url)
        await run("pg_restore", "--exit-on-error", f"--dbname={fresh_database_url}", dump)
        go_on.set()
    return fresh_database_url


async def test_restored_dump_continues_all_work(restored: str) -> None:
    ran: list[str] = []
    go_on = asyncio.Event()
    go_on.set()
    app = app_for(restored, ran, go_on)
    async with app:
        found = {job.args.get("text"): job for job in await jobs(app)}
        assert {text: job.state for text, job in found.items() if text in ("done", "held", "later", "waiting")} == {
            "done": State.COMPLETED,
            "held": State.RUNNING,
            "later": State.SCHEDULED,
            "waiting": State.AVAILABLE,
        }
        assert found["done"].result == "done"
        twin = await app.enqueue("hold", {"text": "held"}, unique=True)
        assert (twin.id, twin.is_new) == (found["held"].id, False)
        async with working(app, ["default", "unserved"], maintenance=True):
            assert await app.result(found["waiting"].id, timeout=PATIENCE_S) == "waiting"
            assert (
                await app.result(found["held"].id, timeout=PATIENCE_S) == "held"
            )  # its worker uses the other database
            new = await app.enqueue("note", {"text": "new"})
            assert new.id > max(job.id for job in found.values())
            assert await app.result(new.id, timeout=PATIENCE_S) == "new"
            assert await app.result(found[LARGE].id, timeout=PATIENCE_S) == LARGE
        assert sorted(ran) == ["held", "new", "waiting", LARGE]


async def jobs(app: App) -> list[Job]:
    rows = await app.pool.fetch("SELECT id FROM awa.jobs")
    return [await app.get(row["id"]) for row in rows]
