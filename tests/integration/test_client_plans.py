"""What statements of clients read, whatever the statistics and the session's settings say.

Vacuum and ANALYZE saw empty tables, and the session made its plans then. A connection of the user has the settings of
its owner. Counted in rows and index entries, not timed.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.errors import JobNotFound
from awa_py.model.job import NewJob, UniqueKey
from awa_py.store import jobs as job_store
from awa_py.store.checkpoints import Holder, NewCheckpoint, complete_in_transaction, record_transaction
from awa_py.store.enqueue import can_insert, enqueue_job, enqueue_jobs
from awa_py.store.jobs import find_ended_jobs, list_unserved_jobs
from awa_py.store.routes import route_kinds
from awa_py.store.session import SAFE_ON_ANY_PATH, Session
from awa_py.store.signals import send_signal
from tests.payloads import LARGE
from tests.support import OWNER, another_session, insert, insert_completed, insert_running, seconds, user_session

pytestmark = pytest.mark.integration

SESSIONS = {
    "default": {},
    "custom plans": {"plan_cache_mode": "force_custom_plan"},
    "generic plans": {"plan_cache_mode": "force_generic_plan"},
    "no hash joins": {"enable_hashjoin": "off", "enable_hashagg": "off"},
    "no merge joins": {"enable_mergejoin": "off", "enable_sort": "off"},
    "no nested loops": {"enable_nestloop": "off", "enable_material": "off"},
    "no index scans": {"enable_indexscan": "off", "enable_indexonlyscan": "off"},
    "no sequential scans": {"enable_seqscan": "off", "jit": "on", "jit_above_cost": "0"},
}
WARM_UP = 8  # PostgreSQL chooses between custom and generic plans at the sixth execution
ROWS_READ = """
    SELECT sum(pg_stat_get_xact_tuples_returned(oid)) FROM pg_class
    WHERE relnamespace = 'awa'::regnamespace AND relkind IN ('r', 'i')
"""


@pytest.fixture(params=SESSIONS)
async def client(database: Database, session: Session, request: pytest.FixtureRequest) -> AsyncIterator[Session]:
    """Return a session of a user with settings of its own. The statistics say that all tables are empty."""
    await session.connection.execute("ANALYZE")
    async with user_session(database, **SESSIONS[request.param]) as client:
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

    @pytest.fixture
    async def own(self, database: Database, session: Session) -> AsyncIterator[Session]:
        await session.connection.execute("ANALYZE")
        async with another_session(database) as own:
            yield own

    async def test_cost_of_a_look_depends_only_on_the_awaited_jobs(self, own: Session) -> None:
        for _ in range(WARM_UP):
            await find_ended_jobs(own, [1])
        ids = await self.awaited_jobs(own)
        assert await rows_read(own, lambda: find_ended_jobs(own, ids)) < self.PER_JOB * len(ids)

    async def test_cost_of_a_search_for_unserved_jobs_depends_only_on_the_awaited_jobs(self, own: Session) -> None:
        grace = seconds(2)
        for _ in range(WARM_UP):
            await list_unserved_jobs(own, [1], staleness=seconds(90), grace=grace)
        ids = await self.awaited_jobs(own)
        read = await rows_read(own, lambda: list_unserved_jobs(own, ids, staleness=seconds(90), grace=grace))
        assert read < self.PER_JOB * len(ids)

    async def awaited_jobs(self, own: Session) -> list[int]:
        """Insert jobs in all states. Return some ids of each, and some of jobs that do not exist."""
        ids = [
            *await insert(own, "ready", self.OTHERS),
            *await insert(own, "scheduled", self.OTHERS, state="scheduled"),
            *await insert_running(own, self.OTHERS),
            *await insert_completed(own, self.OTHERS, age_s=1),
            *await insert(own, "dead", self.OTHERS, state="failed"),
        ]
        return [*ids[:: len(ids) // self.JOBS], *range(10**9, 10**9 + 10)]


Statement = Callable[[Session, Sequence[int]], Awaitable[Any]]
ROWS = 3_000  # in each table
JOBS = 100  # in each statement, or statements with one job
PER_JOB = 15  # an index entry and a row in each of a few tables
FIXED = 100


async def fill(session: Session) -> list[int]:
    """Insert many rows into all tables that clients read. Return the ids of some jobs of each state."""
    await session.connection.execute(f"""
        INSERT INTO awa.unique_keys SELECT 'held ' || n, n, NULL, '{{}}' FROM generate_series(1, {ROWS}) AS n;
        INSERT INTO awa.kinds (kind, priority, max_attempts, version)
        SELECT 'kind ' || n, 2, 25, '1' FROM generate_series(1, {ROWS}) AS n;
        INSERT INTO awa.workers (id, hostname, pid, version, queues, kinds, concurrency)
        VALUES ('00000000-0000-4000-8000-000000000009', 'host', 1, '1', '{{}}', '{{}}', 1);
        INSERT INTO awa.listening SELECT 'queue ' || n, '00000000-0000-4000-8000-000000000009'
        FROM generate_series(1, {ROWS}) AS n;
        INSERT INTO awa.routes VALUES ('other', 'default');
    """)
    states = [
        await insert(session, "ready", ROWS, parent_id=7),
        await insert(session, "scheduled", ROWS, state="scheduled"),
        await insert_running(session, ROWS),
        await insert_completed(session, ROWS, age_s=1),
        await insert(session, "dead", ROWS, state="failed"),
    ]
    return [job_id for ids in states for job_id in ids[100 : 100 + JOBS // len(states)]]


async def enqueue_one_by_one(session: Session, ids: Sequence[int]) -> None:
    for _ in range(JOBS):
        await enqueue_job(session, NewJob(kind="work", queue="q"))


async def enqueue_payloads(session: Session, ids: Sequence[int]) -> None:
    for _ in range(JOBS):
        await enqueue_job(session, NewJob(kind="work", queue="q", args_json=f'{{"text": "{LARGE}"}}'))


async def enqueue_unique_one_by_one(session: Session, ids: Sequence[int]) -> None:
    for n in range(JOBS):
        await enqueue_job(session, NewJob(kind="work", queue="q", unique=UniqueKey(key=f"{len(ids)} {n}")))


async def enqueue_undeclared(session: Session, ids: Sequence[int]) -> None:
    jobs = [{"kind": f"kind {n}", "queue": "q"} for n in range(JOBS)]
    await session.fetch("enqueue_undeclared_jobs", json.dumps(jobs))


async def complete_in_one_transaction(session: Session, ids: Sequence[int]) -> None:
    for job_id in ids:
        await complete_in_transaction(session, OWNER, Holder(job_id, 1), None)


async def record_in_transaction(session: Session, ids: Sequence[int]) -> None:
    for job_id in ids:
        new = NewCheckpoint(holder=Holder(job_id, 1), name="book", number=1, type="transaction")
        await record_transaction(session, OWNER, new)


async def signal_one_by_one(session: Session, ids: Sequence[int]) -> None:
    """Send a signal to each unfinished job. The trigger of the commit runs at once, so that it is counted."""
    await session.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    for job_id in ids[: 3 * len(ids) // 5]:
        with suppress(JobNotFound):
            await send_signal(session, job_id, "go", None, f"key {job_id}")


# By the names of SAFE_ON_ANY_PATH: what may run on a connection of the user.
ON_A_CONNECTION_OF_THE_USER: dict[str, Statement] = {
    "can_insert": lambda s, _: can_insert(s),
    "enqueue_job": enqueue_one_by_one,
    "enqueue_job_with_payload": enqueue_payloads,
    "enqueue_unique_job": enqueue_unique_one_by_one,
    "enqueue_jobs": lambda s, _: enqueue_jobs(s, [NewJob(kind="work", queue=f"queue {n}") for n in range(JOBS)]),
    "enqueue_undeclared_jobs": enqueue_undeclared,
    "get_jobs": job_store.get_jobs,
    "reserve_ids": lambda s, _: s.fetch("reserve_ids", JOBS),
    "complete_in_transaction": complete_in_one_transaction,
    "record_transaction": record_in_transaction,
    "send_signal": signal_one_by_one,
    "route_kinds": lambda s, _: route_kinds(s, [f"kind {n}" for n in range(JOBS)]),
    "wake_queues": lambda s, _: s.fetch("wake_queues", [f"queue {n}" for n in range(JOBS)], None),
}
# What clients and operators do to jobs, on sessions of our own.
ON_OUR_OWN_SESSION: dict[str, Statement] = {
    "list_children": lambda s, ids: job_store.list_children(s, ids[0] if ids else 1),
    "undeclared_kinds": lambda s, _: s.fetch("list_undeclared_kinds", [f"kind {n}" for n in range(JOBS)]),
    "cancel_jobs": job_store.cancel_jobs,
    "retry_jobs": lambda s, ids: job_store.retry_jobs(s, ids, write_events=True),
    "delete_jobs": job_store.delete_jobs,
    "move_jobs": lambda s, ids: job_store.move_jobs(s, ids, queue="other", priority=None),
    **ON_A_CONNECTION_OF_THE_USER,
}


async def assert_cost_is_bounded(session: Session, filler: Session, statement: Statement) -> None:
    """Run the statement on empty tables until its plan is kept, fill the tables, and count what it reads."""
    for n in range(WARM_UP):
        await statement(session, [-1] * n)  # no such job
    ids = await fill(filler)
    read = await rows_read(session, lambda: statement(session, ids))
    assert read < FIXED + PER_JOB * JOBS


def test_every_statement_on_a_connection_of_the_user_is_counted() -> None:
    assert ON_A_CONNECTION_OF_THE_USER.keys() == SAFE_ON_ANY_PATH


@pytest.mark.parametrize("name", ON_A_CONNECTION_OF_THE_USER)
async def test_cost_on_a_connection_of_the_user_does_not_grow(client: Session, session: Session, name: str) -> None:
    await assert_cost_is_bounded(client, session, ON_A_CONNECTION_OF_THE_USER[name])


@pytest.mark.parametrize("name", ON_OUR_OWN_SESSION)
async def test_cost_on_our_own_session_does_not_grow(database: Database, session: Session, name: str) -> None:
    await session.connection.execute("ANALYZE")
    async with another_session(database) as own:
        await assert_cost_is_bounded(own, session, ON_OUR_OWN_SESSION[name])


# They run only on sessions of our own, which have the settings themselves, or read a table that stays small.
WITHOUT_OWN_SETTINGS = {
    "advance_claim_mark", "append_error", "claim_within_limits", "discard_invalid_jobs", "fail_attempts", "lock_limits",
    "mark_running_jobs", "route", "running_of_queue", "running_with_key",
}  # fmt: skip


async def test_every_function_that_reads_tables_has_stable_plans(session: Session) -> None:
    functions = await session.connection.fetch(r"""
        SELECT proname, coalesce(proconfig, '{}') AS settings FROM pg_proc
        WHERE pronamespace = 'awa'::regnamespace
          AND pg_get_functiondef(oid) ~ ('\m(FROM|JOIN|INTO|UPDATE)\s+\(*("?awa"?\.)(' || (
              SELECT string_agg(relname, '|') FROM pg_class
              WHERE relnamespace = 'awa'::regnamespace AND relkind IN ('r', 'p', 'v')) || ')\M')
    """)
    wanted = {f"{name}={value}" for name, value in STABLE_PLAN_SETTINGS.items()}
    assert {row["proname"] for row in functions if not wanted <= set(row["settings"])} == WITHOUT_OWN_SETTINGS
