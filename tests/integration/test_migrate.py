"""Migrations: from an empty database, repeated, concurrent, in another schema, by script, and rolled back."""

import asyncio
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from awa_py import App, DatabaseUnavailable, SchemaError, SchemaMissing
from awa_py.connections import Connection
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.migrations import Migration, all_migrations
from awa_py.db.schema import Schema
from tests.support import another_session, count

pytestmark = pytest.mark.integration

ALL = [migration.version for migration in all_migrations()]

# All objects of a schema, described without object ids.
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


async def test_migrate_creates_the_schema(fresh: Database) -> None:
    assert [migration.version for migration in await migrations.migrate(fresh)] == ALL
    steps = await migrations.status(fresh)
    assert [step.version for step in steps] == ALL
    assert all(step.applied_at is not None for step in steps)
    async with another_session(fresh) as session:
        await migrations.check(session.connection, fresh.schema)


async def test_status_of_an_empty_database_lists_all_migrations_as_pending(fresh: Database) -> None:
    assert [(step.version, step.applied_at) for step in await migrations.status(fresh)] == [(n, None) for n in ALL]


async def test_second_migrate_changes_nothing(fresh: Database) -> None:
    await migrations.migrate(fresh)
    async with another_session(fresh) as session:
        before = await catalog(session.connection)
        assert await migrations.migrate(fresh) == []
        assert await catalog(session.connection) == before


async def test_ten_concurrent_migrates_apply_each_migration_once(fresh: Database) -> None:
    applied = await asyncio.gather(*(migrations.migrate(fresh) for _ in range(10)))
    assert sorted(migration.version for done in applied for migration in done) == ALL
    async with another_session(fresh) as session:
        assert await count(session.connection, "SELECT count(*) FROM awa.schema_version") == len(ALL)


async def test_two_schemas_in_one_database_are_independent(fresh: Database) -> None:
    other = Database(fresh.url, Schema("My Jobs"))
    await migrations.migrate(fresh)
    assert [migration.version for migration in await migrations.migrate(other)] == ALL
    async with another_session(other) as session:
        here, there = await catalog(session.connection), await catalog(session.connection, "My Jobs")
        assert [row[:2] for row in there["columns"]] == [row[:2] for row in here["columns"]]
        await session.connection.execute("DROP SCHEMA awa CASCADE")  # the other schema does not depend on it
        assert await session.connection.fetchval("""SELECT "My Jobs".enqueue('work')""") == 1


@pytest.mark.parametrize("name", ["", "pg_mine", 'a"b', "a.b", "a'b", "x" * 51, "a$b", "a\\b", "a%b"])
def test_invalid_schema_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="schema"):
        Schema(name)


async def test_existing_empty_schema_is_used(fresh: Database) -> None:
    async with another_session(fresh) as session:
        await session.connection.execute("CREATE SCHEMA awa")
    assert [migration.version for migration in await migrations.migrate(fresh)] == ALL


async def test_error_for_a_missing_schema_says_what_to_do(fresh: Database) -> None:
    async with another_session(fresh) as session:
        with pytest.raises(SchemaMissing, match="no schema 'awa' of awa: run `awa migrate`"):
            await migrations.check(session.connection, fresh.schema)


async def test_older_schema_is_refused_until_it_is_migrated(fresh: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await migrations.migrate(fresh)
    newer = [*all_migrations(), Migration(version=9000, name="more", sql="CREATE TABLE awa.more (x int);")]
    monkeypatch.setattr("awa_py.db.migrations.all_migrations", lambda: newer)
    async with another_session(fresh) as session:
        with pytest.raises(SchemaMissing, match="this program needs 9000: run `awa migrate`"):
            await migrations.check(session.connection, fresh.schema)
        assert [migration.name for migration in await migrations.migrate(fresh)] == ["more"]
        await migrations.check(session.connection, fresh.schema)


async def test_failed_migration_is_rolled_back(fresh: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [*all_migrations(), Migration(version=9000, name="broken", sql="SELECT 1 / 0;")]
    monkeypatch.setattr("awa_py.db.migrations.all_migrations", lambda: broken)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrations.migrate(fresh)
    async with another_session(fresh) as session:
        assert await count(session.connection, "SELECT count(*) FROM pg_namespace WHERE nspname = 'awa'") == 0


async def test_migrate_needs_no_superuser(fresh: Database) -> None:
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


async def test_error_for_a_missing_right_names_it(fresh: Database) -> None:
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


async def test_script_creates_the_same_schema(fresh: Database, database: Database) -> None:
    async with another_session(fresh) as scripted, another_session(database) as migrated:
        await scripted.connection.execute(migrations.script(fresh.schema))
        assert await catalog(scripted.connection) == await catalog(migrated.connection)
        await migrations.check(scripted.connection, fresh.schema)


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program have three versions of the schema."""
    more = [Migration(version=n, name=f"more{n}", sql=f"CREATE TABLE awa.more{n} (x int);") for n in (2, 3)]
    found = [*all_migrations(), *more]
    monkeypatch.setattr("awa_py.db.migrations.all_migrations", lambda: found)


@pytest.mark.usefixtures("three")
async def test_scripts_lead_from_version_to_version(fresh: Database) -> None:
    async with another_session(fresh) as session:
        for start, end in ((0, 1), (1, 3)):
            await session.connection.execute(migrations.script(fresh.schema, from_version=start, to_version=end))
            assert await migrations.installed_version(fresh) == end
    assert migrations.script(fresh.schema, from_version=3) == ""
    assert await migrations.migrate(fresh) == []


@pytest.mark.usefixtures("three")
async def test_script_for_another_version_changes_nothing(fresh: Database) -> None:
    async with another_session(fresh) as session:
        await session.connection.execute(migrations.script(fresh.schema, to_version=1))
        for start in (2, 0):
            with pytest.raises(asyncpg.PostgresError):
                await session.connection.execute(migrations.script(fresh.schema, from_version=start))
            await session.connection.execute("ROLLBACK")
        with pytest.raises(asyncpg.RaiseError, match="is for version 2 of the schema, which has version 1"):
            await session.connection.execute(migrations.script(fresh.schema, from_version=2))
        await session.connection.execute("ROLLBACK")
    assert await migrations.installed_version(fresh) == 1


async def test_script_for_another_schema_name_works(fresh: Database) -> None:
    async with another_session(fresh) as session:
        await session.connection.execute(migrations.script(Schema("My Jobs")))
        await migrations.check(session.connection, Schema("My Jobs"))


async def test_error_for_an_unreachable_database_hides_the_password(fresh: Database) -> None:
    wrong = with_user(fresh.url, "nobody_at_all", "wrong")
    with pytest.raises(DatabaseUnavailable, match="cannot connect to the database") as failure:
        await migrations.migrate(Database(wrong, Schema()))
    assert "wrong" not in str(failure.value)


def with_user(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{host}"))


def test_migrations_are_numbered_without_gaps() -> None:
    assert list(range(1, len(ALL) + 1)) == ALL
