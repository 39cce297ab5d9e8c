"""Who is woken when: a worker is while it has nothing to do, and looks by itself under load."""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from asyncpg.transaction import Transaction

from awa_py import App
from awa_py.store.heartbeat import listen_for_jobs as heartbeat_listen_for_jobs
from awa_py.store.session import Session
from tests.support import (
    PATIENCE_S,
    QUICK,
    another_session,
    eventually,
    nothing_runs,
    running,
    seconds,
    with_settings,
    working,
)

pytestmark = pytest.mark.integration


async def bells(session: Session) -> Counter[str]:
    """In which queues somebody wants to be woken."""
    rows = await session.connection.fetch("SELECT queue FROM awa.listening")
    return Counter(row["queue"] for row in rows)


async def bells_are(session: Session, *queues: str) -> bool:
    return await bells(session) == Counter(queues)


async def hear(session: Session) -> list[str]:
    """What is said from now on, as it is heard."""
    heard: list[str] = []
    await session.connection.add_listener("awa", lambda *args: heard.append(str(args[3])))
    return heard


async def all_heard(session: Session, heard: list[str]) -> list[str]:
    """All that was said before this moment."""
    await session.connection.execute("SELECT pg_notify('awa', 'test:')")
    await eventually(lambda: "test:" in heard)
    said = heard[: heard.index("test:")]
    heard.clear()
    return said


class TestWhoIsWoken:
    async def test_an_idle_worker_waits_in_each_of_its_queues(self, app: App, session: Session) -> None:
        async with app:
            async with working(app, ["a", "b"]):
                await eventually(lambda: bells_are(session, "a", "b"))
                async with working(app, ["b", "c"]):
                    await eventually(lambda: bells_are(session, "a", "b", "b", "c"))
                assert await bells_are(session, "a", "b")
            assert await bells_are(session)

    async def test_where_nobody_waits_nothing_is_said(self, app: App, session: Session) -> None:
        heard = await hear(session)
        async with app, working(app, ["elsewhere"]):
            await eventually(lambda: bells_are(session, "elsewhere"))
            await app.enqueue("work")
            await app.enqueue_many([app.new("work") for _ in range(10)])
            await session.connection.execute("SELECT awa.enqueue('work')")
            assert await all_heard(session, heard) == []

    async def test_where_somebody_waits_it_is_said_once_a_statement(self, app: App, session: Session) -> None:
        heard = await hear(session)

        @app.job
        async def work() -> None: ...

        async with app, working(app, ["default", "other"]), working(app, ["default"]):
            await eventually(lambda: bells_are(session, "default", "default", "other"))
            assert await all_heard(session, heard) == []
            await app.enqueue("work")
            assert await all_heard(session, heard) == ["ready:default"]
            await app.enqueue_many([app.new("work") for _ in range(10)])
            assert await all_heard(session, heard) == ["ready:default"]
            await app.enqueue_many([app.new("work", queue=queue) for queue in ("default", "other", "nobody's")])
            assert sorted(await all_heard(session, heard)) == ["ready:default", "ready:other"]
            await eventually(
                lambda: session.connection.fetchval("SELECT count(*) = 1 FROM awa.ready")  # the one that is nobody's
            )

    async def test_a_wake_up_while_all_slots_are_taken_is_not_forgotten(self, database_url: str) -> None:
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(60)))
        go_on = asyncio.Event()

        @app.job
        async def work() -> None:
            await go_on.wait()

        async with app, working(app, concurrency=1):
            first = await app.enqueue("work")
            await eventually(lambda: running(app, first.id))
            second = await app.enqueue("work")
            go_on.set()
            await app.result(second.id, timeout="20s")

    async def test_a_stopped_worker_is_not_woken(self, app: App, session: Session) -> None:
        async with app:
            worker = app.worker(["default"], maintenance=False)
            task = asyncio.create_task(worker.run())
            await eventually(lambda: bells_are(session, "default"))
            worker.stop()
            async with asyncio.timeout(PATIENCE_S):
                await task
            assert await bells_are(session)
            heard = await hear(session)
            await app.enqueue("work")
            assert await all_heard(session, heard) == []

    async def test_one_that_was_swept_is_back_after_its_next_beat(self, database_url: str, session: Session) -> None:
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(60)))

        @app.job
        async def work() -> None: ...

        async with app, working(app) as worker:
            await eventually(lambda: bells_are(session, "default"))
            async with session.connection.transaction():
                await session.connection.execute("DELETE FROM awa.workers WHERE id = $1", worker.id)
                assert await bells_are(session)
            await eventually(lambda: bells_are(session, "default"))
            job = await app.enqueue("work")
            await app.result(job.id, timeout="20s")


class TestLoad:
    async def test_a_busy_worker_is_not_woken_and_an_idle_one_is_again(self, app: App, session: Session) -> None:
        @app.job
        async def work() -> None: ...

        async with app, working(app):
            await eventually(lambda: bells_are(session, "default"))
            busy = True

            async def produce() -> None:
                while busy:
                    await app.enqueue_many([app.new("work") for _ in range(500)])

            producing = asyncio.create_task(produce())
            try:
                await eventually(lambda: bells_are(session))
            finally:
                busy = False
                await producing
            await eventually(lambda: nothing_runs(session))
            await eventually(lambda: bells_are(session, "default"))

    async def test_a_swept_worker_that_is_busy_does_not_ask_to_be_woken(
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("awa_py.worker.claiming.wakeups.Wakeups.prefers_wakeups", False)
        registered = "SELECT count(*) = 1 FROM awa.workers"
        async with app, working(app) as worker:
            await session.connection.execute("DELETE FROM awa.workers WHERE id = $1", worker.id)
            await eventually(lambda: session.connection.fetchval(registered))
            assert await bells_are(session)

    @pytest.mark.parametrize("when", ["just before", "a moment later"])
    async def test_what_was_enqueued_unseen_while_it_hung_its_bell_is_found(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch, when: str
    ) -> None:
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(60)))
        monkeypatch.setattr("awa_py.worker.claiming.claim_loop.POLLS_AFTER_SUBSCRIBING_S", (0.005, 0.02, 0.1, 2, 5))
        ran = asyncio.Event()
        late: list[asyncio.Task[None]] = []

        @app.job
        async def work() -> None:
            ran.set()

        async def commit(transaction: Transaction) -> None:
            if when == "a moment later":
                await asyncio.sleep(0.05)
            await transaction.commit()

        async with app, another_session(app.database) as producer:

            async def listen_for_jobs(*values: Any) -> None:
                if late:
                    return await heartbeat_listen_for_jobs(*values)
                transaction = producer.connection.transaction()
                await transaction.start()
                await producer.connection.execute("SELECT awa.enqueue('work')")  # it saw nobody who waits
                committing = asyncio.create_task(commit(transaction))
                late.append(committing)
                if when == "just before":
                    await committing
                return await heartbeat_listen_for_jobs(*values)

            monkeypatch.setattr("awa_py.store.heartbeat.listen_for_jobs", listen_for_jobs)
            async with working(app):
                async with asyncio.timeout(PATIENCE_S):
                    await ran.wait()
            await asyncio.gather(*late)

    async def test_no_job_is_overlooked_between_the_two(self, database_url: str, session: Session) -> None:
        """The poll is far away: whatever is enqueued while a worker hangs its bell up or takes it down is found."""
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(60)))
        ran: set[int] = set()

        @app.job
        async def work(n: int) -> None:
            ran.add(n)

        number = 0

        async def enqueue(count: int) -> None:
            nonlocal number
            new = [app.new("work", {"n": number + n}) for n in range(count)]
            number += count
            await app.enqueue_many(new)

        async with app, working(app):
            for turn in range(10):
                for _ in range(4):
                    await enqueue(250)  # a busy moment …
                for pause in range(15):  # … and single jobs while it becomes quiet
                    await enqueue(1)
                    await asyncio.sleep(0.002 * (pause + turn % 5))
                await eventually(lambda: len(ran) == number)
        assert ran == set(range(number))

    async def test_many_producers_at_once_lose_nothing(self, database_url: str, session: Session) -> None:
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(60)))
        ran: list[int] = []

        @app.job
        async def work(n: int) -> None:
            ran.append(n)

        async def produce(first: int) -> None:
            for n in range(first, first + 100):
                await app.enqueue("work", {"n": n})

        async with app, working(app):
            async with asyncio.TaskGroup() as tasks:
                for producer in range(8):
                    tasks.create_task(produce(100 * producer))
            await eventually(lambda: len(ran) == 800)
        assert sorted(ran) == list(range(800))


class TestWithoutIt:
    async def test_a_worker_that_hears_nothing_polls(  # F13
        self, database_url: str, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("awa_py.worker.worker.Listener.run", lambda self: asyncio.sleep(PATIENCE_S * 4))
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(0.1)))

        @app.job
        async def work() -> None: ...

        async with app:
            worker = app.worker(["default"], maintenance=False)
            task = asyncio.create_task(worker.run())
            for _ in range(3):
                job = await app.enqueue("work")
                await app.result(job.id, timeout="20s")
                await asyncio.sleep(0.3)
            assert not worker.listening
            assert await bells_are(session)  # nor does it ask for what it would not hear
            worker.stop()
            await task

    async def test_a_lost_notification_costs_a_poll(self, app: App, session: Session) -> None:
        @app.job
        async def work() -> None: ...

        async with app, working(app):
            await eventually(lambda: bells_are(session, "default"))
            for _ in range(2):
                await asyncio.sleep(0.3)  # the looks after hanging are over
                await session.connection.execute("INSERT INTO awa.ready (kind, queue) VALUES ('work', 'default')")
                await eventually(partial(nothing_runs, session))
