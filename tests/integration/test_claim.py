"""available → running: which jobs a claim gets, and in which order."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest

from awa_py import Job, NewJob, State
from awa_py.connections import Record
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.store.claim import Claimant, claimed_job, queues_with_work, release_orphans, take_over_jobs
from awa_py.store.finish import complete_jobs, release_jobs
from awa_py.store.jobs import cancel_jobs
from awa_py.store.queues import pause_queue, set_queue
from awa_py.store.session import Session
from tests.support import (
    OWNER,
    FromNow,
    ago,
    another_session,
    claim,
    insert,
    insert_queue,
    insert_running,
    leading,
    look,
    new_owner,
    put,
    put_one,
    seconds,
    states,
)

pytestmark = pytest.mark.integration

STALENESS = timedelta(seconds=90)


def ids(rows: list[Record]) -> list[int]:
    return [row["id"] for row in rows]


class TestOrder:
    async def test_claim_goes_by_priority_and_then_by_position(self, session: Session) -> None:
        wanted = [NewJob(kind="work", priority=priority) for priority in (3, 1, 4, 2, 1, 3)]
        third, first, last, second, also_first, also_third = await put(session, *wanted)
        assert ids(await claim(session, limit=10)) == [first, also_first, second, third, also_third, last]

    async def test_small_claim_gets_the_first_jobs(self, session: Session) -> None:
        jobs = await put(session, *[NewJob(kind="work", priority=priority) for priority in (2, 2, 1, 1)])
        assert ids(await claim(session, limit=3)) == [jobs[2], jobs[3], jobs[0]]
        assert ids(await claim(session, limit=3)) == [jobs[1]]

    async def test_position_is_the_order_of_becoming_available(self, session: Session) -> None:
        older, newer = await put(session, NewJob(kind="work"), NewJob(kind="work"))
        await claim(session, limit=1)
        await session.connection.execute("SELECT setval('awa.pos', 1000)")
        await release_jobs(session, OWNER, [older], [1])
        assert ids(await claim(session, limit=2)) == [newer, older]


class TestConcurrentClaims:
    async def test_concurrent_claims_never_get_the_same_job(self, session: Session, database: Database) -> None:
        await insert(session, "ready", 2000)
        async with another_session(database) as one, another_session(database, **STABLE_PLAN_SETTINGS) as two:

            async def drain(own: Session, worker_id: UUID) -> list[int]:
                taken: list[int] = []
                while rows := await claim(own, limit=7, worker_id=worker_id):
                    taken += ids(rows)
                return taken

            first, second = await asyncio.gather(drain(one, new_owner()), drain(two, new_owner()))
        assert first
        assert second
        assert len(first) + len(second) == len({*first, *second}) == 2000
        assert await states(session) == {"running": 2000}

    async def test_claim_skips_the_rows_of_an_open_claim(self, session: Session, database: Database) -> None:
        jobs = await insert(session, "ready", 4)
        async with another_session(database) as other, other.connection.transaction():
            assert ids(await claim(other, limit=2)) == jobs[:2]
            async with asyncio.timeout(5):
                assert ids(await claim(session, limit=4)) == jobs[2:]


class TestSelection:
    async def test_claim_gets_only_the_given_kinds(self, session: Session) -> None:
        known, unknown = await put(session, NewJob(kind="work"), NewJob(kind="other"))
        assert ids(await claim(session, limit=5, kinds=["work"])) == [known]
        assert (await look(session, unknown)).state is State.AVAILABLE

    async def test_claim_gets_only_the_given_queue(self, session: Session) -> None:
        await put(session, NewJob(kind="work", queue="other"))
        assert await claim(session, limit=5) == []

    async def test_paused_queue_gives_nothing(self, session: Session) -> None:
        job_id = await put_one(session)
        await pause_queue(session, "default", paused=True)
        assert await claim(session) == []
        assert await queues_with_work(session, queues=["default"], kinds=["work"]) == set()
        await pause_queue(session, "default", paused=False)
        assert await queues_with_work(session, queues=["default"], kinds=["work"]) == {"default"}
        assert ids(await claim(session)) == [job_id]

    async def test_pause_ends_at_its_time(self, session: Session) -> None:
        await put_one(session)
        await insert_queue(session, paused=True, paused_until=FromNow(60))
        assert await claim(session) == []
        await insert_queue(session, paused=True, paused_until=ago(1))
        assert len(await claim(session)) == 1

    async def test_expired_job_is_never_claimed(self, session: Session) -> None:  # D3
        await insert(session, "ready", expires_at=ago(1))
        (alive,) = await insert(session, "ready", expires_at=FromNow(60))
        assert ids(await claim(session, limit=5)) == [alive]
        assert await queues_with_work(session, queues=["default"], kinds=["work"]) == set()

    async def test_claim_does_not_scan_before_the_cursor(self, session: Session) -> None:
        await insert(session, "ready", pos=10)
        (above,) = await insert(session, "ready", pos=11)
        assert ids(await claim(session, limit=5, after=10)) == [above]

    async def test_scheduled_job_is_not_claimed(self, session: Session) -> None:
        await put_one(session, delay=seconds(60))
        assert await claim(session) == []


class TestClaimedRow:
    async def test_claim_increments_lease_and_attempt(self, session: Session) -> None:
        (job_id,) = await insert(session, "ready", attempt=3, lease=7)
        (row,) = await claim(session)
        job = await look(session, job_id)
        assert (row["attempt"], row["lease"], job.attempt, job.lease) == (4, 8, 4, 8)
        assert (job.state, job.worker_id) == (State.RUNNING, OWNER)
        assert job.attempted_at == job.heartbeat_at == claimed_job(row).attempted_at
        assert job.finalized_at is None

    async def test_claim_keeps_every_other_column(self, session: Session) -> None:
        await insert(
            session,
            "ready",
            args='{"a": 1}',
            metadata='{"m": 2}',
            tags=["t"],
            errors='[{"error": "x"}]',
            unique_key="k",
            parent_id=5,
            rescues=2,
            progress='{"fraction": 0.5}',
            timeout=seconds(60),
        )
        before = await session.connection.fetchrow("SELECT * FROM awa.jobs")
        (row,) = await claim(session)
        after = await session.connection.fetchrow("SELECT * FROM awa.jobs")
        assert before is not None
        assert after is not None
        changed = {name for name in before.keys() if before[name] != after[name]}  # noqa: SIM118
        assert changed == {"state", "attempt", "lease", "worker_id", "attempted_at", "heartbeat_at", "deadline_at"}
        seen, real = claimed_job(row), await look(session, row["id"])
        different = {name for name in Job.__slots__ if getattr(seen, name) != getattr(real, name)}
        assert different == {"heartbeat_at", "worker_id"}

    async def test_details_come_only_with_the_detailed_kinds(self, session: Session) -> None:
        for kind in ("plain", "detailed"):
            await insert(session, "ready", kind=kind)
        kinds = ["plain", "detailed"]
        rows = await claim(session, limit=2, kinds=kinds, detailed_kinds=["detailed"])
        assert [row["details"] is not None for row in rows] == [False, True]

    async def test_deadline_is_the_timeout_or_the_job_deadline(  # D3
        self, session: Session
    ) -> None:
        for timeout, expires, expected in [
            (None, None, None),
            (10, None, 10),
            (None, 20, 20),
            (10, 20, 10),
            (20, 10, 10),
        ]:
            await insert(
                session,
                "ready",
                timeout=None if timeout is None else seconds(timeout),
                expires_at=None if expires is None else FromNow(expires),
            )
            (row,) = await claim(session)
            assert row["deadline_s"] == (None if expected is None else pytest.approx(expected, abs=5))

    async def test_timeout_of_the_queue_is_the_default(self, session: Session) -> None:
        await set_queue(session, "default", {"timeout": seconds(30)})
        await insert(session, "ready")
        await insert(session, "ready", timeout=seconds(5))
        first, second = await claim(session, limit=2)
        assert (first["deadline_s"], second["deadline_s"]) == (30, 5)


class TestTakeOver:  # D4
    @pytest.fixture(autouse=True)
    async def leader_of_two_minutes(self, database: Database) -> AsyncIterator[None]:
        async with leading(database, since_s=120):
            yield

    async def take_over(self, session: Session, worker_id: UUID, limit: int = 10) -> list[Record]:
        claimant = Claimant(worker_id, ["work"])
        return await take_over_jobs(session, claimant, queues=["default"], staleness=STALENESS, limit=limit)

    async def test_stale_job_moves_to_the_new_worker(self, session: Session) -> None:
        (job_id,) = await insert_running(session, silent_s=100, timeout=seconds(50))
        worker_id = new_owner()
        (row,) = await self.take_over(session, worker_id)
        job = await look(session, job_id)
        assert (row["id"], row["lease"], row["attempt"]) == (job_id, 2, 2)
        assert (job.state, job.worker_id, job.lease, job.attempt, job.rescues) == (State.RUNNING, worker_id, 2, 2, 1)
        assert [error["error"] for error in job.errors] == ["heartbeat stale: worker presumed dead"]
        assert row["deadline_s"] == 50
        assert await self.take_over(session, new_owner()) == []

    async def test_attempt_that_recorded_a_checkpoint_does_not_count(self, session: Session) -> None:
        job_id, other, last = await insert_running(session, 3, silent_s=100, attempt=3, max_attempts=3, lease=7)
        await session.connection.executemany(
            "INSERT INTO awa.checkpoints (job_id, name, number, type, lease) VALUES ($1, 'charge', 1, 'step', $2)",
            [(job_id, 7), (other, 6)],
        )
        (row,) = await self.take_over(session, new_owner())
        assert (row["id"], row["lease"], row["attempt"]) == (job_id, 8, 1)
        assert [(await look(session, each)).attempt for each in (job_id, other, last)] == [1, 3, 3]

    async def test_former_worker_can_no_longer_complete_the_job(self, session: Session) -> None:  # A19
        (job_id,) = await insert_running(session, silent_s=100)
        await self.take_over(session, new_owner())
        assert await complete_jobs(session, OWNER, [job_id], [1], [None], keep=True) == set()
        assert (await look(session, job_id)).state is State.RUNNING

    async def test_jobs_of_live_workers_are_not_taken_over(self, session: Session) -> None:  # D2
        await insert_running(session, silent_s=80)
        await insert_running(session, attempted_at=ago(1000), heartbeat_at=ago(1))
        assert await self.take_over(session, new_owner()) == []

    async def test_job_that_cannot_run_again_is_left_to_the_rescue(self, session: Session) -> None:
        await insert_running(session, silent_s=100, attempt=3, max_attempts=3)
        await insert_running(session, silent_s=100, expires_at=ago(1))
        await insert_running(session, silent_s=100, cancel_requested_at=ago(1))
        await insert_running(session, silent_s=100, kind="other")
        await insert_running(session, silent_s=100, queue="other")
        assert await self.take_over(session, new_owner()) == []

    async def test_staleness_of_the_queue_goes_first(self, session: Session) -> None:
        await insert_running(session, silent_s=100)
        await insert_queue(session, staleness=seconds(200))
        assert await self.take_over(session, new_owner()) == []
        await insert_queue(session, staleness=seconds(5))
        assert len(await self.take_over(session, new_owner())) == 1

    async def test_silence_counts_only_if_a_leader_has_watched_it(self, session: Session) -> None:  # A20
        await insert_running(session, silent_s=1000)
        await session.connection.execute("UPDATE awa.leader SET elected_at = now() - interval '80 seconds'")
        assert await self.take_over(session, new_owner()) == []
        await session.connection.execute("UPDATE awa.leader SET elected_at = now() - interval '1 day'")
        await session.connection.fetch(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'awa leader'"
        )
        assert await self.take_over(session, new_owner()) == []

    async def test_concurrent_take_overs_never_get_the_same_job(self, session: Session, database: Database) -> None:
        await insert_running(session, 1000, silent_s=100)
        async with another_session(database) as other:
            for _ in range(10):
                first, second = await asyncio.gather(
                    self.take_over(session, new_owner(), 50), self.take_over(other, new_owner(), 50)
                )
                assert len(first) == len(second) == 50
                assert not {*ids(first)} & {*ids(second)}


class TestOrphans:
    async def test_orphans_are_released_without_counting_the_attempt(self, session: Session) -> None:
        known, orphan = await insert_running(session, 2)
        (other,) = await insert_running(session, worker_id=new_owner())
        assert await release_orphans(session, worker_id=OWNER, known={(known, 1)}) == 1
        job = await look(session, orphan)
        assert (job.state, job.attempt, job.lease) == (State.AVAILABLE, 0, 1)
        assert (await look(session, known)).state is State.RUNNING
        assert (await look(session, other)).state is State.RUNNING

    async def test_job_whose_earlier_attempt_the_worker_knows_is_an_orphan(self, session: Session) -> None:
        (orphan,) = await insert_running(session, lease=2)
        assert await release_orphans(session, worker_id=OWNER, known={(orphan, 1)}) == 1
        assert (await look(session, orphan)).state is State.AVAILABLE

    async def test_orphan_with_a_cancel_request_is_cancelled(self, session: Session) -> None:
        (orphan,) = await insert_running(session)
        await cancel_jobs(session, [orphan])
        assert await release_orphans(session, worker_id=OWNER, known=set()) == 1
        assert (await look(session, orphan)).state is State.CANCELLED
