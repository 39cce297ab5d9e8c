"""Job events that workers buffer and write, and the history that they give."""

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
from tests.processes import eventually as wait_until
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


async def event_names(app: App, job_id: int) -> list[str]:
    return [event.event for event in await app.history(job_id)]


class TestHistory:  # F15
    async def test_each_attempt_has_a_start_a_worker_and_an_end(self, app: App) -> None:
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
            # The worker wrote its last events before it ended.
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

    async def test_job_that_succeeds_at_once_writes_no_event(self, app: App, session: Session) -> None:
        @app.job
        async def work() -> None: ...

        async with app:
            (job, *_) = await app.enqueue_many([app.new("work") for _ in range(500)])
            await drain(app)
            assert await event_names(app, job.id) == ["enqueued", "started", "completed"]
        assert await count(session.connection, EVENTS) == 0

    async def test_failed_job_without_retries_writes_no_event(self, app: App, session: Session) -> None:
        @app.job(max_attempts=1)
        async def work() -> None:
            raise ValueError("boom")

        async with app:
            job = await app.enqueue("work")
            await drain(app)
            assert await event_names(app, job.id) == ["enqueued", "started", "failed"]
        assert await count(session.connection, EVENTS) == 0

    async def test_retried_job_keeps_its_history(self, app: App) -> None:
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
            assert await event_names(app, job.id) == expected
            failing = False
            await drain(app)
            assert await event_names(app, job.id) == [*expected, "started", "completed"]
            found = await app.history(job.id)
            assert [event.detail for event in found if event.detail] == ["ValueError: boom", "by hand"]
            assert await app.retry(job.id)
            assert await event_names(app, job.id) == [*expected, "started", "completed", "requeued"]

    async def test_rolled_back_enqueue_has_no_event(self, app: App, session: Session) -> None:
        @app.job
        async def work() -> None:
            raise ValueError("boom")

        async with app, working(app):
            transaction = session.connection.transaction()
            await transaction.start()
            (gone,) = await enqueue_jobs(session, [NewJob(kind="work")])
            await transaction.rollback()
            kept = await app.enqueue("work", max_attempts=2)
            await eventually(partial(has_events, session, kept.id))
            with pytest.raises(JobNotFound):
                await app.history(gone.id)
        assert await count(session.connection, f"{EVENTS} WHERE job_id = $1", gone.id) == 0

    async def test_history_of_an_unknown_job_is_an_error(self, app: App) -> None:
        async with app:
            with pytest.raises(JobNotFound, match="there is no job 123"):
                await app.history(123)


async def has_events(session: Session, job_id: int) -> bool:
    return bool(await count(session.connection, f"{EVENTS} WHERE job_id = $1", job_id))


class TestBuffer:  # F15
    async def test_start_of_a_long_run_is_written_while_it_runs(self, app: App, session: Session) -> None:
        finish = asyncio.Event()

        @app.job
        async def work() -> None:
            await finish.wait()

        async with app, working(app) as worker:
            job = await app.enqueue("work")
            await eventually(partial(has_events, session, job.id))
            (event,) = await events.list_events(session, job.id, limit=10)
            assert (event.event, event.lease, event.worker_id) == ("started", 1, worker.id)
            # The worker's clock and the database's are close.
            began_at = (await app.get(job.id)).attempted_at
            assert began_at is not None
            assert event.at == event.began_at
            assert abs((event.at - began_at).total_seconds()) < 5
            await asyncio.sleep(event_log.FLUSH_INTERVAL_S * 1.5)
            assert len(await events.list_events(session, job.id, limit=10)) == 1  # written only once
            finish.set()
            await app.result(job.id, timeout="30s")
            assert await event_names(app, job.id) == ["enqueued", "started", "completed"]

    async def test_events_beyond_the_buffer_are_dropped_and_counted(
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
                    await app.result(job.id, timeout="30s")  # the jobs are not affected
                assert sample(worker, "awa_timeline_dropped_total") == 15
            assert await count(session.connection, EVENTS) == 10

    async def test_flush_interrupted_by_a_stop_writes_events_once(
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = events.write_events

        async def write_slowly(*arguments: Any, **options: Any) -> None:
            await write(*arguments, **options)
            await asyncio.sleep(2)  # delay the answer

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

    async def test_flush_writes_at_most_one_batch_per_statement(
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(event_log, "MAX_PER_FLUSH", 7)
        sizes: list[int] = []
        write = events.write_events

        async def recording(*values: object, **named: object) -> None:
            sizes.append(len(values[2]))  # type: ignore[arg-type]
            await write(*values, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(events, "write_events", recording)

        @app.job
        async def work() -> None:
            raise Retry(after="1h")

        async with app:
            await app.enqueue_many([app.new("work") for _ in range(25)])
            await drain(app)
        assert sum(sizes) == 25
        assert max(sizes) == 7
        assert await count(session.connection, EVENTS) == 25

    async def test_release_at_the_end_of_the_drain_is_written(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only the last flush can write the event of a job that is released at the end of the shutdown."""
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

    async def test_stop_flushes_events_before_the_drain_ends(
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(event_log, "FLUSH_INTERVAL_S", 3600.0)
        finish = asyncio.Event()

        @app.job
        async def fail() -> None:
            raise Retry(after="1h")

        @app.job
        async def wait() -> None:
            await finish.wait()

        async with app:
            worker = app.worker(["default"], maintenance=False)
            running = asyncio.create_task(worker.run())
            waiting, failing = await app.enqueue("wait"), await app.enqueue("fail")
            await eventually(lambda: sample(worker, "awa_jobs_retried_total", queue="default", reason="asked"))
            assert (await app.get(waiting.id)).state is State.RUNNING
            assert not await has_events(session, failing.id)
            worker.stop()
            await eventually(partial(has_events, session, failing.id))  # during the drain
            assert not running.done()
            finish.set()
            async with asyncio.timeout(PATIENCE_S):
                await running

    async def test_lost_connection_loses_no_event(self, app: App, session: Session) -> None:
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
            await eventually(partial(has_events, session, first.id))
            assert await cut() == 1
            second = await app.enqueue("work")
            await eventually(partial(has_events, session, second.id))
            assert sample(worker, "awa_timeline_dropped_total") == 0

    async def test_zero_retention_writes_no_events(self, database_url: str, session: Session) -> None:
        app = with_settings(database_url, replace(QUICK, events_retention=seconds(0)))

        @app.job
        async def work() -> None:
            raise Retry(after="1h")

        async with app:
            async with working(app) as worker:
                job = await app.enqueue("work")
                await eventually(lambda: sample(worker, "awa_jobs_retried_total", queue="default", reason="asked"))
            assert await event_names(app, job.id) == ["enqueued", "error", "due"]
            assert await app.cancel(job.id)
            assert await app.retry(job.id)
            assert sample(worker, "awa_timeline_dropped_total") == 0
        assert await count(session.connection, EVENTS) == 0


async def test_killed_worker_loses_only_events(client: App, database_url: str, tmp_path: Path) -> None:  # F15
    """The start of the long job was written, that of the new one was not. Both jobs complete."""
    with processes(tmp_path, database_url, FAST) as started:
        first = started.worker("--no-maintenance")
        long = await jobs.sleep_once.enqueue()

        async def start_written() -> bool:
            return "started" in await event_names(client, long.id) and bool(
                await client.pool.fetchval("SELECT count(*) FROM awa.events WHERE job_id = $1", long.id)
            )

        await wait_until("its start is written", start_written)
        owner = (await client.get(long.id)).worker_id
        short = await jobs.sleep_once.enqueue()

        async def runs() -> bool:
            return (await client.get(short.id)).state is State.RUNNING

        await wait_until("the other one runs", runs)
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
        return (await run_once(task, session)).rows_changed

    async def partitions(self, session: Session) -> list[str]:
        rows = await session.connection.fetch(
            "SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE inhparent = 'awa.events'::regclass"
        )
        return sorted(row["relname"].removeprefix("events_") for row in rows)

    async def write(self, session: Session, *, age_s: float, rows: int = 1) -> None:
        event = events.JobEvent("retried", 1, 1, 1, -age_s, -age_s, None)
        await events.write_events(session, OWNER, [event] * rows, now=0.0)

    async def test_each_day_has_a_partition_and_old_ones_are_dropped(self, session: Session) -> None:
        assert len(await self.partitions(session)) == 1 + DAYS_AHEAD + 1
        await session.connection.execute("SELECT awa.drop_day_partitions('events', 'infinity')")
        await self.write(session, age_s=0, rows=3)
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

    async def test_old_rows_of_the_default_partition_are_deleted(self, session: Session) -> None:
        await self.write(session, age_s=8 * 86_400, rows=4)
        await self.write(session, age_s=6 * 86_400, rows=2)
        assert await count(session.connection, "SELECT count(*) FROM awa.events_default") == 6
        assert await self.clean_up(session) == 4
        assert await count(session.connection, EVENTS) == 2
