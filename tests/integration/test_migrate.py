"""The schema: from nothing, again, at once, elsewhere, by script, and never half."""

import asyncio
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from awa_py import App, DatabaseUnavailable, SchemaError, SchemaMissing, SchemaTooNew
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.migrations import Migration, all_migrations
from awa_py.db.schema import Schema
from awa_py.db.types import Connection
from tests.support import another_session, count

pytestmark = pytest.mark.integration

ALL = [migration.version for migration in all_migrations()]

# Everything that makes up a schema, in words that do not depend on object ids.
CATALOG = {
    "columns": """
        SELECT relname, attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid), attnum
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid JOIN pg_namespace n ON n.oid = relnamespace
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE nspname = $1 AND attnum > 0 AND NOT attisdropped""",
    "indexes": """
        SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = $1""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(pg_constraint.oid)
        FROM pg_constraint JOIN pg_namespace n ON n.oid = connamespace WHERE nspname = $1""",
    "functions": """
        SELECT proname, pg_get_functiondef(pg_proc.oid)
        FROM pg_proc JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname = $1""",
    "relations": """
        SELECT relname, relkind::text, reloptions, relispartition, pg_get_expr(relpartbound, pg_class.oid),
               CASE WHEN relkind = 'v' THEN pg_get_viewdef(pg_class.oid) END
        FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = $1""",
}


async def catalog(connection: Connection, schema: str = "awa") -> dict[str, list[Any]]:
    found = {}
    for part, query in CATALOG.items():
        rows = [tuple(row) for row in await connection.fetch(query, schema)]
        assert rows, part
        found[part] = sorted(rows, key=repr)
    return found


@pytest.fixture
def fresh(fresh_database_url: str) -> Database:
    return Database(fresh_database_url, Schema())


async def test_from_nothing_everything_is_applied(fresh: Database) -> None:
    assert [migration.version for migration in await migrations.migrate(fresh)] == ALL
    steps = await migrations.status(fresh)
    assert [step.version for step in steps] == ALL
    assert all(step.applied_at is not None for step in steps)
    async with another_session(fresh) as session:
        await migrations.check(session.connection, fresh.schema)


async def test_before_that_the_status_says_so(fresh: Database) -> None:
    assert [(step.version, step.applied_at) for step in await migrations.status(fresh)] == [(n, None) for n in ALL]


async def test_a_second_time_changes_nothing(fresh: Database) -> None:
    await migrations.migrate(fresh)
    async with another_session(fresh) as session:
        before = await catalog(session.connection)
        assert await migrations.migrate(fresh) == []
        assert await catalog(session.connection) == before


async def test_ten_at_once_apply_each_migration_once(fresh: Database) -> None:
    applied = await asyncio.gather(*(migrations.migrate(fresh) for _ in range(10)))
    assert sorted(migration.version for done in applied for migration in done) == ALL
    async with another_session(fresh) as session:
        assert await count(session.connection, "SELECT count(*) FROM awa.schema_version") == len(ALL)


async def test_two_schemas_live_beside_each_other(fresh: Database) -> None:
    other = Database(fresh.url, Schema("My Jobs"))
    await migrations.migrate(fresh)
    assert [migration.version for migration in await migrations.migrate(other)] == ALL
    async with another_session(other) as session:
        here, there = await catalog(session.connection), await catalog(session.connection, "My Jobs")
        assert [row[:2] for row in there["columns"]] == [row[:2] for row in here["columns"]]
        await session.connection.execute("DROP SCHEMA awa CASCADE")  # and do not lean on each other
        assert await session.connection.fetchval("""SELECT "My Jobs".enqueue('work')""") == 1


@pytest.mark.parametrize("name", ["", "pg_mine", 'a"b', "a.b", "a'b", "x" * 51, "a$b", "a\\b", "a%b"])
def test_a_name_that_cannot_be_a_schema_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="schema"):
        Schema(name)


async def test_an_empty_schema_that_is_there_already_is_used(fresh: Database) -> None:
    async with another_session(fresh) as session:
        await session.connection.execute("CREATE SCHEMA awa")
    assert [migration.version for migration in await migrations.migrate(fresh)] == ALL


async def test_a_newer_database_is_refused(database: Database) -> None:
    async with another_session(database) as session:
        await session.connection.execute("INSERT INTO awa.schema_version (version, name) VALUES (9999, 'future')")
        says = f"schema 'awa' has version 9999, this program knows {ALL[-1]}: upgrade awa"
        for work in (
            migrations.migrate(database),
            migrations.status(database),
            migrations.check(session.connection, database.schema),
        ):
            with pytest.raises(SchemaTooNew, match=says):
                await work


async def test_a_missing_schema_says_what_to_do(fresh: Database) -> None:
    async with another_session(fresh) as session:
        with pytest.raises(SchemaMissing, match="no schema 'awa' of awa: run `awa migrate`"):
            await migrations.check(session.connection, fresh.schema)


async def test_an_older_schema_says_what_to_do_and_is_brought_up_to_date(
    fresh: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrations.migrate(fresh)
    newer = [*all_migrations(), Migration(version=9000, name="more", sql="CREATE TABLE awa.more (x int);")]
    monkeypatch.setattr("awa_py.db.migrations.all_migrations", lambda: newer)
    async with another_session(fresh) as session:
        with pytest.raises(SchemaMissing, match="this program needs 9000: run `awa migrate`"):
            await migrations.check(session.connection, fresh.schema)
        assert [migration.name for migration in await migrations.migrate(fresh)] == ["more"]
        await migrations.check(session.connection, fresh.schema)


async def test_a_migration_that_fails_leaves_nothing_behind(fresh: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [*all_migrations(), Migration(version=9000, name="broken", sql="SELECT 1 / 0;")]
    monkeypatch.setattr("awa_py.db.migrations.all_migrations", lambda: broken)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrations.migrate(fresh)
    async with another_session(fresh) as session:
        assert await count(session.connection, "SELECT count(*) FROM pg_namespace WHERE nspname = 'awa'") == 0


async def test_no_superuser_is_needed(fresh: Database) -> None:
    async with another_session(fresh) as session:
        name = await session.connection.fetchval("SELECT current_database()")
        role = f"plain_{name}"
        await session.connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret' NOSUPERUSER")
        await session.connection.execute(f"GRANT CREATE ON DATABASE {name} TO {role}")
    try:
        plain = Database(with_user(fresh.url, role, "secret"), Schema())
        assert [migration.version for migration in await migrations.migrate(plain)] == ALL
        async with App(plain.url) as app:
            assert (await app.enqueue("work", unique=True)).is_new
    finally:
        async with another_session(fresh) as session:
            await session.connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


async def test_without_the_right_to_create_it_says_so(fresh: Database) -> None:
    async with another_session(fresh) as session:
        name = await session.connection.fetchval("SELECT current_database()")
        role = f"poor_{name}"
        await session.connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret' NOSUPERUSER")
    try:
        with pytest.raises(SchemaError, match="cannot migrate schema 'awa': permission denied"):
            await migrations.migrate(Database(with_user(fresh.url, role, "secret"), Schema()))
    finally:
        async with another_session(fresh) as session:
            await session.connection.execute(f"DROP ROLE {role}")


async def test_the_script_gives_the_same_schema(fresh: Database, database: Database) -> None:
    async with another_session(fresh) as scripted, another_session(database) as migrated:
        await scripted.connection.execute(migrations.script(fresh.schema))
        assert await catalog(scripted.connection) == await catalog(migrated.connection)
        await migrations.check(scripted.connection, fresh.schema)


async def test_the_script_takes_another_name(fresh: Database) -> None:
    async with another_session(fresh) as session:
        await session.connection.execute(migrations.script(Schema("My Jobs")))
        await migrations.check(session.connection, Schema("My Jobs"))


async def test_a_database_that_cannot_be_reached_is_a_sentence(fresh: Database) -> None:
    wrong = with_user(fresh.url, "nobody_at_all", "wrong")
    with pytest.raises(DatabaseUnavailable, match="cannot connect to the database") as failure:
        await migrations.migrate(Database(wrong, Schema()))
    assert "wrong" not in str(failure.value)


def with_user(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{host}"))


def test_the_files_are_numbered_without_gaps() -> None:
    assert list(range(1, len(ALL) + 1)) == ALL
