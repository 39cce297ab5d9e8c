"""Every login can hold advisory locks. That must not stop claims, and must show where it stops the leader."""

import re
from collections.abc import AsyncIterator
from importlib.resources import files

import pytest

from awa_py import App, SchemaError, State
from awa_py.connections import Connection
from awa_py.db import migrations
from awa_py.doctor.runner import run_checks
from awa_py.store import election
from awa_py.store.queues import set_queue
from tests.roles import Installation, installation
from tests.support import OWNER, QUICK, another_session, drain, eventually, sample, seconds, working

pytestmark = pytest.mark.integration


@pytest.fixture
async def installed(fresh_database_url: str) -> AsyncIterator[Installation]:
    async with installation(fresh_database_url) as installed:
        await migrations.migrate(installed.database, roles=True)
        yield installed


@pytest.fixture
async def stranger(installed: Installation) -> AsyncIterator[Connection]:
    """A session of a login without any right in the schema."""
    connection = await (await installed.login()).connect("stranger")
    yield connection
    await connection.close()


def test_no_statement_waits_for_an_advisory_lock() -> None:
    """Only `pg_try_…` functions, which do not wait."""
    texts = [
        *((file.name, file.read_text()) for file in files("awa_py.store.sql").iterdir() if file.name.endswith(".sql")),
        *((migration.name, migration.sql) for migration in migrations.all_migrations()),
    ]
    assert len(texts) > 40
    assert [name for name, text in texts if re.search(r"\bpg_advisory_(xact_)?lock", text)] == []


async def test_limited_claim_does_not_wait_for_a_foreign_session(installed: Installation, stranger: Connection) -> None:
    schema = installed.database.schema
    for scope in ("default", ""):  # of the queue, and of all concurrency keys
        await stranger.execute("SELECT pg_advisory_lock(hashtext($1 || ':limits'), hashtext($2))", schema.name, scope)
    app = App(installed.database.url, schema=schema.name, settings=QUICK)

    @app.job(concurrency_key="key")
    async def work() -> None: ...

    async with app:
        async with app.session() as session:
            await set_queue(session, "default", {"max_workers": 2})
        job = await work.enqueue()
        await drain(app)
        assert (await app.get(job)).state is State.COMPLETED


async def test_limited_claim_locks_rows_that_strangers_cannot_lock(installed: Installation) -> None:
    schema = installed.name
    for login in (await installed.login(), await installed.login("producer"), await installed.login("reader")):
        async with another_session(login) as session:
            for lock in (
                f"SELECT FROM {schema}.claim_locks FOR UPDATE",
                f"LOCK TABLE {schema}.claim_locks IN ROW SHARE MODE",
                f"LOCK TABLE {schema}.claim_locks IN EXCLUSIVE MODE",
            ):
                with pytest.raises(Exception, match="permission denied"):
                    await session.connection.execute(f"BEGIN; {lock}")
                await session.connection.execute("ROLLBACK")


class TestLeaderLock:
    async def test_foreign_holder_shows_in_readyz_metric_doctor_and_is_no_leader(
        self, installed: Installation, stranger: Connection
    ) -> None:
        database = installed.database
        key = election.lock_key(database.schema)
        await stranger.execute("SELECT pg_advisory_lock_shared($1)", key)
        app = App(database.url, schema=database.schema.name, settings=QUICK)
        async with app, working(app, maintenance=True) as worker, another_session(database) as session:
            await eventually(lambda: sample(worker, "awa_leader_lock_foreign_holders") == 1)
            (check,) = [check for check in worker.checks() if check.name == "leadership"]
            assert f"PID {stranger.get_server_pid()}" in str(check.problem)
            assert "pg_terminate_backend" in str(check.problem)
            assert await election.get_leader(session) is None
            (finding,) = [found for found in await run_checks(database, QUICK) if found.check == "leader"]
            assert (finding.level, finding.about) == ("problem", "lock")
            assert f"PID {stranger.get_server_pid()}" in finding.says
            await stranger.close()
            await eventually(lambda: election.get_leader(session))
            await eventually(lambda: sample(worker, "awa_leader_lock_foreign_holders") == 0)
            (check,) = [check for check in worker.checks() if check.name == "leadership"]
            assert check.problem is None

    async def test_former_leader_is_not_named_while_another_session_holds_the_lock(
        self, installed: Installation, stranger: Connection
    ) -> None:
        database = installed.database
        async with another_session(database) as former:
            assert await election.try_lead(former)
            await election.record_election(former, worker_id=OWNER, hostname="former", pid=1)
            async with another_session(database) as session:
                leader = await election.get_leader(session)
                assert leader is not None
                assert leader.hostname == "former"
                (holder,) = await election.list_lock_holders(session, silence=seconds(60))
                assert holder.leads
                await election.resign(former)
                assert await stranger.fetchval("SELECT pg_try_advisory_lock($1)", election.lock_key(database.schema))
                assert await election.get_leader(session) is None
                (holder,) = await election.list_lock_holders(session, silence=seconds(60))
                assert holder.pid == stranger.get_server_pid()
                assert not holder.leads


async def test_migration_gives_up_if_a_foreign_session_holds_its_lock(
    installed: Installation, stranger: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "LOCK_TIMEOUT", "100ms")
    await stranger.execute("SELECT pg_advisory_lock($1)", migrations.MIGRATION_LOCK)
    with pytest.raises(SchemaError, match=rf"PID {stranger.get_server_pid()}\).*pg_terminate_backend"):
        await migrations.migrate(installed.database)
    await stranger.close()
    assert await migrations.migrate(installed.database) == []
