"""What happened to jobs: noted beside their rows, off the hot path."""

import asyncio
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from awa_py import App, Context, JobNotFound, NewJob, Retry, Settings, Snooze, State
from awa_py.maintenance.cleanup import DAYS_AHEAD
from awa_py.maintenance.task import run_once
from awa_py.maintenance.tasks import all_tasks
from awa_py.observability.metrics import Metrics
from awa_py.store import events
from awa_py.store.enqueue import enqueue_jobs
from awa_py.store.session import Session
from awa_py.worker import event_log
from tests.chaos import jobs
from tests.processes import FAST, processes
from tests.processes import eventually as sooner_or_later
from tests.support import (
    OWNER,
    PATIENCE_S,
    QUICK,
    count,
    drain,
    eventually,
    sample,
    seconds,
    with_settings,
    working,
)

pytestmark = pytest.mark.integration

EVENTS = "SELECT count(*) FROM awa.events"


async def told(app: App, job_id: int) -> list[str]:
    return [event.event for event in await app.history(job_id)]


class TestHistory:  # F15
    async def test_every_attempt_has_its_start_its_worker_and_its_end(self, app: App) -> None:
        @app.job
        async def work(ctx: Context) -> None:
            if ctx.job.lease == 1:
                raise ValueError("boom")
            if ctx.job.lease == 2:
                raise Retry("not yet", after=0)
            if ctx.job.lease == 3:
                raise Snooze("100ms")

        async with app:
            async with working(app, maintenance=True) as worker:
                job = await app.enqueue("work")
                await app.result(job.id, timeout="30s")
            # The last events were noted just before the worker ended: it has written them.
            found = await app.history(job.id)
        assert [(event.event, event.attempt) for event in found if event.event != "due"] == [
            ("enqueued", None),
            ("started", 1),
            ("retried", 1),
            ("started", 2),
            ("retried", 2),
            ("started", 3),
            ("snoozed", 3),
            ("started", 3),
            ("completed", 3),
        ]
        assert {event.worker_id for event in found if event.event in ("started", "retried", "snoozed")} == {worker.id}
        assert [event.detail for event in found if event.detail] == ["ValueError: boom", "not yet", "for 100ms"]
        assert [event.at for event in found] == sorted(event.at for event in found)

    async def test_a_job_that_succeeds_at_once_leaves_no_event(self, app: App, session: Session) -> None:
        @app.job
        async def work() -> None: ...

        async with app:
            (job, *_) = await app.enqueue_many([app.new("work") for _ in range(500)])
            await drain(app)
            assert await told(app, job.id) == ["enqueued", "started", "completed"]
        assert await count(session.connection, EVENTS) == 0

    async def test_a_job_that_failed_for_good_is_told_by_its_row(self, app: App, session: Session) -> None:
        @app.job(max_attempts=1)
        async def work() -> None:
            raise ValueError("boom")

        async with app:
            job = await app.enqueue("work")
            await drain(app)
            assert await told(app, job.id) == ["enqueued", "started", "failed"]
        assert await count(session.connection, EVENTS) == 0

    async def test_what_an_operator_retries_keeps_its_past(self, app: App) -> None:
        failing = True

        @app.job(max_attempts=1)
        async def work() -> None:
            if failing:
                raise ValueError("boom")

        async with app:
            job = await app.enqueue("work")
            await drain(app)
            assert await app.retry(job.id)
            expected = ["enqueued", "started", "failed", "requeued"]
            assert await told(app, job.id) == expected
            failing = False
            await drain(app)
            assert await told(app, job.id) == [*expected, "started", "completed"]
            found = await app.history(job.id)
            assert [event.detail for event in found if event.detail] == ["ValueError: boom", "by hand"]
            assert await app.retry(job.id)
            assert await told(app, job.id) == [*expected, "started", "completed", "requeued"]

    async def test_a_rolled_back_enqueue_leaves_no_event(self, app: App, session: Session) -> None:
        @app.job
        async def work() -> None:
            raise ValueError("boom")

        async with app, working(app):
            transaction = session.connection.transaction()
            await transaction.start()
            (gone,) = await enqueue_jobs(session, [NewJob(kind="work")])
            await transaction.rollback()
            kept = await app.enqueue("work", max_attempts=2)
            await eventually(partial(has_noted, session, kept.id))
            with pytest.raises(JobNotFound):
                await app.history(gone.id)
        assert await count(session.connection, f"{EVENTS} WHERE job_id = $1", gone.id) == 0

    async def test_nobody_has_a_history_who_never_was(self, app: App) -> None:
        async with app:
            with pytest.raises(JobNotFound, match="there is no job 123"):
                await app.history(123)


async def has_noted(session: Session, job_id: int) -> bool:
    return bool(await count(session.connection, f"{EVENTS} WHERE job_id = $1", job_id))


class TestBuffer:  # F15
    async def test_a_long_run_is_noted_while_it_goes_on(self, app: App, session: Session) -> None:
        go_on = asyncio.Event()

        @app.job
        async def work() -> None:
            await go_on.wait()

        async with app, working(app) as worker:
            job = await app.enqueue("work")
            await eventually(partial(has_noted, session, job.id))
            (noted,) = await events.list_events(session, job.id, limit=10)
            assert (noted.event, noted.lease, noted.worker_id) == ("started", 1, worker.id)
            # By the worker's clock, and the database's: they are close.
            began_at = (await app.get(job.id)).attempted_at
            assert began_at is not None
            assert noted.at == noted.began_at
            assert abs((noted.at - began_at).total_seconds()) < 5
            await asyncio.sleep(event_log.FLUSH_INTERVAL_S * 1.5)
            assert len(await events.list_events(session, job.id, limit=10)) == 1  # and only once
            go_on.set()
            await app.result(job.id, timeout="30s")
            assert await told(app, job.id) == ["enqueued", "started", "completed"]

    async def test_what_does_not_fit_is_dropped_and_counted(
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(event_log, "MAX_BUFFERED", 10)
        monkeypatch.setattr(event_log, "FLUSH_INTERVAL_S", 3600.0)

        @app.job
        async def work(ctx: Context) -> None:
            if ctx.attempt == 1:
                raise Retry(after=0)

        async with app:
            async with working(app, maintenance=True) as worker:
                made = await app.enqueue_many([app.new("work") for _ in range(25)])
                for job in made:
                    await app.result(job.id, timeout="30s")  # no job suffers for it
                assert sample(worker, "awa_timeline_dropped_total") == 15
            assert await count(session.connection, EVENTS) == 10

    async def test_what_is_being_written_at_the_stop_is_written_once(
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = events.write_events

        async def write_slowly(*arguments: Any, **options: Any) -> None:
            await write(*arguments, **options)
            await asyncio.sleep(2)  # until the answer comes

        monkeypatch.setattr(events, "write_events", write_slowly)
        monkeypatch.setattr(event_log, "FLUSH_INTERVAL_S", 0.1)

        @app.job
        async def work() -> None:
            raise Snooze("1h")

        snoozed = partial(count, session.connection, f"{EVENTS} WHERE event = 'snoozed'")
        async with app:
            async with working(app):
                await app.enqueue("work")
                await eventually(snoozed)
            assert await snoozed() == 1

    async def test_a_flush_writes_so_much_and_not_more(
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(event_log, "MAX_PER_FLUSH", 7)
        sizes: list[int] = []
        write = events.write_events

        async def watched(*values: object, **named: object) -> None:
            sizes.append(len(values[2]))  # type: ignore[arg-type]
            await write(*values, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(events, "write_events", watched)

        @app.job
        async def work() -> None:
            raise Retry(after="1h")

        async with app:
            await app.enqueue_many([app.new("work") for _ in range(25)])
            await drain(app)
        assert sum(sizes) == 25
        assert max(sizes) == 7
        assert await count(session.connection, EVENTS) == 25

    async def test_what_ends_with_the_worker_is_written_after_the_drain(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A job that goes back at the very end of the shutdown: nothing but the last flush can write that."""
        monkeypatch.setattr(event_log, "FLUSH_INTERVAL_S", 3600.0)
        app = with_settings(database_url, replace(QUICK, shutdown_timeout=seconds(0.2)))
        started = asyncio.Event()

        @app.job
        async def work() -> None:
            started.set()
            await asyncio.sleep(PATIENCE_S)

        async with app:
            async with working(app) as worker:
                job = await app.enqueue("work")
                await asyncio.wait_for(started.wait(), PATIENCE_S)
            found = await app.history(job.id)
            assert [event.event for event in found] == ["enqueued", "started", "released"]
            assert (found[-1].worker_id, found[-1].detail) == (worker.id, "the worker is shutting down")

    async def test_a_stop_writes_at_once_what_is_noted_by_then(
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(event_log, "FLUSH_INTERVAL_S", 3600.0)
        go_on = asyncio.Event()

        @app.job
        async def fail() -> None:
            raise Retry(after="1h")

        @app.job
        async def wait() -> None:
            await go_on.wait()

        async with app:
            worker = app.worker(["default"], maintenance=False)
            running = asyncio.create_task(worker.run())
            waiting, failing = await app.enqueue("wait"), await app.enqueue("fail")
            await eventually(lambda: sample(worker, "awa_jobs_retried_total", queue="default", reason="asked"))
            assert (await app.get(waiting.id)).state is State.RUNNING
            assert not await has_noted(session, failing.id)
            worker.stop()
            await eventually(partial(has_noted, session, failing.id))  # while the drain still waits
            assert not running.done()
            go_on.set()
            async with asyncio.timeout(PATIENCE_S):
                await running

    async def test_a_lost_connection_loses_no_event(self, app: App, session: Session) -> None:
        @app.job
        async def work() -> None:
            raise Retry(after="1h")

        async def cut() -> int:
            return await count(
                session.connection,
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'awa timeline'",
            )

        async with app, working(app) as worker:
            first = await app.enqueue("work")
            await eventually(partial(has_noted, session, first.id))
            assert await cut() == 1
            second = await app.enqueue("work")
            await eventually(partial(has_noted, session, second.id))
            assert sample(worker, "awa_timeline_dropped_total") == 0

    async def test_with_a_retention_of_nothing_nothing_is_noted(self, database_url: str, session: Session) -> None:
        app = with_settings(database_url, replace(QUICK, events_retention=seconds(0)))

        @app.job
        async def work() -> None:
            raise Retry(after="1h")

        async with app:
            async with working(app) as worker:
                job = await app.enqueue("work")
                await eventually(lambda: sample(worker, "awa_jobs_retried_total", queue="default", reason="asked"))
            assert await told(app, job.id) == ["enqueued", "error", "due"]
            assert await app.cancel(job.id)
            assert await app.retry(job.id)
            assert sample(worker, "awa_timeline_dropped_total") == 0
        assert await count(session.connection, EVENTS) == 0


async def test_kill_9_loses_nothing_but_the_chart(client: App, database_url: str, tmp_path: Path) -> None:  # F15
    """Of the job that ran for long the start is known; of the one that had just begun it is not. Both are done."""
    with processes(tmp_path, database_url, FAST) as started:
        first = started.worker("--no-maintenance")
        long = await jobs.sleep_once.enqueue()

        async def noted() -> bool:
            return "started" in await told(client, long.id) and bool(
                await client.pool.fetchval("SELECT count(*) FROM awa.events WHERE job_id = $1", long.id)
            )

        await sooner_or_later("its start is noted", noted)
        owner = (await client.get(long.id)).worker_id
        short = await jobs.sleep_once.enqueue()

        async def runs() -> bool:
            return (await client.get(short.id)).state is State.RUNNING

        await sooner_or_later("the other one runs too", runs)
        first.send(signal.SIGKILL)
        first.wait()
        started.worker()
        for job in (long, short):
            await client.result(job.id, timeout="60s")
        steps, others = [
            [event for event in await client.history(job.id) if event.event != "due"] for job in (long, short)
        ]
    assert [(event.event, event.attempt) for event in steps] == [
        ("enqueued", None),
        ("started", 1),
        ("rescued", 1),
        ("started", 2),
        ("completed", 2),
    ]
    assert steps[1].worker_id == owner
    assert steps[3].worker_id not in (None, owner)
    assert [event.event for event in others][-3:] == ["rescued", "started", "completed"]


class TestPartitions:
    async def clean_up(self, session: Session, settings: Settings | None = None) -> int:
        (task,) = (task for task in all_tasks(settings or Settings(), [], Metrics()) if task.name == "cleanup")
        return await run_once(task, session)

    async def partitions(self, session: Session) -> list[str]:
        rows = await session.connection.fetch(
            "SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE inhparent = 'awa.events'::regclass"
        )
        return sorted(row["relname"].removeprefix("events_") for row in rows)

    async def note(self, session: Session, *, age_s: float, rows: int = 1) -> None:
        happening = events.JobEvent("retried", 1, 1, 1, -age_s, -age_s, None)
        await events.write_events(session, OWNER, [happening] * rows, now=0.0)

    async def test_each_day_has_one_and_old_ones_are_dropped_whole(self, session: Session) -> None:
        assert len(await self.partitions(session)) == 1 + DAYS_AHEAD + 1
        await session.connection.execute("SELECT awa.drop_day_partitions('events', 'infinity')")
        await self.note(session, age_s=0, rows=3)
        assert await count(session.connection, "SELECT count(*) FROM awa.events_default") == 3
        assert await self.clean_up(session) == 1 + DAYS_AHEAD
        assert await count(session.connection, "SELECT count(*) FROM awa.events_default") == 0
        assert await count(session.connection, EVENTS) == 3
        await session.connection.execute(
            "CREATE TABLE awa.events_20200101 PARTITION OF awa.events "
            "FOR VALUES FROM ('2020-01-01 00:00+00') TO ('2020-01-02 00:00+00')"
        )
        assert await self.clean_up(session) == 1
        assert "20200101" not in await self.partitions(session)
        assert await count(session.connection, EVENTS) == 3

    async def test_what_had_no_day_of_its_own_is_deleted_when_old(self, session: Session) -> None:
        await self.note(session, age_s=8 * 86_400, rows=4)
        await self.note(session, age_s=6 * 86_400, rows=2)
        assert await count(session.connection, "SELECT count(*) FROM awa.events_default") == 6
        assert await self.clean_up(session) == 4
        assert await count(session.connection, EVENTS) == 2
