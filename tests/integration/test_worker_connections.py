"""A worker receives notifications, and survives the loss of its connections."""

import asyncio
import socket
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import awa_py as awa
from awa_py import App, Context
from awa_py.connections import DedicatedConnection
from awa_py.db.database import Database
from awa_py.store.session import Session
from awa_py.worker.claiming.queue_claimer import QueueClaimer
from tests.proxy import counting_proxy
from tests.support import (
    HASTY,
    PATIENCE_S,
    QUICK,
    another_session,
    count,
    eventually,
    nothing_runs,
    seconds,
    states,
    with_settings,
    working,
)

pytestmark = pytest.mark.integration

KEEPALIVES = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 15_000}


class TestConnections:
    async def test_worker_reconnects_when_the_server_stops_answering(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No connection ends: a proxy that has lost the server still accepts what is sent."""
        monkeypatch.setattr("awa_py.db.reconnecting.COMMAND_TIMEOUT_S", 2.0)
        async with counting_proxy(database_url) as (url, wire):
            app = with_settings(url, replace(QUICK, heartbeat_interval=seconds(1), heartbeat_staleness=seconds(6)))

            @app.job
            async def work() -> None: ...

            outside = App(database_url)
            async with outside, app, working(app):
                job = await outside.enqueue("work")
                await outside.result(job.id, timeout="20s")
                wire.stop_forwarding()
                job = await outside.enqueue("work")
                await outside.result(job.id, timeout="60s")

    async def test_jobs_of_a_claim_that_hung_when_its_connection_broke_run_at_once(
        self, database_url: str, session: Session, database: Database
    ) -> None:
        """The claim waits for a lock. It must not commit after the worker has looked for the jobs of a lost answer."""
        async with counting_proxy(database_url) as (url, wire):
            app = with_settings(url, QUICK)

            @app.job
            async def work() -> None: ...

            outside = App(database_url)
            async with outside, another_session(database) as locker:
                jobs = await outside.enqueue_many([outside.new("work", max_attempts=1) for _ in range(5)])
                lock = locker.connection.transaction()
                await lock.start()
                await locker.connection.execute("LOCK TABLE awa.ready IN ACCESS EXCLUSIVE MODE")
                async with working(app):
                    waiting = partial(pids_of, session, "awa claims", "wait_event_type = 'Lock'")
                    first = await eventually(waiting)
                    await wire.close_connections()
                    await eventually(partial(is_replaced, session, "awa claims", first, "wait_event_type = 'Lock'"))
                    await lock.rollback()
                    for job in jobs:
                        await outside.result(job.id, timeout="20s")
                found = [await outside.get(job.id) for job in jobs]
        assert {(job.attempt, job.rescues) for job in found} == {(1, 0)}

    async def test_jobs_of_a_claim_whose_answer_was_lost_run_at_once(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The claim is committed, and the worker does not know it. No leader runs that could rescue the jobs."""
        claim = QueueClaimer.claim
        lost = 0

        async def lose_first_answer(self: QueueClaimer, session: Session, limit: int) -> Any:
            nonlocal lost
            rows = await claim(self, session, limit)
            if rows and not lost:
                lost = len(rows)
                raise ConnectionResetError("the connection broke before the answer")
            return rows

        monkeypatch.setattr(QueueClaimer, "claim", lose_first_answer)
        app = with_settings(database_url, QUICK)

        @app.job(max_attempts=1)
        async def work() -> None: ...

        async with app:
            jobs = await app.enqueue_many([work.new() for _ in range(5)])
            async with working(app):
                for job in jobs:
                    await app.result(job.id, timeout="20s")
            found = [await app.get(job.id) for job in jobs]
        assert lost
        assert {(job.attempt, job.rescues) for job in found} == {(1, 0)}

    async def test_heartbeat_that_hangs_does_not_pile_up_sessions(
        self, database_url: str, session: Session, database: Database
    ) -> None:
        app = with_settings(database_url, HASTY)
        seen: set[int] = set()
        async with app, working(app), another_session(database) as locker, locker.connection.transaction():
            await locker.connection.execute("LOCK TABLE awa.workers IN ACCESS EXCLUSIVE MODE")
            while len(seen) < 4:
                pids = await pids_of(session, "awa heartbeat")
                seen |= pids
                assert len(pids) <= 2  # a new session ends the former one first of all
                await asyncio.sleep(0.05)

    async def test_connection_has_keepalives_that_detect_a_lost_server(self, connection: DedicatedConnection) -> None:
        """A server that was cut off does not close its connections: the kernel must notice it within 15 s."""
        connected_socket: socket.socket = connection._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        if connected_socket.family == socket.AF_UNIX:
            pytest.skip("a unix socket ends with its server")
        assert connected_socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        known = {name: value for name, value in KEEPALIVES.items() if hasattr(socket, name)}
        assert known == {name: connected_socket.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in known}

    async def test_server_has_keepalives_that_detect_a_lost_client(self, connection: DedicatedConnection) -> None:
        """A host that was cut off does not close its connections: the server must release its locks soon."""
        if await connection.fetchval("SELECT inet_client_addr() IS NULL"):
            pytest.skip("a unix socket ends with its client")
        rows = await connection.fetch("SELECT name, setting FROM pg_settings WHERE name LIKE 'tcp_keepalives_%'")
        settings = {row["name"]: int(row["setting"]) for row in rows}
        assert settings == {"tcp_keepalives_idle": 5, "tcp_keepalives_interval": 2, "tcp_keepalives_count": 3}

    async def test_new_job_wakes_an_idle_worker(self, database_url: str) -> None:  # F13
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(60)))

        @app.job
        async def work() -> None: ...

        async with app, working(app):
            for _ in range(5):
                job = await app.enqueue("work")
                began = time.monotonic()
                await app.result(job.id, timeout="20s")
                assert time.monotonic() - began < 5

    async def test_listener_reconnects(self, database_url: str, session: Session) -> None:
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(60)))

        @app.job
        async def work() -> None: ...

        async with app, working(app) as worker:
            for _ in range(2):
                before = await pids_of(session, "awa listener")
                assert await terminate(session, "awa listener") == 1
                await eventually(partial(has_new_session, session, "awa listener", before))
                await eventually(lambda: worker.listening)
                job = await app.enqueue("work")
                await app.result(job.id, timeout="20s")

    async def test_job_enqueued_while_the_listener_was_away_is_found_at_once(
        self, database_url: str, session: Session
    ) -> None:
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(60)))

        @app.job
        async def work() -> None: ...

        async with app, working(app):
            await terminate(session, "awa listener")
            job = await app.enqueue("work")
            await app.result(job.id, timeout="20s")

    async def test_no_job_is_lost_when_all_connections_break_under_load(self, app: App, session: Session) -> None:
        total = 600
        active: set[int] = set()
        twice: list[int] = []
        done: Counter[int] = Counter()

        @app.job
        async def work(ctx: Context) -> None:
            if ctx.job.id in active:
                twice.append(ctx.job.id)
            active.add(ctx.job.id)
            await asyncio.sleep(0.02)
            active.discard(ctx.job.id)
            done[ctx.job.id] += 1

        async with app, working(app, {"default": 10}, maintenance=True):
            jobs = await app.enqueue_many([app.new("work") for _ in range(total)])
            for _ in range(8):
                await asyncio.sleep(0.15)
                await terminate(session, "awa %")
            await eventually(lambda: nothing_runs(session), 60)
        assert await states(session) == {"completed": total}
        assert set(done) == {job.id for job in jobs}
        assert twice == []


async def pids_of(session: Session, name: str, condition: str = "true") -> set[int]:
    """Return the sessions of this application name."""
    rows = await session.connection.fetch(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1 "
        f"AND {condition}",
        name,
    )
    return {row["pid"] for row in rows}


async def has_new_session(session: Session, name: str, before: set[int]) -> bool:
    return bool(await pids_of(session, name) - before)


async def is_replaced(session: Session, name: str, before: set[int], condition: str) -> bool:
    now = await pids_of(session, name, condition)
    return bool(now) and not now & before


async def test_progress_survives_a_broken_connection(app: App, session: Session) -> None:
    seen: list[Any] = []
    locked = asyncio.Event()

    @app.job
    async def work(ctx: Context) -> None:
        seen.append(ctx.job.progress)
        if len(seen) == 1:
            await locked.wait()
            ctx.progress(0.5, "halfway")
            raise awa.Retry(after=0)

    async with app, working(app, maintenance=True):
        job = await app.enqueue("work")
        await eventually(lambda: seen)
        async with session.connection.transaction():
            await session.connection.execute("SELECT FROM awa.running FOR UPDATE")
            locked.set()
            await eventually(partial(app.pool.fetchval, TERMINATE_WRITE_OF_PROGRESS))
        await app.result(job.id, timeout=PATIENCE_S)
    assert seen == [None, {"fraction": 0.5, "message": "halfway"}]


TERMINATE_WRITE_OF_PROGRESS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%SET progress%'
"""


async def terminate(session: Session, name: str) -> int:
    """Terminate the sessions of this application name in this database, except for the test's own."""
    return await count(
        session.connection,
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name LIKE $1 AND application_name NOT IN ('awa test', 'awa client')",
        name,
    )
