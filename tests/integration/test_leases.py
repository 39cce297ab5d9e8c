"""When a lease begins, and that no handler starts on one that has run out."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from importlib import resources
from types import SimpleNamespace
from typing import Any, cast

import pytest

from awa_py import BatchJob, Context
from awa_py.db.database import Database
from awa_py.store.claim import PRIORITIES, Claimant, claim_limited_jobs, take_over_jobs
from awa_py.store.heartbeat import renew_leases
from awa_py.store.queues import set_queue
from awa_py.store.session import Session
from awa_py.worker.batches import Batch
from awa_py.worker.handler_threads import HandlerThreads
from awa_py.worker.in_flight import InFlightJobs
from awa_py.worker.outcomes import LeaseExpired
from tests.support import (
    HASTY,
    OWNER,
    another_session,
    claim,
    count,
    eventually,
    insert,
    insert_running,
    lead,
    seconds,
    with_settings,
    working,
)

pytestmark = pytest.mark.integration

LIMIT: dict[str, Any] = {"timeout": seconds(30)}
KEY: dict[str, Any] = {"concurrency_key": "a", "concurrency_limit": 1, "ordered": False}
CLAIMANT = Claimant(OWNER, ["work"], ["work"])


async def claim_limited(session: Session) -> Sequence[Any]:
    claimed = await claim_limited_jobs(session, CLAIMANT, queue="default", positions=[0] * len(PRIORITIES), limit=1)
    return claimed.rows


async def renew(session: Session) -> Sequence[Any]:
    return list(await renew_leases(session, OWNER, [1], [1]))


async def take_over(session: Session) -> Sequence[Any]:
    return await take_over_jobs(session, CLAIMANT, queues=["default"], staleness=seconds(90), limit=1)


STATEMENTS: dict[str, Callable[[Session], Awaitable[Sequence[Any]]]] = {
    "claim": lambda session: claim(session),
    "limited claim": claim_limited,
    "renewal": renew,
    "take-over": take_over,
}


class TestBeginning:
    @pytest.mark.parametrize("name", STATEMENTS)
    async def test_lease_begins_when_the_row_is_written(self, session: Session, database: Database, name: str) -> None:
        """The statement waits for a lock first. Its transaction is older than that."""
        async with another_session(database) as worker, another_session(database) as locker:
            await STATEMENTS[name](worker)  # so that it is prepared: preparing it would wait for the lock too
            if name in ("claim", "limited claim"):
                await insert(session, "ready", id=1, **LIMIT, **(KEY if name == "limited claim" else {}))
            else:
                await insert_running(session, id=1, silent_s=100, **LIMIT)
            await lead(locker, since_s=1000)
            lock = locker.connection.transaction()
            await lock.start()
            await locker.connection.execute("LOCK TABLE awa.running IN ACCESS EXCLUSIVE MODE")
            statement = asyncio.ensure_future(STATEMENTS[name](worker))
            pid = worker.connection.get_server_pid()
            waits = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'"
            await eventually(lambda: count(session.connection, waits, pid))
            released_at = await locker.connection.fetchval("SELECT clock_timestamp()")
            await lock.rollback()
            rows = await statement
        assert len(rows) == 1
        row = await session.connection.fetchrow("SELECT * FROM awa.running")
        assert row is not None
        assert row["heartbeat_at"] >= released_at
        if name != "renewal":
            assert released_at <= row["attempted_at"] <= row["heartbeat_at"]
            assert row["deadline_at"] >= released_at + LIMIT["timeout"]
            assert rows[0]["attempted_at"] == row["attempted_at"]

    def test_no_statement_begins_a_lease_with_the_time_of_its_transaction(self) -> None:
        files = [
            *resources.files("awa_py.store.sql").iterdir(),
            *resources.files("schema").joinpath("0001_baseline").iterdir(),
        ]
        texts = {file.name: file.read_text() for file in files if file.name.endswith(".sql")}
        assert len(texts) > 50
        begins = re.compile(r"heartbeat_at\s*=\s*now\(\)")
        assert [name for name, text in texts.items() if begins.search(text)] == []


class TestStart:
    @pytest.mark.parametrize("kind", ["in_loop", "in_thread", "in_batch"])
    async def test_no_handler_starts_on_a_lease_that_ran_out(
        self, database_url: str, database: Database, session: Session, kind: str
    ) -> None:
        """The answer to the claim comes late. The jobs are released, and the attempt does not count."""
        app = with_settings(database_url, HASTY)
        leases: list[int] = []

        @app.job
        async def in_loop(ctx: Context) -> None:
            leases.append(ctx.job.lease)

        @app.job
        def in_thread(ctx: Context) -> None:
            leases.append(ctx.job.lease)

        @app.job(batch=10)
        async def in_batch(jobs: list[BatchJob]) -> None:
            leases.extend(job._claimed.lease for job in jobs)  # type: ignore[attr-defined]

        async with app, another_session(database) as locker:
            job = await app.enqueue(kind)
            lock = locker.connection.transaction()
            await lock.start()
            await locker.connection.execute("LOCK TABLE awa.ready IN ACCESS EXCLUSIVE MODE")
            async with working(app):
                waits = (
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'awa claims' "
                    "AND datname = current_database() AND wait_event_type = 'Lock' "
                    "AND query_start < now() - interval '2 seconds'"
                )
                await eventually(lambda: count(session.connection, waits))
                await lock.rollback()
                await app.result(job.id, timeout="20s")
            found = await app.get(job.id)
        assert leases == [found.lease]
        assert found.lease > 1
        assert (found.attempt, found.rescues, found.errors) == (1, 0, [])

    def test_batch_is_called_without_jobs_whose_lease_ran_out(self) -> None:
        jobs: list[Any] = [SimpleNamespace(id=n, queue="default", stop=None, renewed_at=n) for n in range(3)]
        batch = Batch(cast(Any, SimpleNamespace(kind="work")), jobs)
        assert batch.remove_unstartable(lambda job: job.renewed_at < 2) == jobs[:2]
        assert [job.id for job in batch.batch_jobs(lambda *_: None)] == [2]

    async def test_thread_that_starts_late_does_not_call_the_handler(self) -> None:
        in_flight = InFlightJobs({"default": 1}, 1)
        in_flight.lease_s = 10.0
        call: Any = SimpleNamespace(renewed_at=0.0, stop=None)
        called: list[bool] = []
        async with HandlerThreads(in_flight) as threads:
            with pytest.raises(LeaseExpired):
                await threads.run(lambda: called.append(True), call)
        assert called == []


class TestDurableClaims:
    """The commit of a claim waits for the disk if the transaction's synchronous_commit is on."""

    @pytest.mark.parametrize("name", ["claim", "limited claim"])
    @pytest.mark.parametrize(
        ("is_durable", "rescues", "expected"),
        [(False, 0, "off"), (True, 0, "on"), (False, 1, "on")],
        ids=["default", "durable queue", "job whose worker died"],
    )
    async def test_claim_waits_for_the_disk(
        self, session: Session, database: Database, name: str, is_durable: bool, rescues: int, expected: str
    ) -> None:
        await set_queue(session, "default", {"durable_claims": is_durable})
        await insert(session, "ready", rescues=rescues, **(KEY if name == "limited claim" else {}))
        async with another_session(database, synchronous_commit="off") as worker, worker.connection.transaction():
            assert len(await STATEMENTS[name](worker)) == 1
            assert await worker.connection.fetchval("SHOW synchronous_commit") == expected

    async def test_take_over_waits_for_the_disk(self, session: Session, database: Database) -> None:
        await lead(session, since_s=1000)
        await insert_running(session, silent_s=100)
        async with another_session(database, synchronous_commit="off") as worker, worker.connection.transaction():
            assert len(await take_over(worker)) == 1
            assert await worker.connection.fetchval("SHOW synchronous_commit") == "on"
