"""The SQL files: each can be prepared, is called from one place, and has a header that names its values."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

import awa_py.store
from awa_py import NewJob, State
from awa_py.db import migrations
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.db.schema import Schema
from awa_py.maintenance.task import run_once
from awa_py.maintenance.tasks import all_tasks
from awa_py.observability.metrics import Metrics
from awa_py.store import election, finish, heartbeat, jobs, queues, schedules
from awa_py.store.session import statement
from tests.support import OWNER, QUICK, another_session, claim, look, new_owner, put, seconds

pytestmark = pytest.mark.integration

NAMES = sorted(
    file.name.removesuffix(".sql") for file in files("awa_py.store.sql").iterdir() if file.name.endswith(".sql")
)
SOURCES = {path.name: path.read_text() for path in Path(awa_py.store.__file__).parent.glob("*.py")}


def test_statement_files_are_found() -> None:
    assert len(NAMES) > 40
    assert "claim_jobs" in NAMES


@pytest.mark.parametrize("settings", [{}, STABLE_PLAN_SETTINGS], ids=["default", "steady"])
async def test_every_statement_prepares(database: Database, settings: dict[str, str]) -> None:
    async with another_session(database, **settings) as session:
        for name in NAMES:
            await session.connection.prepare(statement(name, session.schema))


async def test_every_statement_prepares_in_a_schema_of_another_name(fresh_database_url: str) -> None:
    database = Database(fresh_database_url, Schema("My Jobs"))
    await migrations.migrate(database)
    async with another_session(database) as session:
        for name in NAMES:
            text = statement(name, database.schema)
            assert not re.search(r"\bawa\.\w", text), name
            await session.connection.prepare(text)


async def test_job_passes_all_states_in_a_schema_of_another_name(fresh_database_url: str) -> None:
    database = Database(fresh_database_url, Schema("My Jobs"))
    await migrations.migrate(database)
    # Nothing may depend on the search path.
    async with another_session(database, search_path="pg_catalog") as session:
        first, second = await put(session, NewJob(kind="work"), NewJob(kind="work", delay=seconds(60)))
        (row,) = await claim(session)
        assert await finish.fail_attempts(session, OWNER, [first], [row["lease"]], ["boom"], [seconds(0)])
        assert await jobs.cancel_jobs(session, [second]) == {second: "cancelled"}
        for task in all_tasks(QUICK, [], Metrics()):
            await run_once(task, session)
        (row,) = await claim(session)
        assert row["id"] == first
        await finish.complete_jobs(session, OWNER, [first], [row["lease"]], [None], keep=True)
        assert (await look(session, first)).state is State.COMPLETED
        assert await jobs.retry_jobs(session, [first, second]) == {first, second}
        unique = await session.connection.fetchval(
            """SELECT "My Jobs".enqueue('work', unique_key => 'k')""",
        )
        assert await session.connection.fetchval("""SELECT "My Jobs".enqueue('work', unique_key => 'k')""") == unique
        worker = heartbeat.WorkerInfo(
            id=new_owner(), hostname="h", pid=1, version="1", queues=("default",), kinds=("work",), concurrency=1
        )
        await heartbeat.heartbeat_worker(session, worker)
        await queues.set_queue(session, "default", {"staleness": seconds(9)})
        assert (await queues.list_queues(session, staleness=seconds(9)))[0].workers == 1
        assert await election.try_lead(session)
        assert await election.record_election(session, worker_id=worker.id, hostname="h", pid=1) == 1
        leader = await election.get_leader(session)
        assert leader is not None
        assert leader.worker_id == worker.id
        assert await schedules.list_schedules(session) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_statement_is_called_from_one_place(name: str) -> None:
    calls = [
        source
        for source, text in SOURCES.items()
        for _ in re.finditer(rf'session\.fetch(?:row|val)?\(\s*"{name}"', text)
    ]
    assert len(calls) == 1, calls


def test_every_called_statement_exists() -> None:
    named = {name for text in SOURCES.values() for name in re.findall(r'session\.fetch(?:row|val)?\(\s*"(\w+)"', text)}
    assert named == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_header_describes_the_statement_and_its_values(name: str) -> None:
    text = (files("awa_py.store.sql") / f"{name}.sql").read_text()
    lines = text.splitlines()
    header = [line for line in lines if line.startswith("--")]
    body = "\n".join(line for line in lines if not line.startswith("--"))
    assert lines[0].startswith("-- ")
    assert lines[0] != "-- "
    used = set(re.findall(r"\$\d+", body))
    named = set(re.findall(r"\$\d+", "\n".join(header)))
    assert used == named
    assert used == {f"${n}" for n in range(1, len(used) + 1)}


@pytest.mark.parametrize("name", NAMES)
def test_every_file_has_one_statement(name: str) -> None:
    assert ";" not in re.sub(r"--.*", "", (files("awa_py.store.sql") / f"{name}.sql").read_text())
