"""`awa doctor` reports each problem, and no longer reports it after its own advice was followed."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

import pytest

from awa_py import DatabaseUnavailable, Settings
from awa_py.connections import Connection
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.migrations import Migration, all_migrations
from awa_py.db.schema import Schema
from awa_py.doctor import CHECKS, Finding, Level, context, run_checks
from awa_py.doctor.schema import snapshot
from awa_py.model.job import NO_TIMER
from awa_py.store import election, queues, schedules
from awa_py.store.checkpoints import wake_parents
from awa_py.store.heartbeat import WorkerInfo, heartbeat_worker
from awa_py.store.session import Session
from tests.integration.test_migrate import with_user
from tests.snapshot import FILE, take, text
from tests.support import (
    OWNER,
    add_version,
    ago,
    another_session,
    eventually,
    insert,
    insert_completed,
    insert_queue,
    insert_running,
    new_owner,
    put_one,
    seconds,
)

pytestmark = pytest.mark.integration

SECRET = "s3cr3t-0f-4-j0b"
ADVISED = re.compile(r"`(awa [^`]*)`")


async def findings(database: Database, *checks: str, **options: Any) -> list[Finding]:
    """Run these checks and return their findings, except those of level OK."""
    chosen = [check for check in CHECKS if f"{check.group}.{check.name}" in checks]
    assert len(chosen) == len(checks)
    found = await run_checks(database, Settings(), checks=chosen, **options)
    assert "The check failed:" not in str(found)
    return [each for each in found if each.level is not Level.OK]


async def only(database: Database, check: str, **options: Any) -> Finding:
    (finding,) = await findings(database, check, **options)
    assert finding.do
    return finding


async def fix(session: Session, finding: Finding) -> None:
    """Run the finding's advice as SQL."""
    assert finding.do is not None
    await session.connection.execute(finding.do)


async def serve(session: Session, *queue_names: str, kinds: tuple[str, ...] = ("work",)) -> None:
    """Register a worker that does nothing."""
    worker = WorkerInfo(
        id=new_owner(), hostname="h", pid=7, version="1", queues=queue_names, kinds=kinds, concurrency=1
    )
    await heartbeat_worker(session, worker)


class TestSchema:
    async def test_snapshot_matches_the_migrations(self, database: Database) -> None:
        assert text(await take(database)) == FILE.read_text(encoding="utf-8"), "the schema changed: run `make snapshot`"

    @pytest.mark.parametrize("name", ["awa", "My Jobs", "jobs", "default", "user"])
    async def test_fresh_schema_of_any_name_has_no_findings(self, fresh_database_url: str, name: str) -> None:
        database = Database(fresh_database_url, Schema(name))
        await migrations.migrate(database)
        assert await findings(database, "schema.version", "schema.objects", "schema.partitions") == []

    @pytest.mark.parametrize("name", ["ready_order", "scheduled_run_at", "completed_id", "listening_worker"])
    async def test_dropped_index_is_a_problem(self, session: Session, database: Database, name: str) -> None:
        await session.connection.execute(f"DROP INDEX awa.{name}")
        finding = await only(database, "schema.objects")
        assert (finding.level, finding.about) == (Level.PROBLEM, f"index {name}")
        assert finding.do is not None
        assert re.match(rf'CREATE (UNIQUE )?INDEX (CONCURRENTLY )?{name} ON "awa"\.', finding.do)
        await fix(session, finding)
        assert await findings(database, "schema.objects") == []

    async def test_dropped_index_is_found_in_a_schema_of_another_name(self, fresh_database_url: str) -> None:
        database = Database(fresh_database_url, Schema("My Jobs"))
        await migrations.migrate(database)
        async with another_session(database) as session:
            await session.connection.execute('DROP INDEX "My Jobs".ready_order')
            await fix(session, await only(database, "schema.objects"))
        assert await findings(database, "schema.objects") == []

    async def test_index_over_other_columns_is_a_problem(self, session: Session, database: Database) -> None:
        await session.connection.execute("DROP INDEX awa.ready_order; CREATE INDEX ready_order ON awa.ready (queue)")
        finding = await only(database, "schema.objects")
        assert (finding.level, finding.about) == (Level.PROBLEM, "index ready_order")
        assert "differs from the migrations" in finding.says

    async def test_invalid_index_is_a_problem(self, session: Session, database: Database) -> None:
        await session.connection.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'awa.dead_queue'::regclass"
        )
        finding = await only(database, "schema.objects")
        assert (finding.level, finding.about) == (Level.PROBLEM, "index dead_queue")
        await fix(session, finding)
        assert await findings(database, "schema.objects") == []

    @pytest.mark.parametrize(
        "name", ["ready.ready_pkey", "ready.priority_is_1_to_4", "listening.listening_worker_id_fkey"]
    )
    async def test_dropped_constraint_is_a_problem(self, session: Session, database: Database, name: str) -> None:
        table, _, constraint = name.partition(".")
        await session.connection.execute(f"ALTER TABLE awa.{table} DROP CONSTRAINT {constraint}")
        finding = await only(database, "schema.objects")
        assert (finding.level, finding.about) == (Level.PROBLEM, f"constraint {name}")
        await fix(session, finding)
        assert await findings(database, "schema.objects") == []

    @pytest.mark.parametrize(
        ("damage", "about"),
        [
            ("DROP TABLE awa.cron", "table cron"),
            ("ALTER TABLE awa.workers DROP COLUMN concurrency", "column workers.concurrency"),
            ("ALTER TABLE awa.leader ALTER pid TYPE bigint", "column leader.pid"),
            ("ALTER TABLE awa.ready ALTER pos DROP DEFAULT", "column ready.pos"),
            (
                "DROP FUNCTION awa.create_day_partitions",
                "function create_day_partitions(parent text, days_ahead integer)",
            ),
            (
                "CREATE OR REPLACE FUNCTION awa.wake(ready_queues text[], due timestamptz) RETURNS void LANGUAGE sql "
                "AS 'SELECT NULL::void'",
                "function wake(ready_queues text[], due timestamp with time zone)",
            ),
        ],
    )
    async def test_changed_or_missing_object_is_a_problem(
        self, session: Session, database: Database, damage: str, about: str
    ) -> None:
        await session.connection.execute(damage)
        finding = await only(database, "schema.objects")
        assert (finding.level, finding.about) == (Level.PROBLEM, about)
        assert "awa migrate --sql" in (finding.do or "")

    async def test_foreign_index_and_trigger_are_a_notice(self, session: Session, database: Database) -> None:
        await session.connection.execute("CREATE INDEX mine ON awa.running (heartbeat_at)")
        await session.connection.execute(
            "CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
        )
        await session.connection.execute(
            "CREATE TRIGGER mine AFTER INSERT ON awa.ready FOR EACH ROW EXECUTE FUNCTION public.nothing()"
        )
        found = await findings(database, "schema.objects")
        assert {(each.level, each.about) for each in found} == {
            (Level.NOTICE, "index mine"),
            (Level.NOTICE, "trigger ready.mine"),
        }

    async def test_missing_schema_is_a_problem(self, fresh_database_url: str) -> None:
        database = Database(fresh_database_url, Schema())
        found = await run_checks(database, Settings())
        (finding,) = [each for each in found if each.group == "schema"]
        assert finding.level is Level.PROBLEM
        assert finding.do is not None
        assert "awa migrate" in finding.do
        # Checks that do not need the schema still run.
        assert {each.check for each in found} > {"listen", "clock", "settings", "transactions"}
        await migrations.migrate(database)
        assert await findings(database, "schema.version") == []

    async def test_older_and_newer_schemas_are_problems(
        self, session: Session, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        newer = [*all_migrations(), Migration(version=9000, name="more", sql="SELECT 1;")]
        with monkeypatch.context() as patched:
            patched.setattr("awa_py.db.migrations.all_migrations", lambda: newer)
            finding = await only(database, "schema.version")
            assert (finding.level, finding.do) == (Level.PROBLEM, "`awa migrate`")
            assert "needs 9000" in finding.says
        await add_version(session, 9999, compatible=False)
        finding = await only(database, "schema.version")
        assert finding.level is Level.PROBLEM
        assert "has version 9999" in finding.says

    async def test_newer_compatible_schema_is_a_notice(self, session: Session, database: Database) -> None:
        await add_version(session, 9999, compatible=True)
        finding = await only(database, "schema.version")
        assert finding.level is Level.NOTICE
        assert "It has version 9999" in finding.says

    async def test_schema_of_another_program_is_a_problem(self, fresh_database_url: str) -> None:
        database = Database(fresh_database_url, Schema())
        async with another_session(database) as session:
            await session.connection.execute("CREATE SCHEMA awa CREATE TABLE jobs_hot (id bigint)")
        finding = await only(database, "schema.version")
        assert (finding.level, finding.says) == (Level.PROBLEM, "It belongs to another program.")
        assert finding.do is not None
        assert "--schema" in finding.do

    def test_snapshot_contains_the_claim_index(self) -> None:
        assert "ready_order" in snapshot()["index"]


class TestPartitions:
    async def partition(self, session: Session, days: int) -> str:
        query = "SELECT 'completed_' || to_char((now() AT TIME ZONE 'UTC')::date + $1::int, 'YYYYMMDD')"
        return str(await session.connection.fetchval(query, days))

    @pytest.mark.parametrize("days", [0, 1, 3])
    async def test_missing_partition_is_a_problem(self, session: Session, database: Database, days: int) -> None:
        name = await self.partition(session, days)
        await session.connection.execute(f"DROP TABLE awa.{name}")
        finding = await only(database, "schema.partitions")
        assert (finding.level, finding.about) == (Level.PROBLEM, f"partition {name}")
        await fix(session, finding)
        assert await findings(database, "schema.partitions") == []

    async def test_detached_partition_is_a_problem(self, session: Session, database: Database) -> None:
        name = await self.partition(session, 1)
        await session.connection.execute(f"ALTER TABLE awa.completed DETACH PARTITION awa.{name}")
        finding = await only(database, "schema.partitions")
        assert (finding.level, finding.about) == (Level.PROBLEM, f"partition {name}")
        await fix(session, finding)
        assert await findings(database, "schema.partitions") == []

    @pytest.mark.parametrize(("left", "level"), [(1, Level.PROBLEM), (4, Level.WARNING), (6, None)])
    async def test_few_partitions_ahead_have_a_level(
        self, session: Session, database: Database, left: int, level: Level | None
    ) -> None:
        for days in range(left + 1, 8):
            await session.connection.execute(f"DROP TABLE awa.{await self.partition(session, days)}")
        assert [each.level for each in await findings(database, "schema.partitions")] == ([level] if level else [])
        await session.connection.fetchval("SELECT awa.create_day_partitions('completed', 7)")
        assert await findings(database, "schema.partitions") == []

    async def test_jobs_in_the_default_partition_are_a_warning(self, session: Session, database: Database) -> None:
        await insert_completed(session, age_s=30 * 86_400)
        finding = await only(database, "schema.partitions")
        assert (finding.level, finding.about) == (Level.WARNING, "completed_default")
        await session.connection.execute("DELETE FROM awa.completed_default")
        assert await findings(database, "schema.partitions") == []

    async def test_missing_default_partition_is_a_problem(self, session: Session, database: Database) -> None:
        await session.connection.execute("DROP TABLE awa.completed_default")
        finding = await only(database, "schema.partitions")
        assert (finding.level, finding.about) == (Level.PROBLEM, "completed_default")
        await fix(session, finding)
        assert await findings(database, "schema.partitions") == []


class TestTransactions:
    async def test_idle_transaction_is_a_problem(self, session: Session, database: Database) -> None:
        async with another_session(database, "forgetful") as other:
            pid = other.connection.get_server_pid()
            await other.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await other.connection.fetchval(f"SELECT '{SECRET}'")
            long = seconds(0.05)
            finding = await eventually(lambda: self.problem(database, pid, long))
            assert re.search(r'from \S+ \("awa forgetful"\) has been idle in a transaction for \d+s', finding.says)
            assert "cannot be vacuumed" in finding.says
            assert f"pg_terminate_backend({pid})" in finding.do
            assert SECRET not in str(asdict(finding))
            # Below the limit, an idle transaction is a notice after some seconds.
            notice = await eventually(lambda: self.finding(database, pid, seconds(45)))
            assert notice.level is Level.NOTICE
            await session.connection.execute(finding.do.partition(";")[0])
        assert await eventually(lambda: self.none_of(database, pid, long))

    async def test_active_transaction_is_a_warning_first(self, database: Database) -> None:
        async with another_session(database) as other:
            await other.connection.execute("BEGIN")
            pid = other.connection.get_server_pid()
            working = asyncio.create_task(other.connection.execute("SELECT pg_sleep(30)"))
            finding = await eventually(lambda: self.finding(database, pid, seconds(1)))
            assert finding.level is Level.WARNING
            async with another_session(database) as killer:
                await killer.connection.fetchval("SELECT pg_cancel_backend($1)", pid)
            with pytest.raises(Exception, match="canceling statement"):
                await working
            await other.connection.execute("ROLLBACK")

    async def test_role_without_pg_read_all_stats_gets_a_notice(self, session: Session, database: Database) -> None:
        async with unprivileged_role(session, database) as (restricted, role):
            without_rights = await only(restricted, "schema.version")
            assert "permission denied for schema awa" in without_rights.says
            assert without_rights.level is Level.WARNING
            finding = await only(restricted, "vacuum.transactions")
            assert finding.level is Level.NOTICE
            await fix(session, finding)
            assert await findings(restricted, "vacuum.transactions") == []
            assert f'GRANT pg_read_all_stats TO "{role}"' in (finding.do or "")

    async def finding(self, database: Database, pid: int, long: timedelta) -> Finding | None:
        found = await findings(database, "vacuum.transactions", long_transaction=long)
        return next((each for each in found if each.about == f"session {pid}"), None)

    async def problem(self, database: Database, pid: int, long: timedelta) -> Finding | None:
        finding = await self.finding(database, pid, long)
        return finding if finding is not None and finding.level is Level.PROBLEM else None

    async def none_of(self, database: Database, pid: int, long: timedelta) -> bool:
        return await self.finding(database, pid, long) is None


class TestTables:
    async def test_dead_rows_without_vacuum_are_a_warning(self, session: Session, database: Database) -> None:
        async with another_session(database) as other:  # a session reports its statistics when it ends
            await other.connection.execute(
                "INSERT INTO awa.unique_keys (key, job_id, states) "
                "SELECT n, n, '{}' FROM generate_series(1, 12000) AS n"
            )
            await other.connection.execute("DELETE FROM awa.unique_keys")
        (finding,) = await eventually(lambda: findings(database, "vacuum.tables"))
        assert (finding.level, finding.about) == (Level.WARNING, "table unique_keys")
        assert "12,000 dead rows" in finding.says
        await session.connection.execute(finding.do.partition(";")[0])
        assert await eventually(lambda: has_no_findings(database, "vacuum.tables"))

    @pytest.mark.parametrize("table", ["ready", "running"])
    async def test_table_that_keeps_its_largest_size_is_a_warning(
        self, session: Session, database: Database, monkeypatch: pytest.MonkeyPatch, table: str
    ) -> None:
        monkeypatch.setattr("awa_py.doctor.vacuum.LARGE_BYTES", 1024**2)
        connection = session.connection

        async def size() -> int:
            return int(await connection.fetchval("SELECT pg_relation_size($1::text::regclass)", f"awa.{table}"))

        await (insert_running(session, 10_000) if table == "running" else insert(session, table, 10_000))
        async with another_session(database) as other, other.connection.transaction(isolation="repeatable_read"):
            await other.connection.fetchval("SELECT 1")  # the snapshot pins the rows
            await connection.execute(f"DELETE FROM awa.{table}")
            await connection.execute(f"VACUUM awa.{table}")
        await connection.execute(f"VACUUM awa.{table}")  # removes the rows and leaves the pages
        assert await size() > 1024**2
        finding = await only(database, "vacuum.tables")
        assert (finding.level, finding.about) == (Level.WARNING, f"table {table}")
        assert "autovacuum never shrinks it" in finding.says
        assert finding.do is not None
        await connection.execute(finding.do.partition(";")[0])
        assert await size() == 0
        assert await findings(database, "vacuum.tables") == []

    async def test_table_without_autovacuum_is_a_problem(self, session: Session, database: Database) -> None:
        await session.connection.execute("ALTER TABLE awa.running SET (autovacuum_enabled = off)")
        finding = await only(database, "vacuum.tables")
        assert (finding.level, finding.about) == (Level.PROBLEM, "table running")
        await fix(session, finding)
        assert await findings(database, "vacuum.tables") == []


class TestServer:
    async def test_unsafe_settings_of_the_test_server_are_problems(self, database: Database) -> None:
        found = await findings(database, "server.settings")
        assert {each.about: each.level for each in found} == {"fsync": Level.PROBLEM, "autovacuum": Level.PROBLEM}

    @pytest.mark.parametrize(
        ("setting", "level"),
        [
            ("default_transaction_read_only = on", Level.PROBLEM),
            ("synchronous_commit = off", Level.WARNING),
            ("idle_session_timeout = '10s'", Level.WARNING),
            ("statement_timeout = '5s'", Level.WARNING),
        ],
    )
    async def test_unsafe_setting_of_the_database_is_found(
        self, session: Session, database: Database, setting: str, level: Level
    ) -> None:
        name = setting.partition(" ")[0]
        here = await session.connection.fetchval("SELECT current_database()")
        await session.connection.execute(f"ALTER DATABASE {here} SET {setting}")
        found = {each.about: each for each in await findings(database, "server.settings")}
        assert found[name].level is level
        await session.connection.execute(f"ALTER DATABASE {here} RESET {name}")
        assert name not in {each.about for each in await findings(database, "server.settings")}

    async def test_few_free_connections_are_a_problem(self, session: Session, database: Database) -> None:
        here = await session.connection.fetchval("SELECT current_database()")
        await session.connection.execute(f"ALTER DATABASE {here} CONNECTION LIMIT 4")
        finding = await only(database, "server.connections")
        assert (finding.level, finding.about) == (Level.PROBLEM, "this database")
        await session.connection.execute(f"ALTER DATABASE {here} CONNECTION LIMIT -1")
        assert await findings(database, "server.connections") == []

    async def test_doctor_works_with_a_single_connection(self, session: Session, database: Database) -> None:
        async with unprivileged_role(session, database) as (restricted, role):
            await session.connection.execute(f"ALTER ROLE {role} CONNECTION LIMIT 1")
            found = await findings(restricted, "connection.pooler", "connection.listen", "server.connections")
            assert [(each.check, each.level) for each in found] == [
                ("pooler", Level.WARNING),
                ("listen", Level.WARNING),
                ("connections", Level.PROBLEM),
            ]
            assert "too many connections" in found[0].says
            assert found[2].about == "this role"

    async def test_missing_database_raises_database_unavailable(self, database: Database) -> None:
        with pytest.raises(DatabaseUnavailable, match="cannot connect to the database"):
            await run_checks(replace(database, url=database.url + "_not"), Settings())


class TestCluster:
    async def test_missing_leader_is_a_problem(self, session: Session, database: Database) -> None:
        finding = await only(database, "cluster.leader")
        assert finding.level is Level.PROBLEM
        assert ADVISED.findall(finding.do or "") == ["awa worker", "awa maintenance"]
        assert await election.try_lead(session)
        await election.record_election(session, worker_id=OWNER, hostname="h", pid=1)
        assert await findings(database, "cluster.leader") == []

    async def test_worker_without_heartbeat_is_a_warning(self, session: Session, database: Database) -> None:
        await serve(session, "default")
        assert await findings(database, "cluster.workers") == []
        await session.connection.execute("UPDATE awa.workers SET heartbeat_at = now() - interval '5 minutes'")
        silent, none = await findings(database, "cluster.workers")
        assert (silent.level, silent.about) == (Level.WARNING, "worker h:7")
        assert "No heartbeat for 5m" in silent.says
        assert none.says == "No worker is alive."

    async def test_overdue_promotion_is_a_problem(self, session: Session, database: Database) -> None:
        await insert(session, "scheduled", state="scheduled", run_at=ago(30))
        await insert(session, "scheduled", state="waiting", waits="{}", run_at=NO_TIMER)
        assert await findings(database, "cluster.overdue") == []
        await session.connection.execute("UPDATE awa.scheduled SET run_at = now() - interval '10 minutes'")
        finding = await only(database, "cluster.overdue")
        assert (finding.level, finding.about) == (Level.PROBLEM, "promotion")
        assert "10m ago" in finding.says

    async def test_overdue_timer_of_a_waiting_job_is_a_problem(self, session: Session, database: Database) -> None:
        await insert(session, "scheduled", state="waiting", waits="{}", run_at=ago(600))
        assert (await only(database, "cluster.overdue")).about == "promotion"

    async def test_parent_whose_children_have_ended_must_not_wait(self, session: Session, database: Database) -> None:
        (parent,) = await insert(session, "scheduled", state="waiting", waits="{}", run_at=NO_TIMER)
        (ended,) = await insert_completed(session, age_s=600, parent_id=parent)
        (running,) = await insert_running(session, parent_id=parent)
        waits = {"since": "2026-01-01T00:00:00Z", "children": [{"ids": [[ended, running]], "fail_fast": True}]}
        await session.connection.execute("UPDATE awa.scheduled SET waits = $1", json.dumps(waits))
        assert await findings(database, "cluster.waits") == []
        await session.connection.execute("DELETE FROM awa.running")
        finding = await only(database, "cluster.waits")
        assert (finding.level, finding.about) == (Level.PROBLEM, "children")
        assert finding.says == f"1 job still waits for children that ended more than 3m ago: {parent}."
        await wake_parents(session, [parent])  # as the leader does
        assert await findings(database, "cluster.waits") == []

    async def test_parent_whose_last_child_ended_a_moment_ago_may_wait(
        self, session: Session, database: Database
    ) -> None:
        (parent,) = await insert(session, "scheduled", state="waiting", waits="{}", run_at=NO_TIMER)
        (ended,) = await insert_completed(session, age_s=5, parent_id=parent)
        waits = {"since": "2026-01-01T00:00:00Z", "children": [{"ids": [[ended, ended]], "fail_fast": True}]}
        await session.connection.execute("UPDATE awa.scheduled SET waits = $1", json.dumps(waits))
        assert await findings(database, "cluster.waits") == []

    async def test_very_long_wait_for_a_signal_is_a_notice(self, session: Session, database: Database) -> None:
        waits = json.dumps({"since": "2020-01-01T00:00:00Z", "signals": ["approved"]})
        await insert(session, "scheduled", state="waiting", waits=waits, run_at=ago(-3600))  # it has a timeout
        assert await findings(database, "cluster.waits") == []
        await insert(session, "scheduled", state="waiting", waits=waits, run_at=NO_TIMER)
        finding = await only(database, "cluster.waits")
        assert (finding.level, finding.about) == (Level.NOTICE, "signals")
        assert finding.says.startswith("1 job has waited for a signal for more than 30d")

    async def test_overdue_rescue_is_a_problem(self, session: Session, database: Database) -> None:
        await insert_running(session, silent_s=100)
        assert await findings(database, "cluster.overdue") == []
        await insert_running(session, 2, silent_s=600)
        finding = await only(database, "cluster.overdue")
        assert (finding.level, finding.about) == (Level.PROBLEM, "rescue")
        assert finding.says.startswith("2 running jobs")
        # A queue may have a longer staleness.
        await insert_queue(session, staleness=timedelta(hours=1))
        assert await findings(database, "cluster.overdue") == []

    async def test_overdue_deadline_is_a_problem(self, session: Session, database: Database) -> None:
        await insert_running(session, deadline_at=ago(600))
        assert (await only(database, "cluster.overdue")).about == "deadlines"


class TestWork:
    async def test_queue_without_a_worker_is_a_problem(self, session: Session, database: Database) -> None:
        await serve(session, "other")
        await insert(session, "ready", 3, queue="email", args=json.dumps({"password": SECRET}))
        finding = await only(database, "work.queues")
        assert (finding.level, finding.about) == (Level.PROBLEM, "queue email")
        assert finding.says.startswith("3 jobs are waiting, the first for ")
        assert finding.do == "Start `awa worker APP -q email`."
        await serve(session, "email")
        assert await findings(database, "work.queues", "work.kinds") == []
        await session.connection.execute("UPDATE awa.workers SET heartbeat_at = now() - interval '5 minutes'")
        assert (await only(database, "work.queues")).about == "queue email"  # dead workers do not count

    async def test_paused_queue_with_jobs_is_a_problem(self, session: Session, database: Database) -> None:
        await serve(session, "email", "default")
        await put_one(session, queue="default")
        await queues.pause_queue(session, "email", paused=True)
        assert await findings(database, "work.queues") == []  # it has no jobs
        await insert(session, "ready", 200, queue="email")
        finding = await only(database, "work.queues")
        assert (finding.level, finding.about) == (Level.PROBLEM, "queue email")
        assert finding.says == "It is paused, and more than 100 jobs are waiting."
        assert finding.do == "`awa queue resume email`"
        await queues.pause_queue(session, "email", paused=False)
        assert await findings(database, "work.queues") == []

    async def test_pause_with_an_end_is_a_warning(self, session: Session, database: Database) -> None:
        await serve(session, "default")
        await put_one(session)
        await queues.pause_queue(session, "default", paused=True, period=timedelta(hours=1))
        assert (await only(database, "work.queues")).level is Level.WARNING

    async def test_repeatedly_throttled_queue_is_a_notice(self, session: Session, database: Database) -> None:  # F10
        await serve(session, "gh")
        await insert(session, "ready", 3, queue="gh")
        await insert_queue(session, "gh", throttles=4, throttled_until=ago(-600))
        assert await findings(database, "work.queues") == []
        await insert_queue(session, "gh", throttles=5, throttled_until=ago(-600))
        finding = await only(database, "work.queues")
        assert (finding.level, finding.about) == (Level.NOTICE, "queue gh")
        assert re.fullmatch(
            r"It was throttled 5 times in a row, and 3 jobs are waiting\. The throttle lasts for another \S+\.",
            finding.says,
        )
        assert "`awa queue unthrottle gh`" in (finding.do or "")
        await insert_queue(session, "gh", throttles=5, throttled_until=ago(200))  # the count decays
        assert await findings(database, "work.queues") == []

    async def test_queue_at_its_max_workers_is_a_notice(self, session: Session, database: Database) -> None:
        await serve(session, "gh")
        await insert(session, "ready", 1, queue="gh", run_at=ago(3600))
        await insert_running(session, 2, queue="gh", limited=True)
        await insert_queue(session, "gh", max_workers=3)
        assert await findings(database, "work.queues") == []
        await insert_queue(session, "gh", max_workers=2)
        finding = await only(database, "work.queues")
        assert (finding.level, finding.about) == (Level.NOTICE, "queue gh")
        assert finding.says.startswith(
            "It is at its max_workers (2 jobs running), and 1 job is waiting, the first for "
        )
        await session.connection.execute("UPDATE awa.ready SET run_at = now()")
        assert await findings(database, "work.queues") == []

    async def test_kind_without_a_handler_is_a_problem(self, session: Session, database: Database) -> None:
        await serve(session, "default", "email", kinds=("work", "send"))
        await put_one(session, "send")
        await put_one(session, "sned", priority=3)
        finding = await only(database, "work.kinds")
        assert (finding.level, finding.about) == (Level.PROBLEM, "kind sned")
        await serve(session, "email", kinds=("sned",))  # for another queue
        assert (await only(database, "work.kinds")).about == "kind sned"
        await serve(session, "default", kinds=("sned",))
        assert await findings(database, "work.kinds") == []


class TestSchedules:
    async def add(self, session: Session, name: str, expression: str, **columns: Any) -> None:
        await serve(session, "default")
        columns = {"name": name, "expression": expression, "kind": "work", **columns}
        places = ", ".join(f"${n}" for n in range(1, len(columns) + 1))
        await session.connection.execute(
            f"INSERT INTO awa.cron ({', '.join(columns)}) VALUES ({places})", *columns.values()
        )

    async def test_schedule_that_never_fires_is_a_problem(self, session: Session, database: Database) -> None:
        await self.add(session, "daily", "0 9 * * *")
        assert await findings(database, "work.schedules") == []
        await self.add(session, "never", "0 0 30 2 *", args=json.dumps({"password": SECRET}))
        finding = await only(database, "work.schedules")
        assert (finding.level, finding.about) == (Level.PROBLEM, "schedule never")
        assert '"0 0 30 2 *"' in finding.says
        assert "awa cron delete never" in (finding.do or "")
        await schedules.delete_schedule(session, "never")
        assert await findings(database, "work.schedules") == []

    @pytest.mark.parametrize(
        ("columns", "level", "text"),
        [
            ({"expression": "61 * * * *"}, Level.PROBLEM, "It never fires"),
            ({"timezone": "Mars/Olympus"}, Level.PROBLEM, "It never fires"),
            ({"enabled": False, "last_error": SECRET}, Level.PROBLEM, "It was switched off"),
            ({"paused": True}, Level.NOTICE, "It is paused"),
            ({"kind": "unheard_of"}, Level.WARNING, "No live worker"),
            ({"options": '{"queue": "elsewhere"}'}, Level.WARNING, "No live worker"),
        ],
    )
    async def test_broken_schedule_has_a_finding(
        self, session: Session, database: Database, columns: dict[str, Any], level: Level, text: str
    ) -> None:
        await self.add(session, "odd", **{"expression": "@hourly", **columns})
        finding = await only(database, "work.schedules")
        assert (finding.level, finding.about) == (level, "schedule odd")
        assert finding.says.startswith(text)
        assert SECRET not in str(finding)

    async def test_overdue_schedule_is_a_problem(self, session: Session, database: Database) -> None:
        await self.add(session, "late", "@hourly")
        await session.connection.execute("UPDATE awa.cron SET next_at = now() - interval '30 minutes'")
        finding = await only(database, "work.schedules")
        assert finding.says == "It should have fired 30m ago."


class TestAccess:
    async def test_read_only_role_gets_the_same_findings(self, session: Session, database: Database) -> None:
        """The checks write nothing."""
        async with unprivileged_role(session, database) as (restricted, role):
            await session.connection.execute(
                f"GRANT pg_read_all_stats TO {role}; GRANT USAGE ON SCHEMA awa TO {role}; "
                f"GRANT SELECT ON ALL TABLES IN SCHEMA awa TO {role}"
            )
            as_reader = [(each.check, each.level, each.about) for each in await run_checks(restricted, Settings())]
            as_owner = [(each.check, each.level, each.about) for each in await run_checks(database, Settings())]
            assert as_reader == as_owner

    async def test_role_without_privileges_gets_warnings(self, session: Session, database: Database) -> None:
        async with unprivileged_role(session, database) as (restricted, role):
            await session.connection.execute(f"GRANT USAGE ON SCHEMA awa TO {role}")
            await session.connection.execute(f"GRANT SELECT ON awa.schema_version TO {role}")
            found = {f"{each.group}.{each.check}": each for each in await run_checks(restricted, Settings())}
            assert found["work.queues"].level is Level.WARNING
            assert "permission denied" in found["work.queues"].says
            assert "GRANT SELECT" in (found["work.queues"].do or "")
            assert found["schema.objects"].level is Level.OK  # every role may read the catalogs

    async def test_every_check_reports_and_none_shows_arguments(self, session: Session, database: Database) -> None:
        secret = json.dumps({"password": SECRET})
        await insert(session, "ready", 2, args=secret)
        await insert(
            session, "scheduled", state="retryable", run_at=ago(900), args=secret, errors=f'[{{"e": "{SECRET}"}}]'
        )
        await insert_running(session, silent_s=900, args=secret)
        found = await run_checks(database, Settings())
        assert [(check.group, check.name) for check in CHECKS] == list(
            dict.fromkeys((each.group, each.check) for each in found)
        )
        assert SECRET not in str(found)
        assert all(bool(each.do) != (each.level is Level.OK) for each in found)

    async def test_slow_check_is_cancelled_with_a_warning(
        self, session: Session, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(context.SESSION_SETTINGS, "statement_timeout", "100")
        await session.connection.execute(
            "ALTER TABLE awa.cron RENAME TO real_cron; INSERT INTO awa.real_cron (name, expression, kind) "
            "VALUES ('slow', '@hourly', 'work'); "
            "CREATE VIEW awa.cron AS SELECT real_cron.* FROM awa.real_cron, pg_sleep(5)"
        )
        found = {f"{each.group}.{each.check}": each for each in await run_checks(database, Settings())}
        assert "was cancelled" in found["work.schedules"].says


async def has_no_findings(database: Database, check: str) -> bool:
    return not await findings(database, check)


@asynccontextmanager
async def unprivileged_role(session: Session, database: Database) -> AsyncIterator[tuple[Database, str]]:
    """Create a role without privileges. Yield the database as that role, and its name."""
    connection: Connection = session.connection
    role = f"poor_{await connection.fetchval('SELECT current_database()')}"
    await connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret' NOSUPERUSER")
    try:
        yield replace(database, url=with_user(database.url, role, "secret")), role
    finally:
        await connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
