"""Helpers for many tests: insert rows in any state, wait for a condition, run a worker."""

import asyncio
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from awa_py import App, Context, Job, NewJob, Settings, State
from awa_py.connections import Connection, Record
from awa_py.db.database import Database
from awa_py.store import election, enqueue, jobs
from awa_py.store.claim import PRIORITIES, Claimant, claim_jobs
from awa_py.store.heartbeat import WorkerInfo, heartbeat_worker
from awa_py.store.session import Session
from awa_py.worker.worker import Worker

PATIENCE_S = 30.0
OWNER = UUID("00000000-0000-4000-8000-000000000001")


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


# Short intervals, and a lease that a busy machine does not lose by accident.
QUICK = Settings(
    heartbeat_interval=seconds(0.5),
    heartbeat_staleness=seconds(10),
    report_interval=seconds(0.5),
    share_staleness=seconds(4),
    gone_after=seconds(2),
    heartbeat_rescue_interval=seconds(0.5),
    deadline_rescue_interval=seconds(0.5),
    promote_interval=seconds(0.5),
    cron_eval_interval=seconds(0.5),
    aging_check_interval=seconds(0.5),
    election_interval=seconds(0.2),
    leader_check_interval=seconds(0.5),
    leader_timeout=seconds(5),
    shutdown_timeout=seconds(10),
    poll_interval=seconds(0.2),
)

# What a crash of the server does if the commits of the claims have not reached the disk.
UNDO_CLAIMS = """
    WITH gone AS (DELETE FROM awa.running RETURNING *)
    INSERT INTO awa.ready (id, kind, queue, max_attempts, lease, attempt)
    SELECT id, kind, queue, max_attempts, lease - 1, attempt - 1 FROM gone
"""

# A lease of a second: for tests of what happens when it is lost.
HASTY = replace(QUICK, heartbeat_interval=seconds(0.2), heartbeat_staleness=seconds(1.5))


async def add_version(session: Session, version: int, *, compatible: bool) -> None:
    """Let the schema look as if a newer program had applied a migration."""
    await session.connection.execute(
        "INSERT INTO awa.schema_version (version, name, compatible, awa_version) VALUES ($1, 'future', $2, '9.1')",
        version,
        compatible,
    )


async def eventually(predicate: Callable[[], Any], timeout_s: float = PATIENCE_S, every_s: float = 0.02) -> Any:
    """Wait until the predicate, which may be awaitable, returns a true value, and return it."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        answer = predicate()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not true after {timeout_s} s; the last answer was {answer!r}")
        await asyncio.sleep(every_s)


@dataclass(frozen=True)
class FromNow:
    """A time relative to `now()` of the database."""

    seconds: float


def ago(seconds: float) -> FromNow:
    return FromNow(-seconds)


async def insert(session: Session, table: str, count: int = 1, **columns: Any) -> list[int]:
    """Insert rows into a job table. Return the ids in order."""
    columns.setdefault("kind", "work")
    values: list[Any] = [count]
    expressions = []
    for value in columns.values():
        values.append(timedelta(seconds=value.seconds) if isinstance(value, FromNow) else value)
        expressions.append(f"now() + ${len(values)}::interval" if isinstance(value, FromNow) else f"${len(values)}")
    rows = await session.connection.fetch(
        session.schema.qualify(
            f"INSERT INTO awa.{table} ({', '.join(columns)}) SELECT {', '.join(expressions)} "
            "FROM generate_series(1, $1) RETURNING id"
        ),
        *values,
    )
    return sorted(row["id"] for row in rows)


async def insert_running(session: Session, count: int = 1, *, silent_s: float = 0, **columns: Any) -> list[int]:
    """Insert running jobs without a worker, whose last heartbeat is `silent_s` seconds old."""
    given = {"worker_id": OWNER, "lease": 1, "attempt": 1, "attempted_at": ago(silent_s), "heartbeat_at": ago(silent_s)}
    if columns.get("concurrency_key") or columns.get("limited"):
        given["claim_number"] = await session.connection.fetchval("SELECT nextval('awa.claim_number')")
    return await insert(session, "running", count, **given | columns)


async def insert_completed(session: Session, count: int = 1, *, age_s: float, **columns: Any) -> list[int]:
    given = {"worker_id": OWNER, "lease": 1, "attempt": 1, "attempted_at": ago(age_s), "finalized_at": ago(age_s)}
    return await insert(session, "completed", count, **given | columns)


async def insert_queue(session: Session, name: str = "default", **columns: Any) -> None:
    """Insert or update the row of a queue."""
    columns = {"name": name, **columns}
    values = [timedelta(seconds=v.seconds) if isinstance(v, FromNow) else v for v in columns.values()]
    expressions = [
        f"now() + ${n}::interval" if isinstance(v, FromNow) else f"${n}" for n, v in enumerate(columns.values(), 1)
    ]
    await session.connection.execute(
        session.schema.qualify(
            f"INSERT INTO awa.queues ({', '.join(columns)}) VALUES ({', '.join(expressions)}) ON CONFLICT (name) "
            f"DO UPDATE SET ({', '.join(columns)}) = ROW ({', '.join(f'excluded.{name}' for name in columns)})"
        ),
        *values,
    )


async def put(session: Session, *new: NewJob) -> list[int]:
    """Enqueue jobs and return their ids."""
    return [answer.id for answer in await enqueue.enqueue_jobs(session, new)]


async def put_one(session: Session, kind: str = "work", **options: Any) -> int:
    (job_id,) = await put(session, NewJob(kind=kind, **options))
    return job_id


async def claim(
    session: Session,
    *,
    queue: str = "default",
    limit: int = 1,
    kinds: Sequence[str] = ("work",),
    detailed_kinds: Sequence[str] | None = None,
    worker_id: UUID = OWNER,
    after: int = 0,
) -> list[Record]:
    claimant = Claimant(worker_id, kinds, kinds if detailed_kinds is None else detailed_kinds)
    positions = [after] * len(PRIORITIES)
    return (await claim_jobs(session, claimant, queue=queue, positions=positions, limit=limit)).rows


async def listen(session: Session, *queues: str) -> list[str]:
    """Subscribe to wake-ups of these queues. Return a list that receives all notifications."""
    heard: list[str] = []
    worker = WorkerInfo(id=uuid4(), hostname="h", pid=1, version="0", queues=queues, kinds=("work",), concurrency=1)
    await heartbeat_worker(session, worker, listening=True)
    for channel in ("awa", "awa:leader"):
        await session.connection.add_listener(channel, lambda *args: heard.append(str(args[3])))
    return heard


async def look(session: Session, job_id: int) -> Job:
    """Return the job as it is now."""
    return (await jobs.get_jobs(session, [job_id]))[job_id]


async def states(session: Session) -> dict[str, int]:
    """Return the number of jobs in each state."""
    rows = await session.connection.fetch(
        session.schema.qualify("SELECT state, count(*) AS jobs FROM awa.jobs GROUP BY state")
    )
    return {row["state"]: row["jobs"] for row in rows}


async def count(connection: Connection, query: str, *values: object) -> int:
    return int(await connection.fetchval(query, *values))


@asynccontextmanager
async def another_session(database: Database, role: str = "test", **settings: str) -> AsyncIterator[Session]:
    """Open another session."""
    connection = await database.connect(role, settings)
    try:
        yield Session(connection, database.schema)
    finally:
        await connection.close()


@asynccontextmanager
async def user_session(database: Database, **settings: str) -> AsyncIterator[Session]:
    """Open a session as a user of the library does: with the settings of the server, and these."""
    connection = await asyncpg.connect(database.url, server_settings=settings)
    try:
        yield Session(connection, database.schema, is_own=False)
    finally:
        await connection.close()


@asynccontextmanager
async def leading(database: Database, *, since_s: float) -> AsyncIterator[Session]:
    """Open a session that has led for this long."""
    async with another_session(database, "leader") as leader:
        await lead(leader, since_s=since_s)
        yield leader


async def lead(session: Session, *, since_s: float) -> None:
    """Make the session the leader's, elected this long ago."""
    assert await election.try_lead(session)
    await election.record_election(session, worker_id=uuid4(), hostname="h", pid=1)
    await session.connection.execute("UPDATE awa.leader SET elected_at = now() - $1::interval", seconds(since_s))


@asynccontextmanager
async def working(
    app: App, queues: Any = ("default",), *, maintenance: bool = False, **options: Any
) -> AsyncIterator[Worker]:
    """Run a worker that listens; it is stopped at the end."""
    worker = app.worker(queues, maintenance=maintenance, **options)
    running = asyncio.create_task(worker.run())
    try:
        await eventually(lambda: worker.listening or running.done())
        yield worker
    finally:
        worker.stop()
        async with asyncio.timeout(PATIENCE_S):
            await running


def with_settings(database_url: str, settings: Settings) -> App:
    return App(database_url, settings=settings)


async def drain(app: App, *queues: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await app.work(queues or ("default",), until_idle=True, maintenance=False)


async def run_one(app: App, kind: str, args: dict[str, Any] | None = None, **options: Any) -> Job:
    """Enqueue a job, run it, and return it as it is then."""
    async with app:
        job = await app.enqueue(kind, args or {}, **options)
        await drain(app)
        return await app.get(job.id)


def sample(worker: Worker, name: str, **labels: str) -> float:
    return worker.metrics.registry.get_sample_value(name, labels) or 0.0


class Gate:
    """A handler that the test lets go."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.open = threading.Event()
        self.stop_reasons: list[str] = []

    def __call__(self, ctx: Context, until_told: bool = True) -> str:
        self.started.set()
        deadline = time.monotonic() + PATIENCE_S
        while not self.open.is_set() and time.monotonic() < deadline:
            if ctx.cancelled:
                self.stop_reasons.append(ctx.cancel_reason or "")
                break
            time.sleep(0.01)
        return "the end"


async def running(app: App, job_id: int) -> bool:
    return (await app.get(job_id)).state is State.RUNNING


async def nothing_runs(session: Session) -> bool:
    return not {"running", "available"} & (await states(session)).keys()


async def beaten_since(session: Session, job_id: int, moment: datetime | None) -> bool:
    return (await look(session, job_id)).heartbeat_at != moment


def new_owner() -> UUID:
    return uuid4()
