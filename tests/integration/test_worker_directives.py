"""The list of workers: heartbeats, directives and how workers apply them, and the lock of a worker."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from awa_py import App, Context, State, WorkerName
from awa_py.db.database import Database
from awa_py.store.heartbeat import WorkerInfo, heartbeat_worker, lock_worker
from awa_py.store.queues import pause_queue
from awa_py.store.session import Session
from awa_py.store.workers import WorkerRow, command_workers, list_workers
from awa_py.worker.directives import Directives, QueueDirectives, directives_from
from awa_py.worker.worker import Worker
from tests.fake_pooler import fake_pooler
from tests.proxy import counting_proxy
from tests.support import (
    PATIENCE_S,
    QUICK,
    Gate,
    another_session,
    count,
    eventually,
    insert_queue,
    insert_running,
    new_owner,
    running,
    seconds,
    states,
    with_settings,
    working,
)
from tests.workers import set_silence, worker_info

pytestmark = pytest.mark.integration

STALENESS = seconds(8)


async def heartbeat(session: Session, worker: WorkerInfo, before: Directives | None = None, **more: Any) -> Directives:
    return directives_from(await heartbeat_worker(session, worker, **more), before or Directives())


async def email_directives(session: Session, worker: WorkerInfo) -> QueueDirectives:
    return (await heartbeat(session, worker)).queues["email"]


async def worker_row(session: Session, worker_id: UUID) -> WorkerRow:
    (found,) = (row for row in await list_workers(session, staleness=STALENESS) if row.id == worker_id)
    return found


class TestDirectives:  # F5
    async def test_queue_without_limits_has_empty_directives(self, session: Session) -> None:
        await insert_queue(session, "email")
        assert await heartbeat(session, worker_info("email")) == Directives(queues={"email": QueueDirectives()})

    async def test_paused_queue_has_no_slots(self, session: Session) -> None:
        worker = worker_info()
        await pause_queue(session, "email", paused=True)
        assert (await email_directives(session, worker)).slots == 0
        await pause_queue(session, "email", paused=True, period=seconds(60))
        assert (await email_directives(session, worker)).slots == 0
        await session.connection.execute("UPDATE awa.queues SET paused_until = now() - interval '1 second'")
        assert (await email_directives(session, worker)).slots is None
        await pause_queue(session, "email", paused=False)
        assert (await email_directives(session, worker)).slots is None

    async def test_slots_are_the_share_of_the_leader(self, session: Session) -> None:
        worker = worker_info()
        await insert_queue(session, "email", max_workers=10)
        assert await email_directives(session, worker) == QueueDirectives(
            slots=10, limited=True
        )  # it is the only worker
        await session.connection.execute("INSERT INTO awa.slots VALUES ('email', $1, 3)", worker.id)
        assert (await email_directives(session, worker)).slots == 3
        await session.connection.execute("UPDATE awa.queues SET max_workers = NULL")
        assert await email_directives(session, worker) == QueueDirectives()  # a leftover share does not count

    @pytest.mark.parametrize(("others", "slots"), [(1, 5), (2, 4), (3, 3), (20, 1)])
    async def test_worker_without_a_share_gets_an_equal_part(self, session: Session, others: int, slots: int) -> None:
        await insert_queue(session, "email", max_workers=10)
        for _ in range(others):
            await heartbeat_worker(session, worker_info())
        assert (await email_directives(session, worker_info())).slots == slots

    async def test_only_live_workers_that_claim_from_the_queue_count(self, session: Session) -> None:
        await insert_queue(session, "email", max_workers=10)
        silent = worker_info()
        for each in (worker_info("other"), silent):
            await heartbeat_worker(session, each)
        await heartbeat_worker(session, worker_info(), quiet=True)
        await heartbeat_worker(session, worker_info(), stopping=True)
        await set_silence(session, silent.id, 9)
        assert (await email_directives(session, worker_info())).slots == 10

    async def test_directives_contain_the_rate(self, session: Session) -> None:
        worker = worker_info()
        await insert_queue(session, "email", rate_jobs=30, rate_period=seconds(60))
        assert await email_directives(session, worker) == QueueDirectives(limited=True, rate=0.5)

    async def test_deleted_queue_row_does_not_change_the_directives(self, session: Session) -> None:
        worker = worker_info("email", "other")
        await insert_queue(session, "other")
        before = await heartbeat(session, worker)
        assert before.queues == {"other": QueueDirectives()}
        await pause_queue(session, "email", paused=True)
        paused = await heartbeat(session, worker, before)
        await session.connection.execute("DELETE FROM awa.queues WHERE name = 'email'")
        assert await heartbeat(session, worker, paused) == paused
        assert paused.queues["email"].slots == 0

    async def test_command_of_an_operator_takes_precedence_and_survives_a_new_row(self, session: Session) -> None:
        worker = worker_info()
        assert not (await heartbeat(session, worker)).quiet
        await command_workers(session, [worker.id], quiet=True)
        assert (await heartbeat(session, worker)).quiet
        await session.connection.execute("DELETE FROM awa.workers")  # its row was deleted, and is inserted again
        assert (await heartbeat(session, worker, quiet=True)).quiet
        await command_workers(session, [worker.id], quiet=False)
        assert not (await heartbeat(session, worker, quiet=True)).quiet
        assert not (await heartbeat(session, worker)).stop
        await command_workers(session, [worker.id], stop=True)
        assert (await heartbeat(session, worker)).stop

    async def test_heartbeats_do_not_bloat_the_table(self, session: Session) -> None:
        worker = worker_info(limits=(7,), label="mail-worker-a")
        for _ in range(20):
            await heartbeat_worker(session, worker)
        (row,) = await list_workers(session, staleness=STALENESS)
        assert (row.label, row.limits, row.quiet, row.stopping, row.locked_on) == (
            "mail-worker-a",
            [7],
            False,
            False,
            None,
        )
        assert await count(session.connection, "SELECT pg_relation_size('awa.workers') / 8192") == 1


class TestListOfWorkers:
    async def test_list_shows_running_jobs_and_shares(self, session: Session) -> None:  # F22
        one, two = worker_info(), worker_info()
        for each in (one, two):
            await heartbeat_worker(session, each)
        await insert_queue(session, "email", max_workers=10)
        await insert_running(session, 3, worker_id=one.id)
        await session.connection.execute("INSERT INTO awa.slots VALUES ('email', $1, 4)", two.id)
        shown = {row.id: (row.running, row.slots) for row in await list_workers(session, staleness=STALENESS)}
        assert shown == {one.id: (3, {}), two.id: (0, {"email": {"slots": 4, "max_workers": 10}})}


class TestWorkerLock:
    async def test_sessions_of_a_worker_share_the_lock_until_the_last_one_ends(
        self, session: Session, database: Database
    ) -> None:
        worker_id = new_owner()
        holders = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = hashtext($1::text)::oid"

        async def held_by(sessions: int) -> bool:
            return await count(session.connection, holders, str(worker_id)) == sessions

        async with another_session(database) as first, another_session(database) as second:
            began = await lock_worker(first, worker_id)
            assert began == await session.connection.fetchval("SELECT pg_postmaster_start_time()")
            assert await lock_worker(second, worker_id) == began
            assert await held_by(2)
            await first.connection.close()
            await eventually(lambda: held_by(1))
        await eventually(lambda: held_by(0))

    async def test_worker_takes_the_lock_again_after_its_session_was_terminated(
        self, app: App, session: Session
    ) -> None:
        held = (
            "SELECT count(*) FROM pg_locks, awa.workers WHERE locktype = 'advisory' AND objsubid = 2 "
            "AND classid = hashtext('awa:workers')::oid AND objid = hashtext(id::text)::oid AND locked_on IS NOT NULL"
        )
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'awa heartbeat' "
        mine = "AND datname = current_database()"
        async with app, working(app) as worker:

            async def held_twice() -> bool:  # by the heartbeat and by the claims
                return await count(session.connection, held) == 2

            for _ in range(2):
                await eventually(held_twice)
                await set_silence(session, worker.id, 60)
                await session.connection.execute(ended + mine)
                await eventually(partial(is_alive, session, worker))

    async def test_lock_of_a_worker_that_is_cut_off_outlives_its_handlers(self, database_url: str) -> None:
        async with counting_proxy(database_url) as (url, wire):
            app = with_settings(url, replace(QUICK, heartbeat_staleness=seconds(45)))
            async with app, working(app):
                await eventually(lambda: wire.count("heartbeat", "lock_worker"))
            asked = wire.settings["awa heartbeat"]
            assert (asked["tcp_keepalives_idle"], asked["tcp_user_timeout"]) == ("45", "0")

    async def test_worker_behind_a_pooler_takes_no_lock(self, database_url: str, session: Session) -> None:
        async with fake_pooler(database_url, shared=False) as url:
            app = with_settings(url, QUICK)
            async with app, working(app) as worker:
                first = (await worker_row(session, worker.id)).heartbeat_at

                async def has_beaten() -> bool:
                    return (await worker_row(session, worker.id)).heartbeat_at != first

                await eventually(has_beaten)
                assert (await worker_row(session, worker.id)).locked_on is None


async def is_alive(session: Session, worker: Worker) -> bool:
    return (await worker_row(session, worker.id)).alive


class TestWorker:
    async def test_worker_registers_with_its_label_and_limits(self, app: App, session: Session) -> None:  # F3
        name = WorkerName(prefix="mail", version="1.4")
        async with app, working(app, {"email": 3, "default": 9}, name=name) as worker:
            row = await worker_row(session, worker.id)
            assert row.label == worker.label == name.label(worker.id)
            assert (row.queues, row.limits) == (["email", "default"], [3, 9])

    async def test_worker_name_comes_from_the_environment(  # F2
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWA_WORKER_PREFIX", "mail")
        monkeypatch.setenv("AWA_WORKER_ID", "7")
        assert app.worker(["email"]).label == "mail-worker-7"
        monkeypatch.setenv("AWA_WORKER_PREFIX", " ")
        worker = app.worker(["email"])
        assert worker.label == str(worker.id)
        assert app.worker(["email"]).id != worker.id  # each start has a new id

    async def test_worker_has_its_directives_before_its_first_claim(  # F5
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[Directives] = []
        monkeypatch.setattr("awa_py.worker.claiming.claim_loop.ClaimLoop.apply", lambda self, given: seen.append(given))
        await insert_queue(session, "email", max_workers=10)
        await heartbeat_worker(session, worker_info())
        async with app, working(app, ["email"]):
            await eventually(lambda: seen)
        assert seen[0].queues == {"email": QueueDirectives(slots=5, limited=True)}

    @pytest.mark.parametrize("missed", [False, True], ids=["notified", "by polling"])
    async def test_worker_gets_new_directives_only_if_they_changed(  # F5
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch, missed: bool
    ) -> None:
        seen: list[Directives] = []
        monkeypatch.setattr("awa_py.worker.claiming.claim_loop.ClaimLoop.apply", lambda self, given: seen.append(given))
        if missed:
            monkeypatch.setattr("awa_py.db.listener.Listener._handle_payload", lambda *_: None)
        async with app, working(app, ["email"]):
            await eventually(lambda: seen)
            await pause_queue(session, "email", paused=True)
            await eventually(lambda: seen[-1].queues["email"].slots == 0, 10)
            await pause_queue(session, "email", paused=False)
            await eventually(lambda: seen[-1].queues["email"].slots is None, 10)
            beaten = "SELECT count(*) FROM awa.workers WHERE heartbeat_at > $1"
            now = await session.now()
            await eventually(lambda: count(session.connection, beaten, now))
        assert len([each for each in seen if not each.stop]) == 3  # a heartbeat without changes is not passed on

    async def test_failed_heartbeat_does_not_change_the_directives(  # F5
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[Directives] = []
        monkeypatch.setattr("awa_py.worker.claiming.claim_loop.ClaimLoop.apply", lambda self, given: seen.append(given))
        await pause_queue(session, "email", paused=True)
        async with app, working(app, ["email"]):
            await eventually(lambda: seen)
            await session.connection.execute("ALTER TABLE awa.queues RENAME TO hidden")
            await asyncio.sleep(2)  # several heartbeats
            await session.connection.execute("ALTER TABLE awa.hidden RENAME TO queues")
            beaten = "SELECT count(*) FROM awa.workers WHERE heartbeat_at > $1"
            now = await session.now()
            await eventually(lambda: count(session.connection, beaten, now))
        assert {each.queues["email"].slots for each in seen} == {0}

    @pytest.mark.parametrize("missed", [False, True], ids=["notified", "by polling"])
    async def test_quiet_worker_claims_nothing_and_finishes_its_jobs(
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch, missed: bool
    ) -> None:
        if missed:
            monkeypatch.setattr("awa_py.db.listener.Listener._handle_payload", lambda *_: None)
        gate = Gate()

        @app.job
        def work(ctx: Context) -> str:
            return gate(ctx)

        @app.job
        async def more() -> None: ...

        async with app, working(app) as worker:
            job = await app.enqueue("work")
            await eventually(gate.started.is_set)
            assert await command_workers(session, [worker.id], quiet=True) == {worker.id}
            await eventually(lambda: worker._quiet, 10)
            later = await app.enqueue("more")
            gate.open.set()
            assert await app.result(job.id, timeout="20s") == "the end"
            assert (await app.get(later.id)).state is State.AVAILABLE
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'awa %' "
            await session.connection.execute(f"{ended} AND datname = current_database() AND pid <> pg_backend_pid()")
            now = await session.now()
            await eventually(
                lambda: count(session.connection, "SELECT count(*) FROM awa.workers WHERE heartbeat_at > $1", now)
            )
            assert (await worker_row(session, worker.id)).quiet  # also after a reconnect
            assert (await app.get(later.id)).state is State.AVAILABLE
            await command_workers(session, [worker.id], quiet=False)
            await app.result(later.id, timeout="20s")

    async def test_worker_that_is_commanded_to_stop_drains_and_ends(self, app: App, session: Session) -> None:  # F19
        gate = Gate()

        @app.job
        def work(ctx: Context) -> str:
            return gate(ctx)

        async with app:
            worker = app.worker(["default"], maintenance=False)
            task = asyncio.create_task(worker.run())
            job = await app.enqueue("work")
            await eventually(gate.started.is_set)
            for _ in range(2):  # the second command has no effect, unlike a second signal
                await command_workers(session, [worker.id], stop=True)
                await eventually(lambda: worker._stopping.is_set(), 10)
            row = await worker_row(session, worker.id)
            now = await session.now()
            assert row.stopping
            await eventually(
                lambda: count(session.connection, "SELECT count(*) FROM awa.workers WHERE heartbeat_at > $1", now)
            )
            assert await running(app, job.id)
            gate.open.set()
            async with asyncio.timeout(PATIENCE_S):
                await task
            assert await app.result(job.id, timeout="1s") == "the end"
        assert gate.stop_reasons == []
        assert await list_workers(session, staleness=STALENESS) == []

    async def test_list_shows_that_a_worker_is_stopping(self, app: App, session: Session) -> None:
        gate = Gate()

        @app.job
        def work(ctx: Context) -> str:
            return gate(ctx)

        async with app, working(app) as worker:
            await app.enqueue("work")
            await eventually(gate.started.is_set)
            worker.stop()

            async def is_stopping() -> bool:
                return (await worker_row(session, worker.id)).stopping

            await eventually(is_stopping)
            assert await states(session) == {"running": 1}  # its own row does not make it stop faster
            gate.open.set()

    async def test_leases_are_renewed_less_often_than_heartbeats_are_sent(
        self, database_url: str, session: Session
    ) -> None:
        app = with_settings(
            database_url, replace(QUICK, heartbeat_interval=seconds(20), heartbeat_staleness=seconds(60))
        )
        gate = Gate()

        @app.job
        def work(ctx: Context) -> str:
            return gate(ctx)

        async with app, working(app) as worker:
            job = await app.enqueue("work")
            await eventually(gate.started.is_set)
            first = (await app.get(job.id)).heartbeat_at
            for _ in range(2):
                last = (await worker_row(session, worker.id)).heartbeat_at
                await eventually(partial(beaten_since, session, worker, last))
            assert (await app.get(job.id)).heartbeat_at == first
            gate.open.set()


async def beaten_since(session: Session, worker: Worker, moment: object) -> bool:
    return (await worker_row(session, worker.id)).heartbeat_at != moment


async def test_command_is_sent_to_its_worker_and_to_the_leader(session: Session, database: Database) -> None:
    one, two = worker_info(), worker_info()
    notifications: list[str] = []
    for channel in ("awa", "awa:leader"):
        await session.connection.add_listener(channel, lambda *args: notifications.append(f"{args[2]} {args[3]}"))
    async with another_session(database) as other:
        for each in (one, two):
            await heartbeat_worker(other, each)
        assert await command_workers(other, [one.id, new_owner()], quiet=True) == {one.id}
        assert [(await worker_row(other, each.id)).quiet for each in (one, two)] == [True, False]
    await eventually(lambda: len(notifications) == 2)
    assert sorted(notifications) == [f"awa workers:{one.id}", "awa:leader queues:"]
