"""Payloads are deleted with their jobs, whatever deletes those."""

from datetime import timedelta

import pytest

from awa_py import App, Context
from awa_py.maintenance.cleanup import Cleanup
from awa_py.store.maintenance import delete_completed_jobs, delete_dead_jobs, delete_stray_payloads
from awa_py.store.partitions import drop_completed_partitions
from awa_py.store.session import Session
from tests.payloads import LARGE, assert_paired, complete, payload_ids, put_large
from tests.support import (
    count,
    drain,
    insert,
    insert_queue,
    put_one,
    seconds,
    states,
)

pytestmark = pytest.mark.integration

DAY = timedelta(days=1)


@pytest.fixture
def seen(app: App) -> list[str]:
    """Declare the job `work`. Return the list of texts that it got."""
    texts: list[str] = []

    @app.job
    async def work(text: str) -> None:
        texts.append(text)

    return texts


class TestDeletion:
    async def test_deleted_job_has_no_payload(self, app: App, session: Session) -> None:
        async with app:
            for state in ("ready", "scheduled", "dead", "completed"):
                job_id = await put_large(session, delay=DAY if state == "scheduled" else None)
                if state == "dead":
                    await app.cancel(job_id)
                if state == "completed":
                    await complete(session, job_id)
                await app.delete(job_id)
                await assert_paired(session, jobs=0)

    async def test_purged_queue_has_no_payloads(self, session: Session) -> None:
        await put_large(session)
        await put_large(session, delay=DAY)
        assert await session.fetchval("purge_queue", "default", 10) == 2
        await assert_paired(session, jobs=0)

    async def test_job_that_is_not_kept_leaves_no_payload(self, app: App, session: Session, seen: list[str]) -> None:
        await insert_queue(session, "default", completed_retention=seconds(0))
        await insert_queue(session, "kept")
        async with app:
            await app.enqueue("work", {"text": LARGE})
            await app.enqueue("work", {"text": LARGE}, queue="kept")
            await drain(app, "default", "kept")
        assert await states(session) == {"completed": 1}
        await assert_paired(session, jobs=1)

    async def test_durable_job_that_is_not_kept_leaves_no_payload(self, app: App, session: Session) -> None:
        await insert_queue(session, "default", completed_retention=seconds(0))

        @app.job
        async def work(ctx: Context, text: str) -> None:
            await ctx.step("a", len, text)

        async with app:
            await app.enqueue("work", {"text": LARGE})
            await drain(app)
        assert await states(session) == {}
        await assert_paired(session, jobs=0)

    async def test_dead_job_past_its_retention_leaves_no_payload(self, app: App, session: Session) -> None:
        job_id = await put_large(session)
        async with app:
            await app.cancel(job_id)
        await session.connection.execute("UPDATE awa.dead SET finalized_at = now() - interval '9 days'")
        assert await delete_dead_jobs(session, retention=DAY, limit=10) == 1
        await assert_paired(session, jobs=0)

    async def test_partition_is_dropped_after_its_jobs_with_payloads_were_deleted_in_batches(
        self, session: Session
    ) -> None:
        await session.connection.execute(
            "CREATE TABLE awa.completed_20200101 PARTITION OF awa.completed "
            "FOR VALUES FROM ('2020-01-01 00:00+00') TO ('2020-01-02 00:00+00')"
        )
        for _ in range(5):
            await complete(session, await put_large(session), at="2020-01-01 12:00+00")
        await complete(session, await put_one(session), at="2020-01-01 12:00+00")
        assert await drop_completed_partitions(session, retention=DAY) == 0
        for left in (3, 1, 0):
            await delete_completed_jobs(session, retention=DAY, limit=2)
            await assert_paired(session, jobs=left)
        assert await states(session) == {"completed": 1}
        assert await drop_completed_partitions(session, retention=DAY) == 1
        assert await states(session) == {}

    async def test_job_with_a_payload_is_kept_until_its_retention(self, session: Session) -> None:
        await insert_queue(session, "long", completed_retention=timedelta(days=3650))
        for queue in ("default", "long"):
            await complete(session, await put_large(session, queue=queue), at="2025-01-01 12:00+00")
        await complete(session, await put_large(session))
        assert await delete_completed_jobs(session, retention=DAY, limit=10) == 1
        assert await states(session) == {"completed": 2}
        await assert_paired(session, jobs=2)

    async def test_child_with_a_payload_does_not_keep_its_day_from_being_dropped(self, session: Session) -> None:
        parent = await put_one(session)
        await complete(session, await put_large(session, parent_id=parent), at="2020-01-01 12:00+00")
        await drop_completed_partitions(session, retention=DAY)
        assert await delete_completed_jobs(session, retention=DAY, limit=10) == 1
        assert await count(session.connection, "SELECT count(*) FROM awa.kept_results") == 1
        await assert_paired(session, jobs=0)

    async def test_leader_deletes_payloads_of_jobs_that_were_deleted_by_hand(self, session: Session) -> None:
        kept, gone = [await put_large(session) for _ in range(4)], [await put_large(session) for _ in range(3)]
        await session.connection.execute("DELETE FROM awa.ready WHERE id = ANY ($1)", gone)
        assert await delete_stray_payloads(session, after=0, limit=5) == (gone[0], 1)
        assert await delete_stray_payloads(session, after=gone[0], limit=5) == (None, 2)
        assert await payload_ids(session) == kept

    async def test_cleanup_passes_over_all_payloads(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("awa_py.maintenance.cleanup.ROWS_PER_BATCH", 2)
        kept = [await put_large(session) for _ in range(3)]
        await put_large(session)
        await session.connection.execute("DELETE FROM awa.ready WHERE id <> ALL ($1)", kept)
        cleanup = Cleanup(
            completed_retention=DAY, failed_retention=DAY, events_retention=DAY, rollup_retention=DAY, staleness=DAY
        )
        reports = [(await cleanup.run(session)).report for _ in range(3)]
        assert [report.payloads for report in reports] == [0, 1, 0]  # type: ignore[attr-defined]
        assert await payload_ids(session) == kept

    async def test_invalid_job_whose_id_is_taken_keeps_its_arguments(self, session: Session) -> None:
        job_id = await put_large(session)
        await insert(session, "dead", id=job_id, args=None, state="failed")
        row = await session.fetchrow("discard_invalid_jobs", "ready", 0, 10, seconds(0))
        assert row is not None
        (new_id,) = row["ids"]
        assert new_id != job_id
        for each in (job_id, new_id):
            assert (
                await session.connection.fetchval("SELECT args ->> 'text' FROM awa.jobs WHERE id = $1", each)
            ) == LARGE
