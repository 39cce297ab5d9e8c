"""The cost of every hot statement on large tables, in pages.

There are 250,000 available, scheduled, running and completed jobs each; 10,000 queues, 1,000 schedules, and 500 workers
that are subscribed to wake-ups.
"""

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from typing import Any, TypeAlias

import pytest

from awa_py import NewJob, Settings, State
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.db.schema import Schema
from awa_py.enqueue.enqueuer import Enqueuer
from awa_py.maintenance.task import run_once
from awa_py.maintenance.tasks import all_tasks
from awa_py.observability.metrics import Metrics
from awa_py.store import backlog, checkpoints, finish, heartbeat, maintenance, schedules, shares
from awa_py.store.checkpoints import Holder, NewCheckpoint, SignalRequest, Suspension
from awa_py.store.claim import queues_with_work
from awa_py.store.enqueue import enqueue_job, enqueue_jobs
from awa_py.store.maintenance import ReadyPosition
from awa_py.store.session import Session
from tests.pages import count_pages
from tests.support import (
    OWNER,
    ago,
    another_session,
    claim,
    insert,
    insert_completed,
    insert_running,
    new_owner,
    seconds,
    user_session,
)

pytestmark = pytest.mark.integration

Act: TypeAlias = Callable[[Session], Awaitable[Any]]
# Tables with so few rows that PostgreSQL may read them whole.
FEW_ROWS = {"listening", "routes"}
WAIT = Suspension(until=None, signals=["go"])
EMPTY = {"signals", "signal_keys", "kept_results"}
NEXT_STATE = '{"kind": "next", "args": {}}'
HOUR = seconds(3600)
JOBS = 100


@pytest.fixture
async def big(big_url: str) -> AsyncIterator[Session]:
    async with another_session(Database(big_url, Schema()), **STABLE_PLAN_SETTINGS) as session:
        yield session


@pytest.fixture
async def default(big_url: str) -> AsyncIterator[Session]:
    """A producer's session, without settings for stable plans."""
    async with user_session(Database(big_url, Schema())) as session:
        yield session


async def pages(session: Session, act: Act, *, whole: Set[str] = frozenset()) -> int:
    """Return the pages that it reads when it runs for the second time, with plans made and functions compiled."""
    for _ in range(2):
        async with count_pages(session) as pages_read:
            await act(session)
            spent = await pages_read()
    print(spent.total, spent.blocks)
    assert spent.whole_tables <= whole
    return spent.total


async def running_jobs(session: Session) -> tuple[list[int], list[int]]:
    rows = await session.connection.fetch("SELECT id, lease FROM awa.running ORDER BY id LIMIT $1 OFFSET 5000", JOBS)
    return [row[0] for row in rows], [row[1] for row in rows]


def new(number: int) -> list[NewJob]:
    return [NewJob(kind="work", queue="q1") for _ in range(number)]


# A job that changes its state: an index lookup among 250,000 entries is three pages, and so is that of its queue's
# row. It is found by one index and inserted into two or three more; its row is locked, deleted, and written elsewhere.
PER_JOB = 20
PER_STATEMENT = 50


@pytest.mark.parametrize("queue", ["q1", "q7777"])  # with a hundred thousand and with a hundred jobs
async def test_cost_of_a_claim(big: Session, queue: str) -> None:
    assert await pages(big, lambda s: claim(s, queue=queue, limit=50)) <= PER_STATEMENT + 50 * PER_JOB


async def test_cost_of_a_claim_from_an_empty_queue(big: Session) -> None:
    assert await pages(big, lambda s: claim(s, queue="empty", limit=JOBS)) <= PER_STATEMENT


@pytest.mark.parametrize(
    ("how", "act"),
    [
        ("complete", lambda s, ids, leases: finish.complete_jobs(s, OWNER, ids, leases, None, keep=True)),
        ("delete", lambda s, ids, leases: finish.complete_jobs(s, OWNER, ids, leases, None, keep=False)),
        ("fail", lambda s, ids, leases: finish.fail_attempts(s, OWNER, ids, leases, ["e"] * JOBS, [None] * JOBS)),
        ("snooze", lambda s, ids, leases: finish.snooze_jobs(s, OWNER, ids, leases, [HOUR] * JOBS)),
        ("advance", lambda s, ids, leases: finish.advance_jobs(s, OWNER, ids, leases, [NEXT_STATE] * JOBS)),
        ("throttle", lambda s, ids, leases: finish.throttle_jobs(s, OWNER, ids, leases, ["429"] * JOBS)),
        (
            "discard",
            lambda s, ids, leases: finish.discard_jobs(s, OWNER, ids, leases, [State.FAILED] * JOBS, ["e"] * JOBS),
        ),
        ("release", lambda s, ids, leases: finish.release_jobs(s, OWNER, ids, leases)),
        ("heartbeat", lambda s, ids, leases: heartbeat.renew_leases(s, OWNER, ids, leases)),
    ],
)
async def test_cost_of_each_outcome(big: Session, how: str, act: Callable[..., Awaitable[Any]]) -> None:
    ids, leases = await running_jobs(big)
    assert await pages(big, lambda s: act(s, ids, leases), whole={"routes"}) <= PER_STATEMENT + JOBS * PER_JOB


@pytest.mark.parametrize(
    ("how", "act"),
    [
        ("record", lambda s, holders, ids, leases: checkpoints.record_checkpoints(s, OWNER, steps(holders))),
        ("read", lambda s, holders, ids, leases: checkpoints.read_checkpoints(s, OWNER, holders)),
        ("take signals", lambda s, holders, ids, leases: checkpoints.take_signals(s, OWNER, signals(holders))),
        ("suspend", lambda s, holders, ids, leases: checkpoints.suspend_jobs(s, OWNER, ids, leases, [WAIT] * JOBS)),
        (
            "complete",
            lambda s, holders, ids, leases: checkpoints.complete_durable_jobs(
                s, OWNER, ids, leases, [None] * JOBS, keep=True
            ),
        ),
        ("wake", lambda s, holders, ids, leases: checkpoints.wake_parents(s, ids)),
    ],
)
async def test_cost_of_durable_jobs_beside_a_hundred_thousand_that_wait(
    big: Session, how: str, act: Callable[..., Awaitable[Any]]
) -> None:
    ids, leases = await running_jobs(big)
    holders = [Holder(*each) for each in zip(ids, leases, strict=True)]
    assert await pages(big, lambda s: act(s, holders, ids, leases), whole=EMPTY) <= PER_STATEMENT + JOBS * PER_JOB


def steps(holders: list[Holder]) -> list[NewCheckpoint]:
    return [NewCheckpoint(holder=holder, name="a", number=1, type="step", result="1") for holder in holders]


def signals(holders: list[Holder]) -> list[SignalRequest]:
    return [SignalRequest(holder=holder, name="go", number=1, signal="go", timeout=None) for holder in holders]


async def test_cost_of_an_enqueue(default: Session) -> None:
    assert await pages(default, lambda s: enqueue_job(s, new(1)[0]), whole=FEW_ROWS) <= 20
    assert await pages(default, lambda s: enqueue_jobs(s, new(JOBS)), whole=FEW_ROWS) <= PER_STATEMENT + 10 * JOBS
    assert (
        await pages(default, lambda s: Enqueuer().enqueue_many(s, new(1000)), whole=FEW_ROWS)
        <= PER_STATEMENT + 10 * 1000
    )
    later = [NewJob(kind="work", delay=HOUR) for _ in range(JOBS)]
    assert await pages(default, lambda s: enqueue_jobs(s, later), whole=FEW_ROWS) <= PER_STATEMENT + 10 * JOBS


async def test_cost_of_a_wake_up_with_five_hundred_subscribers(default: Session) -> None:
    async def wake(session: Session, *queues: str) -> None:
        await session.connection.execute("SELECT awa.wake($1, now() + interval '1 hour')", queues)

    assert await pages(default, lambda s: wake(s, "q1"), whole=FEW_ROWS) <= 20
    assert await pages(default, lambda s: wake(s, *(f"q{n}" for n in range(10))), whole=FEW_ROWS) <= 50


async def test_cost_of_polling_a_hundred_queues(big: Session) -> None:
    queues = [f"q{n}" for n in range(JOBS)]
    assert await pages(big, lambda s: queues_with_work(s, queues=queues, kinds=["work"])) <= JOBS * 10


async def test_cost_of_a_heartbeat(big: Session) -> None:
    worker = heartbeat.WorkerInfo(
        id=new_owner(), hostname="h", pid=1, version="0", queues=("q1", "q2"), kinds=("work",), concurrency=1
    )
    assert await pages(big, lambda s: heartbeat.heartbeat_worker(s, worker, listening=True)) <= 100


async def test_cost_of_reading_the_workers(big: Session) -> None:
    registry = {"workers", "leader"}
    assert await pages(big, lambda s: maintenance.rescue_lost_jobs(s, silence=HOUR, limit=500), whole=registry) <= 200
    assert await pages(big, lambda s: shares.list_shares(s, staleness=HOUR), whole={"workers", "slots"}) <= 200


async def test_cost_of_finding_unserved_queues(big: Session) -> None:
    queues: int = await big.connection.fetchval("SELECT count(DISTINCT queue) FROM awa.ready")
    # Two index lookups for each queue that has jobs; and the workers, for each.
    act = functools.partial(backlog.list_unserved_queues, staleness=HOUR)
    assert await pages(big, act, whole={"workers"}) <= PER_STATEMENT + 60 * queues


async def test_cost_of_the_promotion(big: Session) -> None:
    assert await pages(big, lambda s: maintenance.promote_jobs(s, limit=JOBS)) <= PER_STATEMENT + JOBS * PER_JOB


async def test_cost_of_reading_the_schedules(big: Session) -> None:
    assert await pages(big, schedules.seconds_to_next_fire) <= 10
    assert await pages(big, lambda s: schedules.list_due_schedules(s, limit=100)) <= 50


async def test_cost_of_maintenance_tasks_without_work(big: Session) -> None:
    assert await pages(big, lambda s: maintenance.rescue_overdue_jobs(s, limit=500)) <= PER_STATEMENT
    assert await pages(big, lambda s: maintenance.fail_expired_jobs(s, limit=500)) <= PER_STATEMENT
    assert await pages(big, lambda s: maintenance.delete_free_unique_keys(s, after="", limit=1000)) <= PER_STATEMENT
    # These read all queues, to find the shortest staleness and retention.
    rescue, clean_up = maintenance.rescue_stale_jobs, maintenance.delete_dead_jobs
    assert await pages(big, lambda s: rescue(s, staleness=HOUR, limit=500), whole={"queues"}) <= 500
    assert await pages(big, lambda s: clean_up(s, retention=HOUR, limit=5000), whole={"queues"}) <= 500
    assert await pages(big, lambda s: maintenance.delete_stale_workers(s, staleness=HOUR), whole={"workers"}) <= 100
    window = {"after": ReadyPosition(), "limit": 500, "staleness": HOUR, "grace": HOUR}
    assert await pages(big, lambda s: maintenance.mark_unserved_jobs(s, **window)) <= 1000  # type: ignore[arg-type]


async def test_cleanup_reads_no_partition_that_will_be_dropped(database: Database) -> None:
    async with another_session(database, **STABLE_PLAN_SETTINGS) as leader:
        day = "date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'"
        first, last = await leader.connection.fetchrow(  # type: ignore[misc]
            f"SELECT ({day} - interval '2 days')::text, ({day})::text"
        )
        await leader.connection.execute(
            f"CREATE TABLE awa.completed_old PARTITION OF awa.completed FOR VALUES FROM ('{first}') TO ('{last}')"
        )
        await insert_completed(leader, 20_000, age_s=24 * 3600 + 60)
        act = functools.partial(maintenance.delete_completed_jobs, retention=24 * HOUR, limit=5000)
        assert await pages(leader, act, whole={"queues", "completed_default"}) <= 100


async def test_cost_of_aging(big: Session) -> None:
    """For five hundred queues: a few index lookups at each priority."""
    walk = {"after": "", "queues": 500, "age": HOUR, "limit": JOBS}
    assert await pages(big, lambda s: maintenance.age_jobs(s, **walk)) <= 500 * 200  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["rescue", "cleanup"])
async def test_claims_continue_while_a_hundred_thousand_rows_are_rescued(
    database: Database, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Print how long the claims took, and assert that they continued."""
    caplog.set_level(logging.ERROR, logger="awa.rescue")  # a hundred thousand log lines would be measured too
    total = 100_000
    times_s: list[float] = []
    over = asyncio.Event()

    async def keep_claiming(session: Session) -> None:
        while not over.is_set():
            await insert(session, "ready", 20)
            began = time.monotonic()
            assert len(await claim(session, limit=20)) == 20
            times_s.append(time.monotonic() - began)

    async with (
        another_session(database, **STABLE_PLAN_SETTINGS) as leader,
        another_session(database, **STABLE_PLAN_SETTINGS) as own,
    ):
        if name == "rescue":
            await insert_running(leader, total, silent_s=1000)
        else:
            await insert(leader, "dead", total // 2, state="failed", finalized_at=ago(10**6))
            await insert_completed(leader, total // 2, age_s=10**6)
        (task,) = (task for task in all_tasks(Settings(), [], Metrics()) if task.name == name)
        claiming = asyncio.create_task(keep_claiming(own))
        assert (await run_once(task, leader)).rows_changed == total
        over.set()
        await claiming
    times_s.sort()
    p50, p99 = (times_s[int(len(times_s) * share)] * 1000 for share in (0.5, 0.99))
    print(f"{len(times_s)} claims while {total} rows moved: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    assert len(times_s) >= 10
    assert p99 < 5000
