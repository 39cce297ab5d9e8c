"""The cursor of claims with an old snapshot that stops vacuum, and with jobs that are committed late."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from awa_py import App, NewJob, Settings
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.store.claim import Claim, Claimant, claim_jobs
from awa_py.store.session import Session
from awa_py.worker.claiming.queue_claimer import POSITION_SLACK, QueueClaimer
from awa_py.worker.in_flight import InFlightJobs
from tests.pages import count_pages, snapshot_held
from tests.support import OWNER, PATIENCE_S, another_session, claim, count, eventually, insert, put_one, working

pytestmark = pytest.mark.integration

LATE_S = 8.0  # usually about a second, more on a busy machine


def app_with_work(database_url: str, *, lasts_s: float = 0) -> tuple[App, list[int]]:
    """Return an app, and the list of the jobs that it ran."""
    app = App(database_url, settings=Settings())
    done: list[int] = []

    @app.job
    async def work(n: int = 0) -> None:
        if lasts_s:
            await asyncio.sleep(lasts_s)
        done.append(n)

    return app, done


class TestOldSnapshot:
    async def test_claim_from_the_cursor_reads_few_pages(self, database: Database) -> None:
        jobs, batch = 20_000, 500
        async with another_session(database, **STABLE_PLAN_SETTINGS) as session, snapshot_held(database):
            await insert(session, "ready", jobs)
            seen = 0
            while rows := await claim(session, limit=batch, after=max(0, seen - POSITION_SLACK)):
                seen = rows[-1]["pos"]
            await insert(session, "ready", 10)
            pages: list[int] = []
            async with count_pages(session) as pages_read:
                for after in (0, seen - POSITION_SLACK):
                    await pages_read()
                    assert len(await claim(session, limit=5, after=after)) == 5
                    pages.append((await pages_read()).blocks["ready_order"])
        from_zero, by_cursor = pages
        print(f"pages of the index: {by_cursor} by the cursor, {from_zero} from zero")
        # About 200 entries per page: 1,000 entries before the cursor, and one descent per priority.
        assert by_cursor < 30
        assert from_zero > 60

    async def test_cost_of_claims_does_not_grow(
        self, database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Compare the index pages per job of the first and the last quarter of the claims."""
        jobs = 30_000
        app, done = app_with_work(database_url)
        costs: list[float] = []

        async def measured(session: Session, claimant: Claimant, **options: object) -> Claim:
            async with session.connection.transaction():
                fetched = "SELECT pg_stat_get_xact_blocks_fetched('awa.ready_order'::regclass)"
                before = await session.connection.fetchval(fetched)
                claimed = await claim_jobs(session, claimant, **options)  # type: ignore[arg-type]
                after = await session.connection.fetchval(fetched)
            if len(claimed.rows) >= 100:
                costs.append((after - before) / len(claimed.rows))
            return claimed

        monkeypatch.setattr("awa_py.store.claim.claim_jobs", measured)
        async with app, snapshot_held(database):
            await app.enqueue_many([NewJob(kind="work", args_json='{"n": 1}') for _ in range(jobs)])
            async with asyncio.timeout(PATIENCE_S), working(app):
                await eventually(lambda: len(done) == jobs)
        quarter = len(costs) // 4
        first, last = sorted(costs[:quarter]), sorted(costs[-quarter:])
        print(f"pages a job: {[round(cost, 3) for cost in costs]}")
        assert quarter >= 10
        # Medians, because about one claim per second is a full scan.
        assert last[quarter // 2] < 2 * first[quarter // 2] + 0.01


class TestCursor:
    """The positions at which the claims of a QueueClaimer start."""

    @pytest.fixture
    def starts(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Return where the claims start, in the order of the claims."""
        starts: list[int] = []

        async def spy(*args: Any, positions: Sequence[int], **others: Any) -> Claim:
            starts.append(positions[1])  # of the default priority
            return await claim_jobs(*args, positions=positions, **others)

        monkeypatch.setattr("awa_py.store.claim.claim_jobs", spy)
        return starts

    @pytest.fixture
    def claimer(self) -> QueueClaimer:
        in_flight = InFlightJobs({"default": 1_000}, concurrency=1_000)
        return QueueClaimer("default", Claimant(OWNER, ["work"], []), in_flight, poll_s=1)

    async def test_job_committed_a_little_late_is_found_by_the_next_claim(
        self, session: Session, claimer: QueueClaimer, starts: list[int]
    ) -> None:
        first = await insert(session, "ready", 2 * POSITION_SLACK)
        late = await session.connection.fetchval(
            "DELETE FROM awa.ready WHERE id = $1 RETURNING pos", first[-POSITION_SLACK // 2]
        )
        while await claimer.claim(session, 500):
            pass
        starts.clear()
        (job_id,) = await insert(session, "ready", 1, pos=late)
        assert [row["id"] for row in await claimer.claim(session, 500)] == [job_id]
        assert 0 < starts[0] < late

    async def test_old_job_does_not_move_the_cursor_back(
        self, session: Session, claimer: QueueClaimer, starts: list[int]
    ) -> None:
        await insert(session, "ready", 3 * POSITION_SLACK)
        while await claimer.claim(session, 500):
            pass
        cursor = starts[-1] or starts[-2]
        await insert(session, "ready", 1, pos=1)
        await eventually(lambda: claimer.claim(session, 500))  # a full scan finds it
        starts.clear()
        await claimer.claim(session, 500)
        assert starts[0] >= cursor > 0


class TestLateCommit:
    @pytest.mark.parametrize("workers", [1, 2])
    async def test_late_job_runs_soon_in_spite_of_a_backlog(
        self, database_url: str, database: Database, workers: int
    ) -> None:
        app, done = app_with_work(database_url, lasts_s=0.01)  # slower than the producer
        enqueued = 0
        over = asyncio.Event()

        async def produce() -> None:
            """Keep 20,000 jobs waiting."""
            nonlocal enqueued
            while not over.is_set():
                if enqueued - len(done) < 20_000:
                    await app.enqueue_many([NewJob(kind="work", args_json='{"n": 1}') for _ in range(5_000)])
                    enqueued += 5_000
                await asyncio.sleep(0.001)

        async with app, another_session(database) as late:
            transaction = late.connection.transaction()
            await transaction.start()
            job_id = await put_one(late, args_json='{"n": -1}')
            below = await count(late.connection, "SELECT pos FROM awa.ready WHERE id = $1", job_id)
            await app.enqueue_many([NewJob(kind="work", args_json='{"n": 1}') for _ in range(20_000)])
            enqueued = 20_000
            producing = asyncio.create_task(produce())
            async with working(app), working(app) if workers == 2 else asyncio.timeout(None):
                await eventually(lambda: len(done) > 4 * POSITION_SLACK)
                await transaction.commit()
                committed = asyncio.get_running_loop().time()
                await eventually(lambda: -1 in done, LATE_S)
                waited_s = asyncio.get_running_loop().time() - committed
                waiting = await count(late.connection, "SELECT count(*) FROM awa.ready WHERE pos > $1", below)
                over.set()
                await producing
        print(f"{waited_s:.2f} s after its commit, with {waiting} waiting above it")
        assert waiting > 5_000  # otherwise it was found because the queue was empty
