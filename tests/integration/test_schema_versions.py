"""Programs and schemas of different versions, and schemas that belong to another program."""

from importlib.metadata import version
from pathlib import Path

import pytest

from awa_py import App, SchemaError, SchemaForeign, SchemaTooNew
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.migrations import all_migrations
from awa_py.db.schema import Schema
from tests.support import add_version, another_session

pytestmark = pytest.mark.integration

ALL = [migration.version for migration in all_migrations()]


@pytest.fixture
def fresh(fresh_database_url: str) -> Database:
    return Database(fresh_database_url, Schema())


async def test_newer_schema_is_refused_unless_it_is_compatible(database: Database) -> None:
    async with another_session(database) as session:
        await add_version(session, 8000, compatible=True)
        await migrations.check(session.connection, database.schema)
        assert await migrations.migrate(database) == []
        await add_version(session, 8001, compatible=False)
        await add_version(session, 8002, compatible=True)
        message = (
            "schema 'awa' has version 8002 and needs a program that supports version 8001, "
            f"this one supports {ALL[-1]}: upgrade awa-py to 9.1 or newer"
        )
        for work in (
            migrations.migrate(database),
            migrations.installed_version(database),
            migrations.check(session.connection, database.schema),
        ):
            with pytest.raises(SchemaTooNew, match=message):
                await work
        assert [step.version for step in await migrations.status(database)] == [*ALL, 8000, 8001, 8002]


async def test_worker_runs_on_a_newer_compatible_schema(database: Database) -> None:
    async with another_session(database) as session:
        await add_version(session, 8000, compatible=True)
    app = App(database.url)

    @app.job
    async def work() -> str:
        return "done"

    async with app:
        job = await work.enqueue()
        await app.work(queues={"default": 1}, until_idle=True)
        assert await app.result(job.id) == "done"


async def test_program_does_not_set_the_rights_of_a_newer_schema(database: Database) -> None:
    async with another_session(database) as session:
        await add_version(session, 8000, compatible=True)
    with pytest.raises(SchemaTooNew, match=r"create the roles with awa-py 9.1 or newer"):
        await migrations.migrate(database, roles=True)


async def test_mark_of_a_migration_is_recorded(
    fresh: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0002_table.sql").write_text("-- compatible: yes\n\nCREATE TABLE awa.more (x int);\n")
    (tmp_path / "0003_tables").mkdir()
    (tmp_path / "0003_tables" / "1_first.sql").write_text("-- compatible: no\n\nDROP TABLE awa.more;\n")
    (tmp_path / "0003_tables" / "2_second.sql").write_text("CREATE TABLE awa.less (x int);\n")
    old = all_migrations()
    newer = [*old, *migrations.read_migrations(tmp_path)]
    async with another_session(fresh) as session:
        for known, may_run in ((newer[:-1], True), (newer, False)):
            with monkeypatch.context() as patched:
                patched.setattr("awa_py.db.migrations.all_migrations", lambda known=known: known)
                await migrations.migrate(fresh)
            if may_run:
                await migrations.check(session.connection, fresh.schema)
            else:
                with pytest.raises(SchemaTooNew, match=f"upgrade awa-py to {version('awa-py')} or newer"):
                    await migrations.check(session.connection, fresh.schema)
        assert await session.connection.fetchval("SELECT count(*) FROM awa.less") == 0


def test_migration_without_a_mark_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0002_table.sql").write_text("CREATE TABLE awa.more (x int);\n")
    with pytest.raises(SchemaError, match=r"0002_table.sql: its first line must be `-- compatible: yes` or `no`"):
        migrations.read_migrations(tmp_path)


FOREIGN = {
    "a table of versions with other columns": """
        CREATE TABLE awa.schema_version (version int PRIMARY KEY, description text NOT NULL, applied_at timestamptz);
        INSERT INTO awa.schema_version VALUES (48, 'Another queue')""",
    "tables without versions": "CREATE TABLE awa.jobs_hot (id bigint)",
    "a view": "CREATE VIEW awa.jobs AS SELECT 1 AS id",
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
async def test_schema_of_another_program_is_refused(fresh: Database, content: str) -> None:
    async with another_session(fresh) as session:
        await session.connection.execute(f"CREATE SCHEMA awa; {content}")
        for work in (
            migrations.migrate(fresh),
            migrations.status(fresh),
            migrations.check(session.connection, fresh.schema),
        ):
            with pytest.raises(SchemaForeign, match=r"'awa' of this database belongs to another program.*--schema"):
                await work
    assert [migration.version for migration in await migrations.migrate(Database(fresh.url, Schema("jobs")))] == ALL
