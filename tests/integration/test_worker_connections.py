"""A worker hears of jobs by notification, and outlives its connections."""

import asyncio
import socket
import time
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from awa_py import App, Context
from awa_py.db.types import DedicatedConnection
from awa_py.store.session import Session
from tests.proxy import counting_proxy
from tests.support import (
    QUICK,
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
    async def test_a_server_that_falls_silent_is_left_for_one_that_answers(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No connection ends: somebody in between, who has lost the server, goes on taking what is sent."""
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

    async def test_our_own_system_notices_a_server_that_is_gone(self, connection: DedicatedConnection) -> None:
        """One that was cut off sends no end: the kernel asks for it, and gives up after 15 s."""
        opened: socket.socket = connection._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        if opened.family == socket.AF_UNIX:
            pytest.skip("a unix socket ends with its server")
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        known = {name: value for name, value in KEEPALIVES.items() if hasattr(socket, name)}
        assert known == {name: opened.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in known}

    async def test_a_new_job_wakes_an_idle_worker(self, database_url: str) -> None:  # F13
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(60)))

        @app.job
        async def work() -> None: ...

        async with app, working(app):
            for _ in range(5):
                job = await app.enqueue("work")
                began = time.monotonic()
                await app.result(job.id, timeout="20s")
                assert time.monotonic() - began < 5

    async def test_a_lost_listener_listens_again(self, database_url: str, session: Session) -> None:
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(60)))

        @app.job
        async def work() -> None: ...

        async with app, working(app) as worker:
            for _ in range(2):
                before = await listener_pids(session)
                assert await terminate(session, "awa listener") == 1
                await eventually(partial(listens_anew, session, before))
                await eventually(lambda: worker.listening)
                job = await app.enqueue("work")
                await app.result(job.id, timeout="20s")

    async def test_what_was_enqueued_while_nobody_listened_is_found_at_once(
        self, database_url: str, session: Session
    ) -> None:
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(60)))

        @app.job
        async def work() -> None: ...

        async with app, working(app):
            await terminate(session, "awa listener")
            job = await app.enqueue("work")
            await app.result(job.id, timeout="20s")

    async def test_every_connection_cut_under_load_loses_nothing(self, app: App, session: Session) -> None:
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


async def listener_pids(session: Session) -> set[int]:
    rows = await session.connection.fetch(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'awa listener'"
    )
    return {row["pid"] for row in rows}


async def listens_anew(session: Session, before: set[int]) -> bool:
    return bool(await listener_pids(session) - before)


async def terminate(session: Session, name: str) -> int:
    """Ends the sessions of a name in this database, but for the test's own."""
    return await count(
        session.connection,
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name LIKE $1 AND application_name NOT IN ('awa test', 'awa client')",
        name,
    )
