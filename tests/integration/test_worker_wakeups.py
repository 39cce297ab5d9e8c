"""Idle workers are woken, busy workers poll."""

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


async def subscribed_queues(session: Session) -> Counter[str]:
    """Return how many workers subscribe to each queue."""
    rows = await session.connection.fetch("SELECT queue FROM awa.listening")
    return Counter(row["queue"] for row in rows)


async def subscribed_queues_are(session: Session, *queues: str) -> bool:
    return await subscribed_queues(session) == Counter(queues)


async def hear(session: Session) -> list[str]:
    """Return a list that receives every notification from now on."""
    heard: list[str] = []
    await session.connection.add_listener("awa", lambda *args: heard.append(str(args[3])))
    return heard


async def all_heard(session: Session, heard: list[str]) -> list[str]:
    """Wait until every earlier notification has arrived."""
    await session.connection.execute("SELECT pg_notify('awa', 'test:')")
    await eventually(lambda: "test:" in heard)
    said = heard[: heard.index("test:")]
    heard.clear()
    return said


class TestSubscription:
    async def test_idle_worker_subscribes_to_its_queues(self, app: App, session: Session) -> None:
        async with app:
            async with working(app, ["a", "b"]):
                await eventually(lambda: subscribed_queues_are(session, "a", "b"))
                async with working(app, ["b", "c"]):
                    await eventually(lambda: subscribed_queues_are(session, "a", "b", "b", "c"))
                assert await subscribed_queues_are(session, "a", "b")
            assert await subscribed_queues_are(session)

    async def test_no_notification_without_a_subscriber(self, app: App, session: Session) -> None:
        heard = await hear(session)
        async with app, working(app, ["elsewhere"]):
            await eventually(lambda: subscribed_queues_are(session, "elsewhere"))
            await app.enqueue("work")
            await app.enqueue_many([app.new("work") for _ in range(10)])
            await session.connection.execute("SELECT awa.enqueue('work')")
            assert await all_heard(session, heard) == []

    async def test_one_notification_per_statement(self, app: App, session: Session) -> None:
        heard = await hear(session)

        @app.job
        async def work() -> None: ...

        async with app, working(app, ["default", "other"]), working(app, ["default"]):
            await eventually(lambda: subscribed_queues_are(session, "default", "default", "other"))
            assert await all_heard(session, heard) == []
            await app.enqueue("work")
            assert await all_heard(session, heard) == ["ready:default"]
            await app.enqueue_many([app.new("work") for _ in range(10)])
            assert await all_heard(session, heard) == ["ready:default"]
            await app.enqueue_many([app.new("work", queue=queue) for queue in ("default", "other", "nobody's")])
            assert sorted(await all_heard(session, heard)) == ["ready:default", "ready:other"]
            await eventually(
                lambda: session.connection.fetchval("SELECT count(*) = 1 FROM awa.ready")  # the job of the other queue
            )

    async def test_wakeup_while_all_slots_are_taken_is_remembered(self, database_url: str) -> None:
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

    async def test_stopped_worker_is_unsubscribed(self, app: App, session: Session) -> None:
        async with app:
            worker = app.worker(["default"], maintenance=False)
            task = asyncio.create_task(worker.run())
            await eventually(lambda: subscribed_queues_are(session, "default"))
            worker.stop()
            async with asyncio.timeout(PATIENCE_S):
                await task
            assert await subscribed_queues_are(session)
            heard = await hear(session)
            await app.enqueue("work")
            assert await all_heard(session, heard) == []

    async def test_removed_worker_subscribes_again_with_its_heartbeat(
        self, database_url: str, session: Session
    ) -> None:
        app = with_settings(database_url, replace(QUICK, poll_interval=seconds(60)))

        @app.job
        async def work() -> None: ...

        async with app, working(app) as worker:
            await eventually(lambda: subscribed_queues_are(session, "default"))
            async with session.connection.transaction():
                await session.connection.execute("DELETE FROM awa.workers WHERE id = $1", worker.id)
                assert await subscribed_queues_are(session)
            await eventually(lambda: subscribed_queues_are(session, "default"))
            job = await app.enqueue("work")
            await app.result(job.id, timeout="20s")


class TestLoad:
    async def test_busy_worker_unsubscribes_until_it_is_idle(self, app: App, session: Session) -> None:
        @app.job
        async def work() -> None: ...

        async with app, working(app):
            await eventually(lambda: subscribed_queues_are(session, "default"))
            busy = True

            async def produce() -> None:
                while busy:
                    await app.enqueue_many([app.new("work") for _ in range(500)])

            producing = asyncio.create_task(produce())
            try:
                await eventually(lambda: subscribed_queues_are(session))
            finally:
                busy = False
                await producing
            await eventually(lambda: nothing_runs(session))
            await eventually(lambda: subscribed_queues_are(session, "default"))

    async def test_removed_worker_that_is_busy_does_not_subscribe(
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("awa_py.worker.claiming.wakeups.Wakeups.prefers_wakeups", False)
        registered = "SELECT count(*) = 1 FROM awa.workers"
        async with app, working(app) as worker:
            await session.connection.execute("DELETE FROM awa.workers WHERE id = $1", worker.id)
            await eventually(lambda: session.connection.fetchval(registered))
            assert await subscribed_queues_are(session)

    @pytest.mark.parametrize("when", ["just before", "a moment later"])
    async def test_job_enqueued_during_the_subscription_is_found(
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
                await producer.connection.execute("SELECT awa.enqueue('work')")  # it sees no subscriber
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

    async def test_no_job_is_missed_while_subscriptions_change(self, database_url: str, session: Session) -> None:
        """The poll interval is long, so only wake-ups can find the jobs."""
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
                    await enqueue(250)  # a busy moment,
                for pause in range(15):  # then single jobs
                    await enqueue(1)
                    await asyncio.sleep(0.002 * (pause + turn % 5))
                await eventually(lambda: len(ran) == number)
        assert ran == set(range(number))

    async def test_concurrent_producers_lose_nothing(self, database_url: str, session: Session) -> None:
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


class TestPolling:
    async def test_worker_without_a_listener_polls(  # F13
        self, database_url: str, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("awa_py.db.listener.Listener.run", lambda self: asyncio.sleep(PATIENCE_S * 4))
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
            assert await subscribed_queues_are(session)  # it does not subscribe to what it cannot receive
            worker.stop()
            await task

    async def test_poll_finds_a_job_after_a_lost_notification(self, app: App, session: Session) -> None:
        @app.job
        async def work() -> None: ...

        async with app, working(app):
            await eventually(lambda: subscribed_queues_are(session, "default"))
            for _ in range(2):
                await asyncio.sleep(0.3)  # the polls after subscribing are over
                await session.connection.execute("INSERT INTO awa.ready (kind, queue) VALUES ('work', 'default')")
                await eventually(partial(nothing_runs, session))
