"""Heartbeats: renewed leases, lost leases, and a worker whose heartbeats fail."""

import asyncio
import time
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import pytest

import awa_py as awa
from awa_py import App, Context, State
from awa_py.connections import DedicatedConnection
from awa_py.db.database import Database
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.store.heartbeat import renew_leases
from awa_py.store.maintenance import rescue_overdue_jobs
from awa_py.store.queues import set_queue
from awa_py.store.session import Session
from awa_py.worker.outcome_table import OUTCOMES
from awa_py.worker.outcomes import AttemptFailed, Completed, Discarded, QueueThrottled, Snoozed
from tests.support import (
    HASTY,
    OWNER,
    PATIENCE_S,
    QUICK,
    UNDO_CLAIMS,
    Gate,
    another_session,
    beaten_since,
    count,
    eventually,
    insert_running,
    look,
    running,
    sample,
    seconds,
    with_settings,
    working,
)

pytestmark = pytest.mark.integration


class TestHeartbeat:
    async def test_one_statement_renews_all_leases_and_omits_lost_ones(self, session: Session) -> None:  # P6
        kept, cancelled, taken = await insert_running(session, 3, silent_s=60)
        await session.connection.execute("UPDATE awa.running SET lease = 2 WHERE id = $1", taken)
        await session.connection.execute("UPDATE awa.running SET cancel_requested_at = now() WHERE id = $1", cancelled)
        assert await renew_leases(session, OWNER, [kept, cancelled, taken], [1, 1, 1]) == {kept: False, cancelled: True}
        renewed = "SELECT id FROM awa.running WHERE heartbeat_at > now() - interval '30 seconds' ORDER BY id"
        assert [row["id"] for row in await session.connection.fetch(renewed)] == [kept, cancelled]

    async def test_worker_without_jobs_sends_no_renewals(  # P6
        self, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        renewals: list[object] = []
        monkeypatch.setattr("awa_py.store.heartbeat.renew_leases", lambda *values: renewals.append(values))
        app = with_settings(database_url, replace(HASTY, heartbeat_interval=seconds(0.1)))
        async with app, working(app), another_session(app.database) as session:
            seen = "SELECT heartbeat_at - started_at > interval '1 second' FROM awa.workers"

            async def sent_heartbeats_for_a_second() -> bool:
                return bool(await session.connection.fetchval(seen))

            await eventually(sent_heartbeats_for_a_second)
        assert renewals == []

    async def test_late_first_heartbeat_does_not_renew_fresh_leases(
        self, database_url: str, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        renewals: list[object] = []
        gate = Gate()

        class LateConnection(ReconnectingConnection):
            async def get(self) -> DedicatedConnection:
                await eventually(gate.started.is_set)
                return await super().get()

        monkeypatch.setattr("awa_py.worker.heartbeat.ReconnectingConnection", LateConnection)
        monkeypatch.setattr("awa_py.store.heartbeat.renew_leases", lambda *values: renewals.append(values))
        long_interval = replace(QUICK, heartbeat_interval=seconds(60), heartbeat_staleness=seconds(180))
        app = with_settings(database_url, long_interval)

        @app.job
        def work(ctx: Context) -> str:
            return gate(ctx)

        async with app, working(app):
            job = await app.enqueue("work")
            seen = "SELECT count(*) FROM awa.workers WHERE heartbeat_at > started_at + interval '1 second'"
            await eventually(partial(count, session.connection, seen))
            gate.open.set()
            await app.result(job.id, timeout="20s")
        assert renewals == []

    async def test_worker_counts_a_renewed_lease_from_before_its_query(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The answer may come late, and the row is written at some time before it."""
        views: list[tuple[float, list[float]]] = []  # at each renewal: the time, and when the leases seem to begin

        async def renew(session: Session, owner: UUID, ids: list[int], leases: list[int]) -> dict[int, bool]:
            asked_at = time.monotonic()
            views.append((asked_at, [job.renewed_at for job in worker._parts.in_flight]))  # type: ignore[union-attr]
            answer = await renew_leases(session, owner, ids, leases)
            await asyncio.sleep(0.01)
            return answer

        monkeypatch.setattr("awa_py.store.heartbeat.renew_leases", renew)
        app = with_settings(database_url, replace(HASTY, heartbeat_interval=seconds(0.2)))
        gate = Gate()

        @app.job
        def work(ctx: Context) -> str:
            return gate(ctx)

        async with app, working(app) as worker:
            job = await app.enqueue("work")
            await eventually(lambda: len(views) >= 3)
            gate.open.set()
            await app.result(job.id, timeout="20s")
        (first_asked_at, _), (second_asked_at, second), (_, third) = views[:3]
        assert [view <= first_asked_at for view in second] == [True]
        assert [first_asked_at < view <= second_asked_at for view in third] == [True]

    async def test_worker_with_a_blocked_event_loop_keeps_its_leases(self, database_url: str) -> None:
        app = with_settings(database_url, replace(HASTY, heartbeat_rescue_interval=seconds(0.2)))

        @app.job
        async def work() -> str:
            time.sleep(4)  # far longer than the lease
            return "done"

        async with app, working(app, maintenance=True):
            job = await app.enqueue("work")
            await app.result(job.id, timeout="30s")
            found = await app.get(job.id)
        assert (found.result, found.attempt, found.rescues, found.errors) == ("done", 1, 0, [])

    async def test_shorter_staleness_of_a_queue_applies_to_jobs_in_flight(
        self, database_url: str, session: Session
    ) -> None:
        app = with_settings(
            database_url,
            replace(
                QUICK,
                heartbeat_interval=seconds(20),
                heartbeat_staleness=seconds(60),
                heartbeat_rescue_interval=seconds(0.2),
            ),
        )
        gate = Gate()

        @app.job
        def work(ctx: Context) -> str:
            return gate(ctx)

        async with app, working(app, maintenance=True):
            job = await app.enqueue("work")
            await eventually(gate.started.is_set)
            await set_queue(session, "default", {"staleness": seconds(2)})
            for _ in range(4):  # four renewals: longer than the lease that it started with
                last = (await look(session, job.id)).heartbeat_at
                await eventually(partial(beaten_since, session, job.id, last))
            gate.open.set()
            assert await app.result(job.id, timeout="20s") == "the end"
            assert (await app.get(job.id)).rescues == 0
        assert gate.stop_reasons == []

    async def test_attempt_whose_claim_was_undone_and_repeated_here_changes_nothing(
        self, database_url: str, session: Session
    ) -> None:
        no_renewals = replace(QUICK, heartbeat_interval=seconds(20), heartbeat_staleness=seconds(60))
        app = with_settings(database_url, no_renewals)
        first, second = Gate(), Gate()
        gates = iter([first, second])

        @app.job
        def work(ctx: Context) -> str:
            gate = next(gates)
            ctx.progress(0.5, "the first" if gate is first else "the second")
            return gate(ctx) if gate is first else f"{gate(ctx)} of the second"

        async with app, working(app) as worker:
            job = await app.enqueue("work")
            await eventually(first.started.is_set)
            claimed = await look(session, job.id)
            await session.connection.execute(UNDO_CLAIMS)
            await eventually(lambda: sample(worker, "awa_lost_leases_total"))
            again = await look(session, job.id)
            assert (again.state, again.lease, again.worker_id) == (claimed.state, claimed.lease, claimed.worker_id)
            second.open.set()
            assert await app.result(job.id, timeout="20s") == "the end of the second"
            found = await app.get(job.id)
        assert first.stop_reasons == ["its lease was lost"]
        assert (found.attempt, found.progress) == (1, {"fraction": 0.5, "message": "the second"})
        assert sample(worker, "awa_lost_leases_total") == 1

    @pytest.mark.parametrize("kind", ["in_loop", "in_thread"])
    async def test_lost_lease_stops_the_handler_and_its_outcome_changes_nothing(  # F8, A12, P7
        self, database_url: str, session: Session, caplog: pytest.LogCaptureFixture, kind: str
    ) -> None:
        app = with_settings(database_url, HASTY)
        gate = Gate()

        @app.job
        async def in_loop(ctx: Context) -> None:
            gate.started.set()
            try:
                await asyncio.sleep(PATIENCE_S)
            finally:
                gate.stop_reasons.append(ctx.cancel_reason or "")

        @app.job
        def in_thread(ctx: Context) -> str:
            return gate(ctx)

        async with app:
            async with working(app) as worker:
                job = await app.enqueue(kind)
                await eventually(gate.started.is_set)
                await session.connection.execute("UPDATE awa.running SET lease = 7, worker_id = gen_random_uuid()")
                await eventually(lambda: gate.stop_reasons)
                await eventually(lambda: sample(worker, "awa_lost_leases_total"))
            assert sample(worker, "awa_lost_leases_total") == 1
            found = await app.get(job.id)
        assert gate.stop_reasons == ["its lease was lost"]
        assert (found.state, found.lease, found.errors) == (State.RUNNING, 7, [])
        action = {"in_loop": "end", "in_thread": "complete the job"}[kind]
        assert f"the lease was lost before the 1st attempt could {action}: nothing was changed" in caplog.text

    @pytest.mark.parametrize(
        ("end", "outcome"),
        [
            ("the result", Completed),
            (ValueError("x"), AttemptFailed),
            (awa.Snooze("1s"), Snoozed),
            (awa.Throttled(), QueueThrottled),
            (awa.Fail("x"), Discarded),
        ],
    )
    async def test_warning_of_a_lost_lease_names_the_action(  # P7
        self, app: App, session: Session, caplog: pytest.LogCaptureFixture, end: Any, outcome: type
    ) -> None:
        @app.job
        async def work() -> Any:
            await session.connection.execute("UPDATE awa.running SET lease = 7, worker_id = gen_random_uuid()")
            if isinstance(end, Exception):
                raise end
            return end

        async with app, working(app):
            await app.enqueue("work")
            await eventually(lambda: f"attempt could {OUTCOMES[outcome].action}: nothing was changed" in caplog.text)

    async def test_reconnected_heartbeat_renews_all_leases_at_once(self, database_url: str, session: Session) -> None:
        long_interval = replace(QUICK, heartbeat_interval=seconds(300), heartbeat_staleness=seconds(900))
        app = with_settings(database_url, long_interval)
        gate = Gate()

        @app.job
        def work(ctx: Context) -> str:
            return gate(ctx)

        async with app, working(app):
            await app.enqueue("work")
            await eventually(gate.started.is_set)
            await session.connection.execute("UPDATE awa.running SET lease = 7, worker_id = gen_random_uuid()")
            await session.connection.fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'awa heartbeat'"
            )
            await eventually(lambda: gate.stop_reasons)
        assert gate.stop_reasons == ["its lease was lost"]

    async def test_rescued_job_stops_its_old_handler_at_once(self, app: App, session: Session) -> None:  # A12
        stop_reasons: list[str | None] = []

        @app.job
        async def work(ctx: Context) -> None:
            try:
                await asyncio.sleep(PATIENCE_S)
            finally:
                stop_reasons.append(ctx.cancel_reason)

        async with app, working(app):
            job = await app.enqueue("work")
            await eventually(lambda: running(app, job.id))
            await session.connection.execute("UPDATE awa.running SET deadline_at = now()")
            assert len(await rescue_overdue_jobs(session, limit=5)) == 1
            await eventually(lambda: stop_reasons)
        assert stop_reasons == ["its lease was lost"]

    async def test_worker_without_heartbeats_stops_its_handlers_before_their_leases_expire(  # P5
        self, database_url: str, database: Database, session: Session
    ) -> None:
        settings = replace(QUICK, heartbeat_interval=seconds(0.3), heartbeat_staleness=seconds(3))
        app = with_settings(database_url, settings)
        stop_reasons: list[str | None] = []
        attempts: list[int] = []

        @app.job
        async def work(ctx: Context) -> None:
            attempts.append(ctx.attempt)
            if ctx.job.lease > 1:
                return
            try:
                await asyncio.sleep(PATIENCE_S)
            finally:
                stop_reasons.append(ctx.cancel_reason)

        async with app, working(app), another_session(database) as locker:
            job = await app.enqueue("work")
            await eventually(lambda: attempts)
            async with locker.connection.transaction():
                await locker.connection.execute("LOCK TABLE awa.running IN ACCESS EXCLUSIVE MODE")
                await eventually(lambda: stop_reasons)
                age_s = await locker.connection.fetchval(
                    "SELECT extract(epoch FROM clock_timestamp() - heartbeat_at)::float8 FROM awa.running"
                )
            assert age_s < 3
            assert await app.result(job.id, timeout="20s") is None
        assert stop_reasons == ["its lease expired: the database could not be reached"]
        assert attempts == [1, 1]  # released without counting the attempt
