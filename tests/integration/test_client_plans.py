"""What statements on a client's connection read, whatever the statistics and the session's settings say.

Vacuum and ANALYZE saw empty tables, and the session made its plans then. A client's session has the settings of its
owner. Counted in rows and index entries, not timed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from awa_py.db.database import Database
from awa_py.model.job import NewJob, UniqueKey
from awa_py.store.enqueue import enqueue_jobs
from awa_py.store.jobs import find_ended_jobs, list_unserved_jobs
from awa_py.store.session import Session
from tests.support import another_session, insert, insert_completed, insert_running, seconds

pytestmark = pytest.mark.integration

SESSIONS = {
    "default": {},
    "custom plans": {"plan_cache_mode": "force_custom_plan"},
    "generic plans": {"plan_cache_mode": "force_generic_plan"},
    "no hash joins": {"enable_hashjoin": "off", "enable_hashagg": "off"},
    "no merge joins": {"enable_mergejoin": "off", "enable_sort": "off"},
    "no nested loops": {"enable_nestloop": "off", "enable_material": "off"},
    "no sequential scans": {"enable_seqscan": "off", "jit": "on", "jit_above_cost": "0"},
}
WARM_UP = 8  # PostgreSQL chooses between custom and generic plans at the sixth execution
ROWS_READ = """
    SELECT sum(pg_stat_get_xact_tuples_returned(oid)) FROM pg_class
    WHERE relnamespace = 'awa'::regnamespace AND relkind IN ('r', 'i')
"""


@pytest.fixture(params=SESSIONS)
async def client(database: Database, session: Session, request: pytest.FixtureRequest) -> AsyncIterator[Session]:
    """Return a session with settings of its own. The statistics say that all tables are empty."""
    await session.connection.execute("ANALYZE")
    async with another_session(database, **SESSIONS[request.param]) as client:
        yield client


async def rows_read(session: Session, work: Callable[[], Awaitable[object]]) -> int:
    """Return the number of rows and index entries that PostgreSQL read for `work`."""
    async with session.connection.transaction():
        before = await session.connection.fetchval(ROWS_READ)
        await work()
        return int(await session.connection.fetchval(ROWS_READ) - before)


class TestUniqueKeys:
    JOBS = 1_000
    PER_JOB = 10  # index entries of the key, of the job that holds it, and of the new job

    async def enqueue(self, client: Session, first: int, count: int) -> None:
        # The keys are not in order.
        keys = [f"key {first + 7919 * n % count}" for n in range(count)]
        await enqueue_jobs(client, [NewJob(kind="work", unique=UniqueKey(key=key)) for key in keys])

    async def test_cost_of_new_keys_does_not_grow(self, client: Session) -> None:
        for n in range(WARM_UP):
            await self.enqueue(client, n, 1)
        for first in range(self.JOBS, 5 * self.JOBS, self.JOBS):
            read = await rows_read(client, lambda first=first: self.enqueue(client, first, self.JOBS))  # type: ignore[misc]
            assert read < self.PER_JOB * self.JOBS

    async def test_cost_of_held_keys_does_not_grow(self, client: Session) -> None:
        for _ in range(WARM_UP):
            await self.enqueue(client, 0, 1)
        await insert(client, "ready", 5 * self.JOBS)
        await insert(client, "scheduled", 5 * self.JOBS, state="scheduled")
        await self.enqueue(client, 0, self.JOBS)
        read = await rows_read(client, lambda: self.enqueue(client, 0, self.JOBS))
        assert read < self.PER_JOB * self.JOBS

    async def test_cost_of_keys_of_ended_jobs_does_not_grow(self, client: Session) -> None:
        for _ in range(WARM_UP):
            await self.enqueue(client, 0, 1)
        await self.enqueue(client, 0, self.JOBS)
        await client.connection.execute("DELETE FROM awa.ready")
        read = await rows_read(client, lambda: self.enqueue(client, 0, self.JOBS))
        assert read < self.PER_JOB * self.JOBS


class TestResults:
    JOBS = 500
    OTHERS = 5_000
    PER_JOB = 12  # index entries and rows of up to three tables, or of each partition

    async def test_cost_of_a_look_depends_only_on_the_awaited_jobs(self, client: Session) -> None:
        for _ in range(WARM_UP):
            await find_ended_jobs(client, [1])
        ids = await self.awaited_jobs(client)
        assert await rows_read(client, lambda: find_ended_jobs(client, ids)) < self.PER_JOB * len(ids)

    async def test_cost_of_a_search_for_unserved_jobs_depends_only_on_the_awaited_jobs(self, client: Session) -> None:
        grace = seconds(2)
        for _ in range(WARM_UP):
            await list_unserved_jobs(client, [1], staleness=seconds(90), grace=grace)
        ids = await self.awaited_jobs(client)
        read = await rows_read(client, lambda: list_unserved_jobs(client, ids, staleness=seconds(90), grace=grace))
        assert read < self.PER_JOB * len(ids)

    async def awaited_jobs(self, client: Session) -> list[int]:
        """Insert jobs in all states. Return some ids of each, and some of jobs that do not exist."""
        ids = [
            *await insert(client, "ready", self.OTHERS),
            *await insert(client, "scheduled", self.OTHERS, state="scheduled"),
            *await insert_running(client, self.OTHERS),
            *await insert_completed(client, self.OTHERS, age_s=1),
            *await insert(client, "dead", self.OTHERS, state="failed"),
        ]
        return [*ids[:: len(ids) // self.JOBS], *range(10**9, 10**9 + 10)]
