"""The rights of each role, in the catalog and in use, now and after an upgrade."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from awa_py import App, Context, NotPermitted, Retry, SchemaError, State
from awa_py.connections import Connection
from awa_py.db import migrations
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.db.migrations import Migration, all_migrations
from awa_py.enqueue.enqueuer import COPY_MIN_JOBS
from awa_py.maintenance.cleanup import DAYS_AHEAD
from awa_py.maintenance.task import run_once
from awa_py.maintenance.tasks import all_tasks
from awa_py.observability.metrics import Metrics
from awa_py.store import election
from tests.roles import Installation, installation
from tests.support import QUICK, another_session, count, eventually, insert_running, working

pytestmark = pytest.mark.integration

ROWS = {"SELECT", "INSERT", "UPDATE", "DELETE"}
TABLE_RIGHTS = (*sorted(ROWS), "TRUNCATE", "REFERENCES", "TRIGGER")
SEQUENCE_RIGHTS = ("USAGE", "SELECT", "UPDATE")


@pytest.fixture
async def empty(fresh_database_url: str) -> AsyncIterator[Installation]:
    async with installation(fresh_database_url) as installed:
        yield installed


@pytest.fixture
async def installed(empty: Installation) -> Installation:
    await migrations.migrate(empty.database, roles=True)
    return empty


async def rights(installed: Installation, role: str) -> dict[str, set[str]]:
    """Return the rights of a role on each object of the schema, so that new objects are checked too."""
    async with another_session(installed.database) as session:
        relations = await session.connection.fetch(
            """SELECT relname, relkind::text AS kind, oid FROM pg_class
               WHERE relnamespace = $1::text::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f', 'S')""",
            installed.name,
        )
        routines = await session.connection.fetch(
            "SELECT proname, oid FROM pg_proc WHERE pronamespace = $1::text::regnamespace", installed.name
        )
        assert len(relations) > 20
        assert len(routines) >= 7
        fetchval = session.connection.fetchval
        found: dict[str, set[str]] = {}
        for name, kind, oid in relations:
            possible, type_ = (SEQUENCE_RIGHTS, "sequence") if kind == "S" else (TABLE_RIGHTS, "table")
            for right in possible:
                if await fetchval(f"SELECT has_{type_}_privilege($1, $2::oid, $3)", role, oid, right):
                    found.setdefault(name, set()).add(right)
            if kind != "S" and await fetchval(
                "SELECT has_any_column_privilege($1, $2::oid, 'SELECT, INSERT, UPDATE, REFERENCES')", role, oid
            ):
                assert found[name], f"{role} may do something with columns of {name}"
            found.setdefault(name, set())
        for name, oid in routines:
            allowed = await fetchval("SELECT has_function_privilege($1, $2::oid, 'EXECUTE')", role, oid)
            found[f"{name}()"] = {"EXECUTE"} if allowed else set()
        for right in ("USAGE", "CREATE"):
            if await fetchval("SELECT has_schema_privilege($1, $2, $3)", role, installed.name, right):
                found.setdefault("the schema", set()).add(right)
    return found


def assert_producer(found: dict[str, set[str]]) -> None:
    assert {name: had for name, had in found.items() if had} == {
        "the schema": {"USAGE"},
        "enqueue()": {"EXECUTE"},
        "enqueue_many()": {"EXECUTE"},
        "complete_jobs()": {"EXECUTE"},
        "signal()": {"EXECUTE"},
        "undeclared_kinds()": {"EXECUTE"},
        "schema_version": {"SELECT"},
    }


def assert_reader(found: dict[str, set[str]]) -> None:
    expected = {"the schema": {"USAGE"}}
    reading = (
        "children_have_ended",
        "get_jobs",
        "leader_lock_holders",
        "readable_duration",
        "readable_time",
        "running_of_queue",
        "running_with_key",
    )
    expected |= {f"{name}()": {"EXECUTE"} for name in reading}
    for name, had in found.items():
        assert had == expected.get(name, set() if name.endswith("()") else {"SELECT"}), name


SEQUENCES = ("claim_number", "job_id", "pos", "signals_id_seq")


def assert_worker(found: dict[str, set[str]], sequences: tuple[str, ...] = SEQUENCES) -> None:
    expected = {"the schema": {"USAGE"}, "schema_version": {"SELECT"}, "leader": {"SELECT", "UPDATE"}}
    expected |= {name: {"USAGE", "SELECT"} for name in sequences}
    for name, had in found.items():
        assert had == expected.get(name, {"EXECUTE"} if name.endswith("()") else ROWS), name


async def assert_owner_owns_everything(installed: Installation) -> None:
    async with another_session(installed.database) as session:
        owners = await session.connection.fetch(
            """SELECT pg_get_userbyid(relowner) AS owner, relname::text AS name FROM pg_class
               WHERE relnamespace = $1::oid
               UNION ALL SELECT pg_get_userbyid(proowner), proname FROM pg_proc WHERE pronamespace = $1::oid
               UNION ALL SELECT pg_get_userbyid(typowner), typname FROM pg_type WHERE typnamespace = $1::oid
               UNION ALL SELECT pg_get_userbyid(nspowner), nspname FROM pg_namespace WHERE oid = $1::oid""",
            await session.connection.fetchval("SELECT $1::text::regnamespace::oid", installed.name),
        )
    assert len(owners) > 50
    assert [row["name"] for row in owners if row["owner"] != f"{installed.name}_owner"] == []


async def assert_roles(installed: Installation) -> None:
    assert_producer(await rights(installed, f"{installed.name}_producer"))
    assert_reader(await rights(installed, f"{installed.name}_reader"))
    assert_worker(await rights(installed, f"{installed.name}_worker"))
    await assert_owner_owns_everything(installed)


async def test_each_role_has_exactly_its_rights(installed: Installation) -> None:
    await assert_roles(installed)
    stranger = await installed.login()
    async with another_session(stranger) as session:
        user = await session.connection.fetchval("SELECT current_user")
    assert not any((await rights(installed, user)).values())


async def test_second_migrate_with_roles_gives_the_same_rights(installed: Installation) -> None:
    await installed.execute(f'GRANT ALL ON "{installed.name}".dead TO {installed.name}_producer, PUBLIC')
    await migrations.migrate(installed.database, roles=True)
    await assert_roles(installed)


async def test_roles_script_gives_the_same_rights(empty: Installation) -> None:
    await migrations.migrate(empty.database)
    for _ in range(2):
        await empty.execute(migrations.roles_script(empty.database.schema))
        await assert_roles(empty)


async def test_functions_of_the_owner_have_a_fixed_search_path_and_no_public_access(empty: Installation) -> None:
    await migrations.migrate(empty.database)  # without roles
    async with another_session(empty.database) as session:
        definers = await session.connection.fetch(
            """SELECT proname, proconfig, EXISTS (SELECT FROM aclexplode(coalesce(proacl, acldefault('f', proowner)))
                                                  WHERE grantee = 0) AS for_all
               FROM pg_proc WHERE pronamespace = $1::text::regnamespace AND prosecdef""",
            empty.name,
        )
    expected = {"enqueue_many", "complete_jobs", "undeclared_kinds", "create_day_partitions", "drop_day_partitions"}
    expected |= {"signal", "deliver_signal"}
    assert {row["proname"] for row in definers} == expected
    for row in definers:
        assert "search_path=pg_catalog, pg_temp" in row["proconfig"], row["proname"]
        assert not row["for_all"], row["proname"]


async def test_functions_of_the_owner_ignore_the_callers_search_path(installed: Installation) -> None:
    """A function of the caller that is found first would run as the owner."""
    producer = await installed.login("producer")
    login = f"{installed.name}_producer_0"
    await installed.execute(f"CREATE SCHEMA trap; GRANT ALL ON SCHEMA trap TO {login}")
    async with another_session(producer, search_path="trap, pg_catalog") as session:
        await session.connection.execute(
            """CREATE FUNCTION trap.jsonb_to_recordset(jsonb) RETURNS SETOF record LANGUAGE plpgsql AS
               $$ BEGIN RAISE 'trapped as %', current_user; END $$;
               CREATE TEMP TABLE pg_class (x int)"""
        )
        assert await session.connection.fetchval(f'SELECT "{installed.name}".enqueue($1)', "work") == 1


# The producer.


async def test_producer_can_only_enqueue_in_sql(installed: Installation) -> None:
    producer = await installed.login("producer")
    schema = f'"{installed.name}"'
    async with another_session(producer) as session:
        assert await session.connection.fetchval(f"SELECT {schema}.enqueue('work', '{{\"a\": 1}}')") == 1
        assert (
            await session.connection.fetchval(f"SELECT {schema}.enqueue('work', delay => '1h', unique_key => 'k')") == 2
        )
        assert await session.connection.fetchval(f"SELECT {schema}.enqueue('work', unique_key => 'k')") == 2
        for forbidden in (
            f"SELECT args FROM {schema}.jobs",
            f"SELECT * FROM {schema}.ready",
            f"INSERT INTO {schema}.ready (kind) VALUES ('work')",
            f"DELETE FROM {schema}.ready",
            f"SELECT {schema}.drop_day_partitions('completed', now())",
            f"SELECT {schema}.acquire_unique_keys(NULL)",
            f"SELECT nextval('{schema}.job_id')",
            f"CREATE TABLE {schema}.mine ()",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await session.connection.execute(forbidden)


async def test_producer_enqueues_from_python_in_every_way(installed: Installation) -> None:
    producer = await installed.login("producer")
    app = App(producer.url, schema=installed.name)
    async with app:
        first = await app.enqueue("work", {"n": 1}, tags=["a"], metadata={"m": 1})
        assert (first.id, first.args, first.tags, first.metadata) == (1, {"n": 1}, ["a"], {"m": 1})
        together = await asyncio.gather(*(app.enqueue("work", {"n": n}) for n in range(20)))
        assert len({job.id for job in together}) == 20
        many = await app.enqueue_many([app.new("work", {"n": n}) for n in range(COPY_MIN_JOBS + 5)])
        assert [job.args["n"] for job in many] == list(range(COPY_MIN_JOBS + 5))
        later = await app.enqueue("work", delay="1h")
        assert later.state is State.SCHEDULED
        held = await app.enqueue("work", {"x": 1}, unique=True)
        again = await app.enqueue("work", {"x": 1}, unique=True)
        assert (again.id, again.is_new) == (held.id, False)
        async with app.pool.acquire() as own:
            taken_back = own.transaction()
            await taken_back.start()
            await app.enqueue("work", {"rolled_back": True}, connection=own)
            await taken_back.rollback()
            async with own.transaction():
                kept = await app.enqueue("work", {"x": 1}, unique=True, connection=own)
                await app.enqueue_many([app.new("work", {"kept": True})] * COPY_MIN_JOBS, connection=own)
                assert kept.id == held.id
        assert await app.signal(first, "go", {"by": "a producer"}, key="k")
        with pytest.raises(
            NotPermitted, match=f'permission denied for function get_jobs: .*"{installed.name}_reader" to read'
        ):
            await app.get(first.id)
    async with another_session(installed.database) as session:
        schema = f'"{installed.name}"'
        assert (
            await count(session.connection, f"SELECT count(*) FROM {schema}.ready")
            == 1 + 20 + COPY_MIN_JOBS + 5 + 1 + COPY_MIN_JOBS
        )
        assert await count(session.connection, f"SELECT count(*) FROM {schema}.jobs WHERE args ? 'rolled_back'") == 0


async def test_error_for_a_login_without_role_names_the_role(installed: Installation) -> None:
    stranger = await installed.login()
    with pytest.raises(NotPermitted, match=f'schema .*"{installed.name}_producer" to enqueue'):
        async with App(stranger.url, schema=installed.name):
            pass
    async with App(stranger.url, schema=installed.name).unchecked() as app:
        for enqueueing in (app.enqueue("work"), app.enqueue("work", unique=True), app.enqueue_many([app.new("work")])):
            with pytest.raises(NotPermitted, match=f'schema .*"{installed.name}_producer" to enqueue'):
                await enqueueing


async def test_login_with_table_rights_inserts_directly(installed: Installation) -> None:
    worker = await installed.login("worker")
    app = App(worker.url, schema=installed.name)

    @app.job
    async def work() -> None: ...

    async with app, app.pool.acquire() as own:
        await installed.execute(
            f'REVOKE EXECUTE ON FUNCTION "{installed.name}".enqueue_many FROM {installed.name}_worker'
        )
        await app.enqueue("work", connection=own)
        await app.enqueue("work")
        assert len(await app.enqueue_many([app.new("work")] * COPY_MIN_JOBS)) == COPY_MIN_JOBS


# The reader.


async def test_reader_reads_everything_and_changes_nothing(installed: Installation) -> None:
    reader = await installed.login("reader")
    async with App(installed.database.url, schema=installed.name) as app:
        job = await app.enqueue("work", {"n": 1})
    async with App(reader.url, schema=installed.name) as app:
        assert (await app.get(job.id)).args == {"n": 1}
        assert await app.explain(job.id)
        for change in (app.cancel(job.id), app.retry(job.id), app.delete(job.id), app.enqueue("work")):
            with pytest.raises(NotPermitted, match="to run jobs or to make changes"):
                await change
        with pytest.raises(NotPermitted, match="permission denied for table"):
            await app.work(until_idle=True)


# The worker.


async def test_worker_role_suffices_for_worker_and_leader(installed: Installation) -> None:
    worker_database = await installed.login("worker")
    app = App(worker_database.url, schema=installed.name, settings=QUICK)
    schema = f'"{installed.name}"'

    @app.job
    async def parent(ctx: Context) -> str:
        ctx.progress(0.5, "halfway")
        await app.enqueue("child", delay="100ms")
        return "done"

    @app.job
    async def child() -> None: ...

    @app.job(max_attempts=2)
    async def flaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Retry(after="100ms")

    @app.job(max_attempts=1)
    async def broken() -> None:
        raise ValueError("it broke")

    @app.cron("* * * * * *", name="tick")
    @app.job
    async def tick() -> None: ...

    async with another_session(installed.database) as admin:
        await insert_running(admin, kind="child", silent_s=3600)  # its worker is dead
        await create_old_partition(admin.connection, schema)
        await admin.connection.execute(f"DROP TABLE {schema}.{await partition(admin.connection, DAYS_AHEAD)}")
        async with app, working(app, maintenance=True):
            jobs = await app.enqueue_many([app.new(kind) for kind in ("parent", "flaky", "broken", "child")])
            await app.enqueue("child", unique="1h")
            results = await asyncio.gather(*(app.result(job.id, timeout="30s") for job in jobs), return_exceptions=True)
            assert results[0] == "done"
            assert results[1] is None
            assert "it broke" in str(results[2])
            await eventually(lambda: has_completed(admin.connection, schema, "tick"))
            await eventually(lambda: has_completed(admin.connection, schema, "child", 4))
            assert await partition(admin.connection, DAYS_AHEAD)
            await eventually(lambda: old_partition_is_gone(admin.connection, schema))
            leader = await election.get_leader(admin)
            assert leader is not None
    assert_worker(await rights(installed, f"{installed.name}_worker"))  # including those on the new partition
    assert_reader(await rights(installed, f"{installed.name}_reader"))
    await assert_owner_owns_everything(installed)


async def test_worker_and_producer_roles_suffice_for_a_durable_job(installed: Installation) -> None:
    worker, producer = await installed.login("worker"), await installed.login("producer")
    app = App(worker.url, schema=installed.name, settings=QUICK)

    async def book(connection: Connection) -> int:
        return int(await connection.fetchval("SELECT 7"))

    @app.job
    async def durable(ctx: Context) -> None:
        await ctx.sleep("10ms")
        booked = await ctx.transact("book", book)
        signal = await ctx.wait_signal("go", str)
        async with ctx.transaction():
            ctx.complete([booked, signal and signal.data])

    async with app, App(producer.url, schema=installed.name) as sender, working(app):
        job = await sender.enqueue("durable")
        await eventually(lambda: is_waiting(app, job.id))
        assert await sender.signal(job, "go", "from a producer")
        assert await app.result(job.id, timeout="30s") == [7, "from a producer"]


async def is_waiting(app: App, job_id: int) -> bool:
    return (await app.get(job_id)).state is State.WAITING


async def test_worker_role_suffices_for_every_maintenance_task(installed: Installation) -> None:
    worker = await installed.login("worker")
    async with another_session(worker, **STABLE_PLAN_SETTINGS) as session:
        for task in all_tasks(QUICK, [], Metrics()):
            await run_once(task, session)


async def test_candidate_of_the_same_login_terminates_a_frozen_leader(installed: Installation) -> None:
    worker = await installed.login("worker")
    async with another_session(worker) as first, another_session(worker) as second:
        assert await election.try_lead(first)
        assert not await election.try_lead(second)
        # PostgreSQL lets a login end its own sessions: membership in the role is enough.
        await eventually(lambda: election.terminate_frozen_leader(second, silence=timedelta(0)))
        await eventually(lambda: election.try_lead(second))


async def test_worker_role_cannot_change_tables(installed: Installation) -> None:
    worker = await installed.login("worker")
    schema = f'"{installed.name}"'
    async with another_session(worker) as session:
        for forbidden in (
            f"DROP TABLE {schema}.dead",
            f"TRUNCATE {schema}.dead",
            f"ALTER TABLE {schema}.dead ADD x int",
            f"CREATE TABLE {schema}.mine ()",
            f"UPDATE {schema}.schema_version SET version = 1",
            f"DELETE FROM {schema}.leader",
            f"CREATE OR REPLACE FUNCTION {schema}.wake(text[], timestamptz) RETURNS void LANGUAGE sql AS ''",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await session.connection.execute(forbidden)


# Upgrades.

NEWER = Migration(
    version=9000,
    name="more",
    sql="""CREATE TABLE awa.more (id bigserial PRIMARY KEY);
           CREATE FUNCTION awa.more_of_it() RETURNS int LANGUAGE sql AS 'SELECT 1';""",
)


async def test_migration_grants_rights_on_new_objects(installed: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("awa_py.db.migrations.all_migrations", lambda: [*all_migrations(), NEWER])
    member = await installed.login("owner")  # another login than the one that migrated first
    assert await migrations.migrate(member) == [NEWER]
    assert_producer(await rights(installed, f"{installed.name}_producer"))
    assert_reader(await rights(installed, f"{installed.name}_reader"))
    assert_worker(await rights(installed, f"{installed.name}_worker"), (*SEQUENCES, "more_id_seq"))
    await assert_owner_owns_everything(installed)


async def test_error_for_a_login_that_is_no_member_names_the_owner(
    installed: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("awa_py.db.migrations.all_migrations", lambda: [*all_migrations(), NEWER])
    worker = await installed.login("worker")
    with pytest.raises(SchemaError, match=f"belongs to {installed.name}_owner: .* GRANT {installed.name}_owner TO"):
        await migrations.migrate(worker)


async def test_roles_of_another_database_get_no_rights(installed: Installation, database_url: str) -> None:
    """Roles belong to the whole server: another database with a schema of the same name has the same roles."""
    here = Database(database_url, installed.database.schema)
    await migrations.migrate(here)
    async with another_session(here) as session:
        for role in ("worker", "producer", "reader"):
            assert not await session.connection.fetchval(
                "SELECT has_schema_privilege($1, $2, 'USAGE')", f"{installed.name}_{role}", installed.name
            )


async def test_roles_need_createrole_but_no_superuser(empty: Installation) -> None:
    deploy, login = await empty.login(), f"{empty.name}_stranger_0"
    async with another_session(empty.database) as session:
        name = await session.connection.fetchval("SELECT current_database()")
    await empty.execute(f"GRANT CREATE ON DATABASE {name} TO {login}")
    await migrations.migrate(deploy)
    message = r"cannot create the roles of schema .*permission denied.* CREATEROLE; `awa migrate --roles --sql` prints"
    with pytest.raises(SchemaError, match=message):
        await migrations.migrate(deploy, roles=True)
    await empty.execute(f"ALTER ROLE {login} CREATEROLE")
    for _ in range(2):
        await migrations.migrate(deploy, roles=True)
        await assert_roles(empty)
    async with App(deploy.url, schema=empty.name) as app:  # the login keeps its rights
        assert (await app.enqueue("work")).id == 1


async def test_rights_granted_by_hand_suffice_to_enqueue(empty: Installation) -> None:
    await migrations.migrate(empty.database)
    by_hand = await empty.login()
    await empty.execute(
        f"""GRANT USAGE ON SCHEMA {empty.name} TO {empty.name}_stranger_0;
            GRANT EXECUTE ON FUNCTION {empty.name}.enqueue_many TO {empty.name}_stranger_0"""
    )
    async with another_session(by_hand) as session:
        assert await session.connection.fetchval(f"SELECT {empty.name}.enqueue('work')") == 1


async def has_completed(connection: Connection, schema: str, kind: str, at_least: int = 1) -> bool:
    found = await count(connection, f"SELECT count(*) FROM {schema}.completed WHERE kind = $1", kind)
    return found >= at_least


async def partition(connection: Connection, days: int) -> str | None:
    """Return the name of the partition of a day, counted from today, if it exists."""
    name: str | None = await connection.fetchval(
        """SELECT relname FROM pg_class
           WHERE relname = 'completed_' || to_char((now() AT TIME ZONE 'UTC')::date + $1::int, 'YYYYMMDD')""",
        days,
    )
    return name


async def create_old_partition(connection: Connection, schema: str) -> None:
    """Create a partition of a past day, as the owner."""
    owner = f"{schema.strip(chr(34))}_owner"
    await connection.execute(
        f"""SET ROLE {owner};
            CREATE TABLE {schema}.completed_20200101 PARTITION OF {schema}.completed
                FOR VALUES FROM ('2020-01-01 00:00+00') TO ('2020-01-02 00:00+00');
            RESET ROLE"""
    )


async def old_partition_is_gone(connection: Connection, schema: str) -> bool:
    return await connection.fetchval("SELECT to_regclass($1)", f"{schema}.completed_20200101") is None
