"""Counting running jobs costs the same however many jobs have ended, and misses none."""

from typing import Any

import pytest

from awa_py.connections import Record
from awa_py.db.database import Database
from awa_py.store.claim import PRIORITIES, Claimant, claim_limited_jobs, find_skipped_jobs
from awa_py.store.finish import complete_jobs
from awa_py.store.queues import set_queue
from awa_py.store.session import Session
from awa_py.worker.claiming.queue_claimer import POSITION_SLACK
from tests.pages import count_pages, snapshot_held
from tests.support import OWNER, claim, count, insert, insert_queue

pytestmark = pytest.mark.integration

LATEST = 2_000  # the distance between the mark and the latest claim
ROUND = 500
CLAIMANT = Claimant(OWNER, ["work"])
KEY = {"concurrency_key": "slow", "concurrency_limit": 3, "ordered": False}


class Line:
    """Claims as a worker does: each claim starts a little before the end of the last one."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._seen = 0

    async def take(self, limit: int, **options: Any) -> list[int]:
        defaults: dict[str, Any] = {"queue": "default", "positions": self._positions, "limit": limit}
        rows = (await claim_limited_jobs(self.session, CLAIMANT, **defaults | options)).rows
        self._seen = max([self._seen, *(row["pos"] for row in rows)])
        return [row["id"] for row in rows]

    async def search(self) -> list[int]:
        skipped = await find_skipped_jobs(
            self.session,
            CLAIMANT,
            queue="default",
            positions=self._positions,
            limit=200,
            max_keys=200,
            after_key="",
        )
        return skipped.ids

    @property
    def _positions(self) -> list[int]:
        return [max(0, self._seen - POSITION_SLACK)] * len(PRIORITIES)

    async def pass_through(self, jobs: int, **columns: Any) -> None:
        """Insert, claim and complete this number of jobs."""
        for _ in range(jobs // ROUND):
            await insert(self.session, "ready", ROUND, **columns)
            taken = await self.take(ROUND)
            assert len(taken) == ROUND
            await finish(self.session, taken)


async def finish(session: Session, ids: list[int]) -> None:
    await complete_jobs(session, OWNER, ids, [1] * len(ids), None, keep=False)


async def marks(session: Session) -> list[Record]:
    return await session.connection.fetch("SELECT scope, mark, cardinality(known) AS known FROM awa.claim_marks")


@pytest.fixture
def line(session: Session) -> Line:
    return Line(session)


class TestOldSnapshot:
    @pytest.mark.parametrize(
        ("limits", "columns", "indexes"),
        [
            ({"max_workers": ROUND}, {}, ["running_limited", "ready_order"]),
            (
                {},
                {"concurrency_key": "a", "concurrency_limit": 1_000, "ordered": False},
                ["running_keyed", "ready_keyed_order"],
            ),
        ],
        ids=["max_workers", "keys"],
    )
    async def test_cost_of_a_limited_claim_does_not_grow(
        self, database: Database, line: Line, limits: Any, columns: Any, indexes: list[str]
    ) -> None:
        await insert_queue(line.session, "default", **limits)

        async def cost() -> int:
            """Return the pages of all tables and indexes that one claim reads."""
            await insert(line.session, "ready", 5, **columns)
            async with count_pages(line.session) as pages_read:
                await pages_read()
                assert len(await line.take(5)) == 5
                pages = await pages_read()
                assert set(indexes) <= pages.blocks.keys()
                assert not pages.whole_tables & {"ready", "running"}
                return pages.total

        async with snapshot_held(database):
            await line.pass_through(3 * LATEST, **columns)
            early = await cost()
            await line.pass_through(15 * LATEST, **columns)
            late = await cost()
        print(f"{early} pages after {3 * LATEST:,} jobs, {late} after {18 * LATEST:,}")
        # Up to 2,000 jobs more or less lie behind the mark.
        assert late < 2 * early


class TestLongRunningJobs:
    async def test_old_running_job_counts_for_its_key(self, line: Line) -> None:
        held = await insert(line.session, "ready", 3, **KEY)
        assert await line.take(9) == held
        await insert(line.session, "ready", 1, **KEY)
        for _ in range(4):
            await line.pass_through(2 * LATEST, concurrency_key="quick", concurrency_limit=1_000, ordered=False)
            assert not await line.take(9)
            assert not await line.search()
        (mark,) = await marks(line.session)
        assert (mark["scope"], mark["known"]) == ("", 3)
        await finish(line.session, held[:1])
        assert len(await line.take(9, found=await line.search())) == 1

    async def test_old_running_job_counts_for_its_queue(self, line: Line) -> None:
        await insert_queue(line.session, "default", max_workers=ROUND + 3)
        await insert(line.session, "ready", 3)
        held = await line.take(3)
        for _ in range(3):
            await line.pass_through(2 * LATEST)
        (mark,) = await marks(line.session)
        assert (mark["scope"], mark["known"]) == ("default", 3)
        await insert(line.session, "ready", ROUND + 9)
        assert len(await line.take(2 * ROUND)) == ROUND
        await finish(line.session, held[:1])
        assert len(await line.take(9)) == 1

    async def test_queues_are_counted_separately(self, line: Line) -> None:
        for queue in ("default", "other"):
            await insert_queue(line.session, queue, max_workers=2)
            await insert(line.session, "ready", 3, queue=queue)
        assert len(await line.take(9)) == 2
        assert len(await Line(line.session).take(9, queue="other")) == 2

    async def test_jobs_claimed_before_the_limit_count_for_queue_and_key(self, line: Line) -> None:
        held = await insert(line.session, "ready", 3, **KEY)
        assert await line.take(9) == held
        plain = await insert(line.session, "ready", 2)
        assert sorted(row["id"] for row in await claim(line.session, limit=2)) == plain
        await line.pass_through(4 * LATEST, concurrency_key="quick", concurrency_limit=1_000, ordered=False)
        await set_queue(line.session, "default", {"max_workers": 6})
        assert await count(line.session.connection, "SELECT count(*) FROM awa.running_of_queue('default')") == 5
        assert await count(line.session.connection, "SELECT count(*) FROM awa.running_with_key()") == 3
        await insert(line.session, "ready", 9, **KEY)
        assert not await line.take(9)
        await insert(line.session, "ready", 9)
        assert len(await line.take(9)) == 1
