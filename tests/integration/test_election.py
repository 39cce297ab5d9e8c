"""The election of the leader, and the loop that runs its tasks."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from awa_py import App
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.maintenance.election import Candidate
from awa_py.maintenance.task import Task, TaskResult
from awa_py.observability.metrics import Metrics
from awa_py.settings import Settings
from awa_py.store.election import LOCK_KEY, get_leader, lock_key
from awa_py.store.session import Session
from tests.databases import NOT_RESETTING
from tests.support import (
    PATIENCE_S,
    QUICK,
    FromNow,
    ago,
    count,
    eventually,
    insert,
    put_one,
    seconds,
    states,
)

pytestmark = pytest.mark.integration

HOLDERS = """
    SELECT count(*) FROM pg_locks
    WHERE locktype = 'advisory' AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (classid::bigint << 32 | objid::bigint) = $1
"""


async def holders(session: Session) -> int:
    return await count(session.connection, HOLDERS, lock_key(session.schema))


async def lock_is_free(session: Session) -> bool:
    return await holders(session) == 0


async def is_elected_after(session: Session, epoch: int) -> bool:
    return await count(session.connection, "SELECT epoch FROM awa.leader") > epoch


@asynccontextmanager
async def candidate_of(app: App, metrics: Metrics | None = None) -> AsyncIterator[Candidate]:
    candidate = app.candidate(metrics=metrics)
    candidate.start()
    try:
        yield candidate
    finally:
        async with asyncio.timeout(30):
            await candidate.stop()


@pytest.fixture
def app(database_url: str) -> App:
    return App(database_url, settings=QUICK)


def with_settings(database_url: str, settings: Settings) -> App:
    return App(database_url, settings=settings)


def exactly_one_leads(*candidates: Candidate) -> bool:
    return sum(candidate.is_leader for candidate in candidates) == 1


class TestElection:
    async def test_one_of_two_candidates_leads(self, app: App, session: Session) -> None:  # A3
        idle = app.candidate()
        assert not idle.is_leader
        async with candidate_of(app) as one, candidate_of(app) as two:
            await eventually(lambda: exactly_one_leads(one, two))
            await asyncio.sleep(3 * QUICK.election_interval.total_seconds())
            assert exactly_one_leads(one, two)
            assert await holders(session) == 1
        assert not one.is_leader
        assert not two.is_leader
        assert await holders(session) == 0

    async def test_lock_key_of_the_default_schema_never_changes(self, app: App, session: Session) -> None:  # A2
        assert lock_key(Schema()) == LOCK_KEY == 4708303813012965710
        assert lock_key(Schema("other")) != LOCK_KEY
        assert lock_key(Schema("other")) == lock_key(Schema("other"))
        async with candidate_of(app) as candidate:
            await eventually(lambda: candidate.is_leader)
            assert await count(session.connection, HOLDERS, 4708303813012965710) == 1

    async def test_each_schema_of_a_database_has_its_own_leader(  # A2
        self, app: App, database_url: str, session: Session
    ) -> None:
        await migrations.migrate(Database(database_url, Schema("My Jobs")))
        other = App(database_url, schema="My Jobs", settings=QUICK)
        async with candidate_of(app) as here, candidate_of(other) as there:
            await eventually(lambda: here.is_leader and there.is_leader)

    async def test_election_is_recorded_with_a_new_epoch(self, database_url: str, session: Session) -> None:
        app = with_settings(database_url, QUICK)
        assert await get_leader(session) is None
        epochs = []
        for _ in range(3):
            async with candidate_of(app) as candidate:
                await eventually(partial(getattr, candidate, "is_leader"))
                leader = await get_leader(session)
                assert leader is not None
                assert leader.pid == os.getpid()
                epochs.append(leader.epoch)
            assert await get_leader(session) is None
        assert epochs == [1, 2, 3]
        assert await count(session.connection, "SELECT count(*) FROM awa.leader") == 1

    async def test_resignation_lets_another_candidate_lead_immediately(self, database_url: str) -> None:  # A6
        app = with_settings(database_url, replace(QUICK, election_interval=seconds(60)))
        async with candidate_of(app) as one:
            await eventually(lambda: one.is_leader)
            async with candidate_of(app) as two:
                await eventually(lambda: not two.problems())  # it has not got the lock, and waits
                await asyncio.sleep(0.2)
                assert not two.is_leader
                began = time.monotonic()
                await one.stop()
                await eventually(lambda: two.is_leader)
                assert time.monotonic() - began < 5

    async def test_terminated_session_leads_to_a_new_leader_and_never_to_two(
        self, app: App, session: Session
    ) -> None:  # A5
        async with candidate_of(app) as one, candidate_of(app) as two:
            await eventually(lambda: exactly_one_leads(one, two))
            both_s = 0.0
            for _ in range(3):
                epoch = await session.connection.fetchval("SELECT epoch FROM awa.leader")
                await session.connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted "
                    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
                )
                began = last = time.monotonic()
                while True:
                    assert await holders(session) <= 1
                    now = time.monotonic()
                    both_s += now - last if one.is_leader and two.is_leader else 0.0
                    last = now
                    if await session.connection.fetchval("SELECT epoch FROM awa.leader") > epoch and exactly_one_leads(
                        one, two
                    ):
                        break
                    assert now - began < 10
                    await asyncio.sleep(0.002)
                assert time.monotonic() - began < 3
            # The old leader may notice the end of its session a moment late, but it can write nothing.
            assert both_s < 0.2

    async def test_postgresql_ends_the_session_of_a_frozen_leader(  # A5
        self, database_url: str, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app = with_settings(database_url, replace(QUICK, leader_check_interval=seconds(0.3), leader_timeout=seconds(1)))
        frozen, thaw = threading.Event(), threading.Event()

        async def freeze(*_: object) -> TaskResult:
            if not frozen.is_set():
                frozen.set()
                thaw.wait(30)  # blocks the whole event loop of this candidate
            return TaskResult()

        monkeypatch.setattr("awa_py.maintenance.tasks.Promotion.run", freeze)
        async with candidate_of(app) as one:
            await eventually(frozen.is_set)
            async with candidate_of(app) as two:
                await eventually(lambda: two.is_leader, 10)
                assert await holders(session) == 1
                thaw.set()
                await eventually(lambda: exactly_one_leads(one, two))
                assert two.is_leader

    async def test_postgresql_ends_the_session_of_a_frozen_leader_without_another_candidate(  # A5
        self, database_url: str, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app = with_settings(database_url, replace(QUICK, leader_check_interval=seconds(0.3), leader_timeout=seconds(1)))
        frozen, thaw = threading.Event(), threading.Event()

        async def freeze(*_: object) -> TaskResult:
            frozen.set()
            thaw.wait(PATIENCE_S)
            return TaskResult()

        monkeypatch.setattr("awa_py.maintenance.tasks.Promotion.run", freeze)
        async with candidate_of(app):
            await eventually(frozen.is_set)
            assert await holders(session) == 1
            await eventually(lambda: lock_is_free(session), 20)
            thaw.set()

    async def test_leader_between_two_tasks_notices_the_end_of_its_session(
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def touch(session: Session) -> TaskResult:
            await session.connection.execute("SELECT 1")
            return TaskResult()

        hourly = Task(name="hourly", interval=timedelta(hours=1), run=touch)
        monkeypatch.setattr("awa_py.maintenance.election.all_tasks", lambda *_, **__: [hourly])
        async with candidate_of(app) as candidate:
            await eventually(lambda: candidate.is_leader)
            epoch = await session.connection.fetchval("SELECT epoch FROM awa.leader")
            await session.connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'awa leader'"
            )
            await eventually(lambda: is_elected_after(session, epoch))


class TestLeader:
    async def test_candidate_ends_the_session_of_a_leader_that_froze_within_a_statement(  # A5
        self, app: App, database: Database
    ) -> None:
        """A session in the middle of a statement is active for PostgreSQL: none of its timeouts ends it."""
        frozen = await database.connect("leader", {"idle_session_timeout": "1000", "statement_timeout": "1000"})
        await frozen.execute("SELECT pg_advisory_lock($1)", LOCK_KEY)
        await frozen.prepare("SELECT $1::int")  # Parse, and neither Execute nor Sync
        async with candidate_of(app) as candidate:
            await eventually(lambda: candidate.is_leader)
        assert frozen.is_closed()

    async def test_all_tasks_run_on_the_session_that_holds_the_lock(self, app: App, session: Session) -> None:
        await insert(session, "scheduled", 5000, state="scheduled", run_at=ago(1))
        async with candidate_of(app) as candidate:
            await eventually(lambda: candidate.is_leader)
            await eventually(lambda: all_are_available(session))
            rows = await session.connection.fetch(
                "SELECT pid, application_name, query FROM pg_stat_activity "
                f"WHERE datname = current_database() AND pid <> pg_backend_pid() AND {NOT_RESETTING}"
            )
            assert [row["application_name"] for row in rows] == ["awa leader"]
            holder = await session.connection.fetchval(
                "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND database = "
                "(SELECT oid FROM pg_database WHERE datname = current_database())"
            )
            assert holder == rows[0]["pid"]

    async def test_exception_of_a_task_does_not_end_the_loop(  # A14
        self,
        app: App,
        session: Session,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        async def broken(_: Session, **__: object) -> TaskResult:
            raise RuntimeError("boom")

        monkeypatch.setattr("awa_py.maintenance.tasks.rescue_overdue", broken)
        metrics = Metrics()

        def errors(task: str) -> float:
            return metrics.registry.get_sample_value("awa_task_errors_total", {"task": task}) or 0

        async with candidate_of(app, metrics) as candidate:
            await eventually(lambda: errors("deadlines") >= 2)
            job_id = await put_one(session, delay=seconds(0.1))
            await eventually(lambda: all_are_available(session))
            assert candidate.is_leader
            assert errors("promote") == 0
            assert job_id
        assert "deadlines failed, trying again later" in caplog.text
        assert metrics.registry.get_sample_value("awa_elections_total") == 1

    async def test_postgresql_error_of_a_task_does_not_end_the_loop(self, app: App, session: Session) -> None:  # A14
        await session.connection.execute("ALTER TABLE awa.cron RENAME TO gone")
        metrics = Metrics()
        async with candidate_of(app, metrics):
            await eventually(
                lambda: (metrics.registry.get_sample_value("awa_task_errors_total", {"task": "cron"}) or 0) >= 2
            )
            await put_one(session, delay=seconds(0.1))
            await eventually(lambda: all_are_available(session))

    async def test_leader_promotes_a_job_when_it_is_due(  # P4
        self, database_url: str, session: Session
    ) -> None:
        app = with_settings(database_url, replace(QUICK, promote_interval=seconds(60)))
        await insert(session, "scheduled", state="scheduled", run_at=FromNow(1.5))
        async with candidate_of(app):
            began = time.monotonic()
            await eventually(lambda: all_are_available(session))
            assert time.monotonic() - began < 10

    async def test_job_that_is_due_earlier_wakes_the_leader(self, database_url: str, session: Session) -> None:
        app = with_settings(database_url, replace(QUICK, promote_interval=seconds(60)))
        await insert(session, "scheduled", state="scheduled", run_at=FromNow(50))
        async with candidate_of(app) as candidate:
            await eventually(lambda: candidate.is_leader)
            await asyncio.sleep(0.3)
            await put_one(session, delay=seconds(0.3))
            await eventually(lambda: one_is_available(session), 10)

    async def test_leader_rescues_stale_jobs(self, app: App, session: Session) -> None:  # A10
        await session.connection.execute(
            "INSERT INTO awa.running (kind, worker_id, lease, attempt, attempted_at, heartbeat_at) VALUES "
            "('work', gen_random_uuid(), 1, 1, now() - interval '60 s', now() - interval '60 s')"
        )
        async with candidate_of(app):
            await eventually(lambda: all_are_available(session))

    async def test_schedules_are_written_on_election(self, database_url: str, session: Session) -> None:  # A4
        app = with_settings(database_url, QUICK)

        @app.cron("0 9 * * *", name="digest")
        @app.job
        async def digest() -> None: ...

        async with candidate_of(app):
            await eventually(lambda: count(session.connection, "SELECT count(*) FROM awa.cron WHERE name = 'digest'"))

    async def test_candidate_that_does_not_lead_writes_its_schedules(self, app: App, session: Session) -> None:
        """The leader has an older version of the code, which does not know the schedule."""
        newer = App(app.database.url, settings=QUICK)

        @newer.cron("0 9 * * *", name="digest")
        @newer.job
        async def digest() -> None: ...

        async with candidate_of(app) as leader:
            await eventually(lambda: leader.is_leader)
            async with candidate_of(newer) as candidate:
                written = "SELECT count(*) FROM awa.cron WHERE name = 'digest'"
                await eventually(lambda: count(session.connection, written))
                assert leader.is_leader
                assert not candidate.is_leader

    async def test_leader_fires_schedules(self, app: App, session: Session) -> None:
        @app.cron("* * * * * *", name="tick")
        @app.job
        async def tick() -> None: ...

        async with candidate_of(app):
            await eventually(lambda: one_is_available(session))

    async def test_candidate_without_schema_logs_an_error_and_leads_once_there_is_one(
        self, fresh_database_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = with_settings(fresh_database_url, QUICK)
        with caplog.at_level(logging.ERROR):
            async with candidate_of(app) as candidate:
                await eventually(lambda: "run `awa migrate`" in " ".join(candidate.problems()))
                await migrations.migrate(Database(fresh_database_url, Schema()))
                await eventually(lambda: candidate.is_leader)
                assert candidate.problems() == []
        assert "cannot take part in the election" in caplog.text


async def all_are_available(session: Session) -> bool:
    return (await states(session)).keys() == {"available"}


async def one_is_available(session: Session) -> bool:
    return "available" in await states(session)


async def test_candidate_can_stop_at_any_time_after_its_start(app: App, session: Session) -> None:
    for pause_s in (0, 0, 0.01, 0.02, 0.05, 0.1, 0.2):
        async with candidate_of(app):
            await asyncio.sleep(pause_s)
    assert await holders(session) == 0
    assert (
        await count(
            session.connection,
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'awa leader'",
        )
        == 0
    )


async def test_candidate_on_a_read_only_server_pauses_between_connections(fresh_database_url: str) -> None:
    database = Database(fresh_database_url, Schema())
    await migrations.migrate(database)
    connection = await database.connect("test")
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    metrics = Metrics()
    async with candidate_of(with_settings(fresh_database_url, QUICK), metrics):
        reconnects = metrics.reconnects.labels("leader")
        await eventually(lambda: reconnects._value.get() >= 1)
        first = reconnects._value.get()
        await asyncio.sleep(2)
        assert reconnects._value.get() - first <= 10  # it was about 90 in a second
        # When the server can be written again, the candidate leads by itself.
        await connection.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        await connection.execute("SET default_transaction_read_only = off")
        await eventually(lambda: count(connection, "SELECT epoch FROM awa.leader"))
    await connection.close()
