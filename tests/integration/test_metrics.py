"""The metrics of a worker and a leader, with a real PostgreSQL."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from awa_py import App, BatchJob, Context, Fail, Retry
from awa_py.connections import Connection
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.maintenance.election import Candidate
from awa_py.maintenance.queue_gauges import COUNT_PAUSE_FACTOR, QueueGauges
from awa_py.maintenance.rescue import rescue_overdue, rescue_stale
from awa_py.model.job import NO_TIMER
from awa_py.observability.metrics import MAX_QUEUE_LABELS, OTHER_QUEUES, Metrics
from awa_py.store import queue_metrics
from awa_py.store.session import Session
from tests.pages import count_pages
from tests.support import (
    QUICK,
    ago,
    another_session,
    eventually,
    insert,
    insert_completed,
    insert_queue,
    insert_running,
    put_one,
    seconds,
    working,
)

pytestmark = pytest.mark.integration

FREQUENT_METRICS = replace(QUICK, metrics_interval=seconds(0.2))
DAY = seconds(86_400)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


@asynccontextmanager
async def leading(app: App, metrics: Metrics) -> AsyncIterator[Candidate]:
    candidate = app.candidate(metrics=metrics)
    candidate.start()
    try:
        await eventually(lambda: candidate.is_leader)
        yield candidate
    finally:
        await candidate.stop()


class TestWorker:
    async def test_worker_counts_and_times_its_jobs(self, app: App) -> None:
        @app.job
        async def work(n: int) -> None:
            await asyncio.sleep(0.02 * (n == 0))

        @app.job(batch=10, linger="10ms")
        async def together(jobs: list[BatchJob]) -> None: ...

        metrics = Metrics(timing=True)
        async with app, working(app, metrics=metrics):
            await app.enqueue_many([work.new(n) for n in range(40)])
            await app.enqueue_many([together.new() for _ in range(10)])
            await eventually(lambda: value(metrics, "awa_jobs_completed_total", queue="default") == 50)
            await eventually(lambda: value(metrics, "awa_flush_jobs_sum") == 50)
            assert value(metrics, "awa_jobs_claimed_total", queue="default") == 50
            assert value(metrics, "awa_job_wait_seconds_count", queue="default") == 50
            assert 0 < (value(metrics, "awa_job_wait_seconds_sum", queue="default") or 0) < 50 * 30
            assert value(metrics, "awa_job_run_seconds_count", kind="work") == 40
            assert (value(metrics, "awa_job_run_seconds_sum", kind="work") or 0) >= 0.02
            calls = value(metrics, "awa_job_run_seconds_count", kind="together")
            assert calls is not None
            assert 1 <= calls < 10  # calls, not jobs
            assert value(metrics, "awa_claim_jobs_sum") == 50
            assert (value(metrics, "awa_claim_seconds_count") or 0) >= (value(metrics, "awa_claim_jobs_count") or 0)
            assert (value(metrics, "awa_flush_seconds_count") or 0) == value(metrics, "awa_flush_jobs_count")

    async def test_checkpoints_and_replays_are_counted(self, app: App) -> None:
        async def nothing() -> None: ...

        async def book(connection: Connection) -> None: ...

        @app.job
        async def work(ctx: Context) -> None:
            await ctx.step("a", nothing)
            await ctx.transact("b", book)
            await ctx.wait_signal("go", timeout="1h")
            await ctx.step("c", nothing)

        metrics = Metrics(timing=True)
        async with app, working(app, metrics=metrics):
            job = await work.enqueue()
            await eventually(lambda: value(metrics, "awa_jobs_suspended_total", queue="default") == 1)
            assert value(metrics, "awa_checkpoints_total") == 2
            assert value(metrics, "awa_replays_total") == 0
            await app.signal(job, "go")
            await app.result(job, timeout="30s")
            assert value(metrics, "awa_checkpoints_total") == 4
            assert value(metrics, "awa_replays_total") == 1

    async def test_wait_includes_the_time_without_a_worker(self, app: App, session: Session) -> None:
        @app.job
        async def work() -> None: ...

        await insert(session, "ready", run_at=ago(120))
        metrics = Metrics(timing=True)
        async with app, working(app, metrics=metrics):
            await eventually(lambda: value(metrics, "awa_jobs_completed_total", queue="default") == 1)
            assert 120 <= (value(metrics, "awa_job_wait_seconds_sum", queue="default") or 0) < 240

    async def test_failures_are_counted_by_reason(self, app: App, session: Session) -> None:
        @app.job(max_attempts=1)
        async def work(how: str) -> object:
            match how:
                case "error":
                    raise ValueError("it broke")
                case "timeout":
                    await asyncio.sleep(60)
                case "result":
                    return object()
            return Fail("never") if how == "asked" else Retry("later")

        metrics = Metrics()
        async with app, working(app, metrics=metrics):
            for how in ("error", "asked", "result"):
                await work.enqueue(how)
            await work.options(timeout="50ms").enqueue("timeout")
            await work.options(max_attempts=5).enqueue("again")
            await put_one(session, args_json='{"nobody": "asked"}', max_attempts=1)

            def failed(reason: str) -> float | None:
                return value(metrics, "awa_jobs_failed_total", queue="default", reason=reason)

            reasons = ("error", "timeout", "result", "asked", "arguments")
            await eventually(lambda: [failed(reason) for reason in reasons] == [1] * len(reasons))
            await eventually(lambda: value(metrics, "awa_jobs_retried_total", queue="default", reason="asked") == 1)

    async def test_worker_gauges_disappear_when_it_stops(self, app: App) -> None:
        @app.job
        async def work(ctx: Context) -> None:
            await ctx.wait_cancelled()

        metrics = Metrics()
        async with app:
            async with working(app, {"default": 3}, metrics=metrics, concurrency=7) as worker:
                job = await work.enqueue()
                await eventually(lambda: value(metrics, "awa_jobs_running", queue="default") == 1)
                assert value(metrics, "awa_worker_slots") == 7
                assert value(metrics, "awa_listening") == 1
                beat = value(metrics, "awa_heartbeat_timestamp_seconds")
                assert beat is not None
                assert time.time() - 30 < beat <= time.time()
                await app.cancel(job.id)
                await eventually(lambda: value(metrics, "awa_jobs_cancelled_total", queue="default") == 1)
                worker.stop()
            assert value(metrics, "awa_jobs_running", queue="default") is None
            assert value(metrics, "awa_heartbeat_timestamp_seconds") is None

    async def test_reconnects_and_polling_fallbacks_are_counted(self, app: App, session: Session) -> None:
        @app.job
        async def work() -> None: ...

        metrics = Metrics()
        async with app, working(app, metrics=metrics) as worker:
            assert value(metrics, "awa_reconnects_total", connection="listener") == 0
            assert value(metrics, "awa_polling_fallbacks_total") == 0
            await app.result((await work.enqueue()).id, timeout="30s")  # both connections are open now
            await session.connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name IN ('awa listener', 'awa claims')"
            )
            await eventually(lambda: value(metrics, "awa_polling_fallbacks_total") == 1)
            await eventually(lambda: value(metrics, "awa_reconnects_total", connection="listener") == 1)
            await eventually(lambda: value(metrics, "awa_reconnects_total", connection="claims") == 1)
            await eventually(lambda: worker.listening)


class TestLeader:
    async def test_leader_reports_itself_and_the_queues(self, database: Database, session: Session) -> None:
        app = App(database.url, settings=FREQUENT_METRICS)
        metrics = Metrics(timing=True)
        await insert(session, "ready", 3, queue="email", kind="nobody", run_at=ago(120))
        await insert(session, "ready", 2, queue="email", kind="nobody", priority=4, run_at=ago(600))
        await insert(session, "scheduled", 4, queue="later", state="scheduled", run_at=ago(-3600))
        await insert_queue(session, "still", paused=True)
        await insert_queue(session, "gh", throttled_until=ago(-3600), max_workers=3)
        async with leading(app, metrics):
            jobs = "awa_queue_jobs"
            await eventually(lambda: value(metrics, jobs, queue="email", state="available") == 5)
            await eventually(lambda: value(metrics, jobs, queue="later", state="scheduled") == 4)
            assert value(metrics, jobs, queue="email", state="running") == 0
            assert 600 <= (value(metrics, "awa_queue_oldest_waiting_seconds", queue="email") or 0) < 700
            assert value(metrics, "awa_queue_oldest_waiting_seconds", queue="later") == 0
            assert value(metrics, "awa_queue_paused", queue="still") == 1
            assert value(metrics, "awa_queue_paused", queue="email") == 0
            assert value(metrics, "awa_queue_throttled", queue="gh") == 1
            assert value(metrics, "awa_queue_throttled", queue="email") == 0
            assert value(metrics, "awa_queue_max_workers", queue="gh") == 3
            assert value(metrics, "awa_queue_max_workers", queue="email") is None
            assert value(metrics, "awa_queue_workers", queue="email") == 0
            assert value(metrics, "awa_workers") == 0
            assert value(metrics, "awa_is_leader") == 1
            assert value(metrics, "awa_leader_epoch") == 1
            assert (value(metrics, "awa_task_seconds_count", task="promote") or 0) > 0
            assert abs((value(metrics, "awa_queue_jobs_timestamp_seconds", table="ready") or 0) - time.time()) < 30
            await insert(session, "ready", 1, queue="email", kind="nobody")
            await eventually(lambda: value(metrics, jobs, queue="email", state="available") == 6)
        assert value(metrics, "awa_is_leader") == 0
        assert value(metrics, jobs, queue="email", state="available") is None
        assert value(metrics, "awa_workers") is None

    async def test_only_a_timing_leader_reads_queue_gauges(self, database: Database) -> None:
        app = App(database.url, settings=FREQUENT_METRICS)
        untimed, first, second = Metrics(), Metrics(timing=True), Metrics(timing=True)
        async with leading(app, untimed):
            await asyncio.sleep(3 * FREQUENT_METRICS.metrics_interval.total_seconds())
            assert value(untimed, "awa_workers") is None
        async with leading(app, first):
            await eventually(lambda: value(first, "awa_workers") == 0)
            candidate = app.candidate(metrics=second)
            candidate.start()
            try:
                await eventually(lambda: not candidate.problems())
                assert value(second, "awa_workers") is None
            finally:
                await candidate.stop()

    async def test_leader_reports_overdue_maintenance(self, database: Database, session: Session) -> None:
        metrics = Metrics(timing=True)
        gauges = QueueGauges(
            database, replace(FREQUENT_METRICS, failed_retention=DAY, completed_retention=DAY), metrics
        )
        await gauges.refresh(session)
        assert value(metrics, "awa_due_lag_seconds") == value(metrics, "awa_stale_lag_seconds") == 0
        assert value(metrics, "awa_cleanup_backlog_jobs", table="dead") == 0
        assert value(metrics, "awa_cleanup_backlog_jobs", table="completed") == 0
        await insert(session, "scheduled", state="waiting", waits="{}", run_at=NO_TIMER)
        await gauges.refresh(session)
        assert value(metrics, "awa_due_lag_seconds") == 0  # it is never due
        await insert(session, "scheduled", state="retryable", attempt=1, run_at=ago(90))
        await insert_running(session, silent_s=FREQUENT_METRICS.heartbeat_staleness.total_seconds() + 50)
        await insert(session, "dead", 7, state="failed", finalized_at=ago(100_000))
        await insert(session, "dead", 2, state="failed", finalized_at=ago(100))
        await insert_completed(session, 3, age_s=1)
        await session.connection.execute(
            "CREATE TABLE awa.completed_20200101 PARTITION OF awa.completed "
            "FOR VALUES FROM ('2020-01-01+00') TO ('2020-01-02+00')"
        )
        await session.connection.execute("UPDATE pg_class SET reltuples = 5000 WHERE relname = 'completed_20200101'")
        await gauges.refresh(session)
        assert 90 <= (value(metrics, "awa_due_lag_seconds") or 0) < 150
        assert 50 <= (value(metrics, "awa_stale_lag_seconds") or 0) < 100
        assert value(metrics, "awa_cleanup_backlog_jobs", table="dead") == 7
        assert value(metrics, "awa_cleanup_backlog_jobs", table="completed") == 5000

    async def test_leader_counts_rescued_and_expired_jobs(self, session: Session) -> None:
        metrics = Metrics()
        await insert_running(session, 2, silent_s=1000, queue="email")
        await insert_running(session, silent_s=1000, queue="email", attempt=1, max_attempts=1)
        await insert_running(session, deadline_at=ago(1), queue="email")
        await insert(session, "ready", 4, queue="email", expires_at=ago(1))
        await rescue_stale(session, staleness=seconds(90), interval=seconds(30), metrics=metrics)
        await rescue_overdue(session, staleness=seconds(90), metrics=metrics)
        assert value(metrics, "awa_jobs_retried_total", queue="email", reason="lost") == 2
        assert value(metrics, "awa_jobs_failed_total", queue="email", reason="lost") == 1
        assert value(metrics, "awa_jobs_retried_total", queue="email", reason="timeout") == 1
        assert value(metrics, "awa_jobs_failed_total", queue="email", reason="expired") == 4

    async def test_largest_queues_have_labels_and_the_rest_are_summed(
        self, database: Database, session: Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        await session.connection.execute(
            "INSERT INTO awa.ready (kind, queue, run_at) SELECT 'work', 'q' || q, now() - interval '1 hour' "
            "FROM generate_series(1, 1000) AS q, generate_series(1, CASE WHEN q <= 100 THEN 3 ELSE 1 END)"
        )
        metrics = Metrics(timing=True)
        gauges = QueueGauges(database, FREQUENT_METRICS, metrics)
        await gauges.refresh(session)
        await gauges.refresh(session)
        families = {family.name: family.samples for family in metrics.registry.collect()}
        assert len(families["awa_queue_oldest_waiting_seconds"]) == MAX_QUEUE_LABELS + 1
        assert value(metrics, "awa_queue_jobs", queue="q100", state="available") == 3
        assert value(metrics, "awa_queue_jobs", queue="q101", state="available") is None
        assert value(metrics, "awa_queue_jobs", queue=OTHER_QUEUES, state="available") == 900
        assert (value(metrics, "awa_queue_oldest_waiting_seconds", queue=OTHER_QUEUES) or 0) >= 3600
        assert caplog.text.count("1000 queues: metrics name the 100 largest") == 1

    async def test_slow_count_is_followed_by_a_long_pause(
        self, database: Database, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counted: list[str] = []
        count = queue_metrics.count_queue_jobs

        async def slow(session: Session, table: str) -> object:
            counted.append(table)
            await asyncio.sleep(2.0 if table == "ready" else 0)
            return await count(session, table)

        monkeypatch.setattr(queue_metrics, "count_queue_jobs", slow)
        gauges = QueueGauges(database, FREQUENT_METRICS, Metrics(timing=True))
        await gauges.refresh(session)
        assert gauges._next_count_at["ready"] > time.monotonic() + COUNT_PAUSE_FACTOR
        await eventually(lambda: time.monotonic() > max(gauges._next_count_at[t] for t in ("running", "dead")))
        await gauges.refresh(session)
        assert counted.count("ready") == 1
        assert counted.count("running") == counted.count("dead") == 2

    async def test_gauges_disappear_if_the_database_fails(self, database: Database, session: Session) -> None:
        app = App(database.url, settings=FREQUENT_METRICS)
        metrics = Metrics(timing=True)
        async with leading(app, metrics):
            await eventually(lambda: value(metrics, "awa_workers") == 0)
            await session.connection.execute("ALTER TABLE awa.dead RENAME TO gone")
            await eventually(lambda: value(metrics, "awa_workers") is None)
            await session.connection.execute("ALTER TABLE awa.gone RENAME TO dead")
            await eventually(lambda: value(metrics, "awa_workers") == 0)


async def test_large_tables_are_counted_exactly(big_url: str) -> None:
    database = Database(big_url, Schema())
    metrics = Metrics(timing=True)
    # Other tests claim jobs there: both counts use one snapshot.
    async with another_session(database) as session, session.connection.transaction(isolation="repeatable_read"):
        await QueueGauges(database, QUICK, metrics).refresh(session)
        rows = await session.connection.fetch(
            "SELECT queue, state, count(*) AS jobs FROM awa.jobs WHERE state <> 'completed' GROUP BY queue, state"
        )
    counted = {(row["queue"], row["state"]): row["jobs"] for row in rows}
    assert sum(counted.values()) > 700_000
    (samples,) = [family.samples for family in metrics.registry.collect() if family.name == "awa_queue_jobs"]
    others: Counter[str] = Counter()
    for sample in samples:
        labels = (sample.labels["queue"], sample.labels["state"])
        if labels[0] == OTHER_QUEUES:
            others[labels[1]] = int(sample.value)
        else:
            assert sample.value == counted.pop(labels, 0)
    rest: Counter[str] = Counter()
    for (_, state), jobs in counted.items():
        rest[state] += jobs
    assert +others == rest


async def test_queue_gauges_read_few_pages_of_large_tables(big_url: str) -> None:
    async with another_session(Database(big_url, Schema())) as session:
        for _ in range(2):
            async with count_pages(session) as pages_read:
                queues = await queue_metrics.read_queue_metrics(session, staleness=seconds(90))
                spent = await pages_read()
        assert queues
        assert spent.total <= 40 * len(queues) + 200
        assert not spent.whole_tables & {"ready", "scheduled", "running", "dead"}
