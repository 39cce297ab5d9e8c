"""What a job costs: statements, transactions, rows and WAL. Counted, not timed, so the machine does not matter."""

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from awa_py import App, BatchJob, Settings, Unique
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.maintenance.tasks import all_tasks
from awa_py.observability.metrics import Metrics
from awa_py.store.claim import PRIORITIES
from awa_py.store.finish import complete_jobs, discard_jobs, fail_attempts, release_jobs, snooze_jobs, throttle_jobs
from awa_py.store.heartbeat import renew_leases
from awa_py.store.session import Session, statement
from tests.databases import NOT_RESETTING
from tests.proxy import CountingProxy, counting_proxy
from tests.support import (
    OWNER,
    QUICK,
    ago,
    another_session,
    claim,
    count,
    drain,
    eventually,
    insert,
    insert_completed,
    insert_running,
    seconds,
    working,
)

pytestmark = pytest.mark.integration

JOBS = 5_000
# Maximum statements per job. Typical values are 0.01, 0.03 and 0.01, including the worker's start and end. If all jobs
# end at once, each claim and each flush has at least as many jobs as there are slots, 100. If each job waits for
# something, jobs that end together are flushed together: how many depends on the machine.
KINDS = {"awaits_nothing": 0.05, "awaits": 0.15, "in_batches": 0.05}


@dataclass(frozen=True)
class CountedApp:
    """A database behind a proxy that counts statements, and an app with several kinds."""

    url: str
    wire: CountingProxy
    app: App


@pytest.fixture
async def counted(database_url: str, session: Session) -> AsyncIterator[CountedApp]:
    await session.connection.execute("ANALYZE")  # as autovacuum does: the statistics say that all tables are empty
    async with counting_proxy(database_url) as (url, wire):
        app = App(url, settings=Settings())

        @app.job
        async def awaits_nothing(n: int) -> None: ...

        @app.job
        async def awaits(n: int) -> None:
            await asyncio.sleep(0)

        @app.job(batch=500, linger="50ms")
        async def in_batches(jobs: Sequence[BatchJob]) -> None: ...

        yield CountedApp(url, wire, app)


async def is_only_session(session: Session) -> bool:
    """Return whether all other sessions have ended. Then they have reported their statistics."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    return not await count(session.connection, f"{others} AND backend_type = 'client backend' AND {NOT_RESETTING}")


class TestDrainedJob:
    @pytest.mark.parametrize("kind", KINDS)
    async def test_statements_and_transactions_are_shared_by_many_jobs(
        self, counted: CountedApp, session: Session, kind: str
    ) -> None:
        async with counted.app as app:
            await app.enqueue_many([app.new(kind, {"n": n}) for n in range(JOBS)])
            counted.wire.statements.clear()
            await drain(app)
        print(f"{counted.wire.total / JOBS} statements per job:\n{counted.wire}")
        assert counted.wire.total <= KINDS[kind] * JOBS
        rows = await session.connection.fetchrow(
            "SELECT count(*), count(DISTINCT attempted_at), count(DISTINCT xmin::text) FROM awa.completed"
        )
        assert rows is not None
        jobs, claims, flushes = rows
        assert jobs == JOBS
        # Each is one statement in its own transaction; a claim may find nothing.
        assert claims <= counted.wire.count("claims", "claim_jobs")
        assert flushes == counted.wire.count("finishes", "complete_jobs")
        # Only statements that end jobs wait for the disk.
        assert counted.wire.settings["awa claims"]["synchronous_commit"] == "off"
        assert "synchronous_commit" not in counted.wire.settings["awa finishes"]

    @pytest.mark.parametrize("kind", KINDS)
    async def test_job_is_inserted_three_times_deleted_twice_and_never_updated(
        self, counted: CountedApp, session: Session, kind: str
    ) -> None:
        async with counted.app as app:
            await app.enqueue_many([app.new(kind, {"n": n}) for n in range(JOBS)])
            await drain(app)
        await eventually(lambda: is_only_session(session))
        rows = await session.connection.fetch(
            "SELECT relname, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables "
            "WHERE schemaname = 'awa' AND n_tup_ins + n_tup_upd + n_tup_del > 0 "
            "AND relname NOT IN ('workers', 'listening', 'queues', 'kinds', 'schema_version', 'leader')"
        )
        touched = {row[0].rstrip("_0123456789"): tuple(row[1:]) for row in rows}
        assert touched == {"ready": (JOBS, 0, JOBS), "running": (JOBS, 0, JOBS), "completed": (JOBS, 0, 0)}

    async def test_worker_writes_few_rows_of_its_own(self, counted: CountedApp, session: Session) -> None:
        async with counted.app as app:
            await app.enqueue_many([app.new("awaits_nothing", {"n": n}) for n in range(JOBS)])
            await drain(app)
        await eventually(lambda: is_only_session(session))
        touched = await count(
            session.connection,
            "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables "
            "WHERE schemaname = 'awa' "
            "AND relname IN ('workers', 'listening', 'queues', 'kinds', 'unique_keys', 'cron')",
        )
        assert touched <= 20  # insert, heartbeat, subscribe, delete


class TestEnqueue:
    async def test_single_enqueue_is_one_statement_and_one_transaction(
        self, counted: CountedApp, session: Session
    ) -> None:
        jobs = 200
        async with counted.app as app:
            await app.enqueue("awaits", {"n": 0})
            counted.wire.statements.clear()
            for n in range(jobs):
                await app.enqueue("awaits", {"n": n})
            assert counted.wire.count("client", "enqueue_job") == jobs
            assert counted.wire.total < 1.5 * jobs  # the pool resets a connection that was idle
        assert await count(session.connection, "SELECT count(DISTINCT xmin::text) FROM awa.ready") == jobs + 1

    async def test_single_enqueue_with_a_new_unique_key_is_one_statement_and_one_transaction(
        self, counted: CountedApp, session: Session
    ) -> None:
        jobs = 200
        async with counted.app as app:
            await app.enqueue("awaits", {"n": 0}, unique=Unique())
            counted.wire.statements.clear()
            for n in range(1, jobs + 1):
                await app.enqueue("awaits", {"n": n}, unique=Unique())
            assert counted.wire.count("client", "enqueue_unique_job") == jobs
            assert counted.wire.total == jobs  # no reset of the connection between them
        assert await count(session.connection, "SELECT count(DISTINCT xmin::text) FROM awa.ready") == jobs + 1
        assert await count(session.connection, "SELECT count(*) FROM awa.unique_keys") == jobs + 1

    async def test_ten_thousand_jobs_are_a_few_statements_and_one_transaction(
        self, counted: CountedApp, session: Session
    ) -> None:
        async with counted.app as app:
            new = [app.new("awaits", {"n": n}) for n in range(10_000)]
            later = [app.new("awaits", {"n": n}, delay="1h") for n in range(1_000)]
            await app.enqueue("awaits", {"n": 0})
            counted.wire.statements.clear()
            await app.enqueue_many([*new, *later])
            print(counted.wire)
            # BEGIN, the ids, COPY into two tables, the wake-up, COMMIT; and the first queries of a new connection.
            assert counted.wire.total <= 12
        assert await count(session.connection, "SELECT count(*) FROM awa.ready") == 10_001
        assert await count(session.connection, "SELECT count(DISTINCT xmin::text) FROM awa.ready") == 2


async def finish_all(session: Session, ids: list[int], how: str) -> None:
    leases = [1] * len(ids)
    match how:
        case "complete":
            await complete_jobs(session, OWNER, ids, leases, None, keep=True)
        case "fail":
            await fail_attempts(session, OWNER, ids, leases, ["boom"] * len(ids), [None] * len(ids))
        case "snooze":
            await snooze_jobs(session, OWNER, ids, leases, [seconds(60)] * len(ids))
        case "throttle":
            await throttle_jobs(session, OWNER, ids, leases, ["429"] * len(ids))
        case "discard":
            await discard_jobs(session, OWNER, ids, leases, ["failed"] * len(ids), ["boom"] * len(ids))  # type: ignore[list-item]
        case "release":
            await release_jobs(session, OWNER, ids, leases)
        case "heartbeat":
            await renew_leases(session, OWNER, ids, leases)


class TestBatch:
    SIZES = (1, 500)

    @pytest.fixture
    async def counting(self, counted: CountedApp) -> AsyncIterator[Session]:
        async with another_session(counted.app.database, **STABLE_PLAN_SETTINGS) as session:
            await session.connection.fetch("SELECT $1::bigint[]", [1])  # asyncpg reads the type now
            yield session

    async def test_claim_is_one_statement(self, counted: CountedApp, counting: Session) -> None:
        await claim(counting, queue="empty")
        for size in self.SIZES:
            await insert(counting, "ready", size)
            counted.wire.statements.clear()
            assert len(await claim(counting, limit=500)) == size
            assert counted.wire.total == 1

    async def test_each_outcome_is_one_statement(self, counted: CountedApp, counting: Session) -> None:
        for how in ("complete", "fail", "snooze", "discard", "release", "throttle", "heartbeat"):
            await finish_all(counting, [0], how)
            for size in self.SIZES:
                ids = await insert_running(counting, size)
                counted.wire.statements.clear()
                await finish_all(counting, ids, how)
                assert counted.wire.total == 1, f"{how} of {size}: {counted.wire}"
                unchanged = "SELECT count(*) FROM awa.running WHERE heartbeat_at = attempted_at"
                assert await count(counting.connection, unchanged) == 0

    async def test_maintenance_tasks_send_as_many_statements_for_many_rows_as_for_one(
        self, counted: CountedApp, counting: Session
    ) -> None:
        tasks = {task.name: task for task in all_tasks(Settings(), [], Metrics())}
        for task in tasks.values():
            await task.run(counting)
        statements = {"promote": 1, "rescue": 1, "deadlines": 2, "cleanup": 13, "unserved": 1}
        for size in self.SIZES:
            await insert(counting, "scheduled", size, state="scheduled", run_at=ago(1))
            await insert(counting, "scheduled", size, state="scheduled", run_at=ago(-60), expires_at=ago(1))
            await insert(counting, "ready", size, run_at=ago(60), kind="unknown")
            await insert_running(counting, size, silent_s=1000)
            await insert_running(counting, size, deadline_at=ago(1))
            await insert(counting, "dead", size, state="failed", finalized_at=ago(10**6))
            await insert_completed(counting, size, age_s=10**6)
            for name, number in statements.items():
                counted.wire.statements.clear()
                assert (await tasks[name].run(counting)).rows_changed >= 0.9 * size, (
                    name
                )  # some were changed by the run before
                assert counted.wire.total == number, f"{name} of {size}: {counted.wire}"


class TestHeartbeat:
    async def test_heartbeat_is_one_statement_for_all_jobs_in_flight(
        self, counted: CountedApp, session: Session
    ) -> None:
        jobs = 300
        started = 0
        over = asyncio.Event()
        settings = replace(QUICK, heartbeat_interval=timedelta(milliseconds=200))
        app = App(counted.url, settings=settings)

        @app.job
        async def work() -> None:
            nonlocal started
            started += 1
            await over.wait()

        def renewals() -> int:
            return counted.wire.count("heartbeat", "renew_leases")

        async with app:
            await app.enqueue_many([app.new("work") for _ in range(jobs)])
            async with working(app, concurrency=jobs):
                await eventually(lambda: started == jobs)
                seen = renewals()
                await eventually(lambda: renewals() >= seen + 3)
                over.set()
        assert renewals() <= counted.wire.count("heartbeat", "heartbeat_worker")
        opening = 6  # settings, the former session, the lock, …
        assert counted.wire.count("heartbeat") <= 2 * counted.wire.count("heartbeat", "heartbeat_worker") + opening
        assert started == jobs


Node = dict[str, Any]


def written(node: Node, what: str) -> int:
    """Return the WAL of the nodes that write, each without that of its inputs."""
    feeding = [child for child in node.get("Plans", ()) if child["Parent Relationship"] not in ("InitPlan", "SubPlan")]
    own = node[what] - sum(child[what] for child in feeding)
    return (own if node["Node Type"] in ("ModifyTable", "LockRows") else 0) + sum(
        written(child, what) for child in node.get("Plans", ())
    )


class TestWAL:
    """Measured with EXPLAIN, because other sessions write WAL at the same time.

    The first change of a page after a checkpoint writes the whole page. That can only add to a round, so the minimum of
    several rounds is what the rows themselves cost.
    """

    ROUNDS = 5
    SIZE = 500
    RECORDS = ("WAL Records", "WAL Bytes")

    async def explained(self, session: Session, name: str, *values: str) -> tuple[float, float]:
        """Return WAL records and bytes per job."""
        root = await self.explain(session, name, *values)
        records, size = (written(root, what) / self.SIZE for what in self.RECORDS)
        return records, size

    async def explain(self, session: Session, name: str, *values: str) -> Node:
        """Run a statement. Return its plan."""
        await session.connection.execute(f"PREPARE p AS {statement(name, session.schema)}")
        try:
            text = await session.connection.fetchval(
                f"EXPLAIN (ANALYZE, WAL, FORMAT JSON) EXECUTE p ({', '.join(values)})"
            )
        finally:
            await session.connection.execute("DEALLOCATE p")
        root: Node = json.loads(text)[0]["Plan"]
        return root

    async def test_job_writes_only_its_rows_and_index_entries(self, database: Database) -> None:
        claims: list[tuple[float, float]] = []
        completions: list[tuple[float, float]] = []
        async with another_session(database, **STABLE_PLAN_SETTINGS) as session:
            await session.connection.execute("ANALYZE")
            for _ in range(self.ROUNDS):
                ids = await insert(session, "ready", self.SIZE, args='{"n": 12345}')
                priorities = f"'{{{','.join(map(str, PRIORITIES))}}}'"
                values = ("'default'", priorities, "'{0,0,0,0}'", "500", "'{work}'", f"'{OWNER}'", "'{}'", "false")
                claims.append(await self.explained(session, "claim_jobs", *values))
                array = f"'{{{','.join(map(str, ids))}}}'"
                leases = f"'{{{','.join(['1'] * self.SIZE)}}}'"
                ours = (array, leases, f"'{OWNER}'")
                completions.append(await self.explained(session, "complete_jobs", *ours, "NULL", "true", "500"))
            assert await count(session.connection, "SELECT count(*) FROM awa.completed") == self.ROUNDS * self.SIZE
        claim_records, claim_bytes = (min(values) for values in zip(*claims, strict=True))
        end_records, end_bytes = (min(values) for values in zip(*completions, strict=True))
        print(f"claim: {claim_records} records, {claim_bytes} bytes; end: {end_records} records, {end_bytes} bytes")
        # Claim: lock, delete, insert, and entries in two indexes. Completion: delete, insert, and an entry in one.
        assert 4.9 < claim_records < 5.5
        assert 2.9 < end_records < 3.5
        assert 300 < claim_bytes < 700
        assert 150 < end_bytes < 500

    @pytest.mark.parametrize("size", [10_000, 100_000])
    async def test_large_arguments_are_written_once(self, database: Database, size: int) -> None:
        jobs = 20
        random_text = base64.b64encode(random.Random(size).randbytes(size * 3 // 4)).decode()  # cannot be compressed
        new = json.dumps([{"kind": "work", "args": {"text": random_text}}] * jobs)
        priorities = f"'{{{','.join(map(str, PRIORITIES))}}}'"
        leases = f"'{{{','.join(['1'] * jobs)}}}'"
        lives: list[tuple[float, float]] = []
        async with another_session(database, **STABLE_PLAN_SETTINGS) as session:
            await session.connection.execute("ANALYZE")
            for _ in range(self.ROUNDS):
                enqueue = await self.explain(session, "enqueue_jobs", f"'{new}'")
                ids = await session.connection.fetchval("SELECT array_agg(id)::text FROM awa.ready")
                claim = await self.explain(
                    session,
                    "claim_jobs",
                    "'default'",
                    priorities,
                    "'{0,0,0,0}'",
                    "500",
                    "'{work}'",
                    f"'{OWNER}'",
                    "'{}'",
                    "false",
                )
                ours = (f"'{ids}'", leases, f"'{OWNER}'")
                end = await self.explain(session, "complete_jobs", *ours, "NULL", "true", f"{jobs}")
                delete = await self.explain(session, "delete_completed_jobs", "'0'", "1000")
                assert await count(session.connection, "SELECT count(*) FROM awa.payloads") == 0
                drain_bytes = (written(claim, "WAL Bytes") + written(end, "WAL Bytes")) / jobs
                rest = (enqueue["WAL Bytes"] + written(delete, "WAL Bytes")) / jobs  # its function runs inside a node
                lives.append((drain_bytes, drain_bytes + rest))
        drain_bytes, life_bytes = (min(values) for values in zip(*lives, strict=True))
        print(f"drain: {drain_bytes} bytes, whole life: {life_bytes / size} times the arguments")
        assert drain_bytes < 1_200  # of the job's row and its index entries
        assert size < life_bytes < 1.3 * size
