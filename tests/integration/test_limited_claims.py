"""available → running within limits: max_workers, rates and concurrency keys."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.store.claim import (
    PRIORITIES,
    Claim,
    Claimant,
    SkippedJobs,
    claim_jobs,
    claim_limited_jobs,
    find_skipped_jobs,
)
from awa_py.store.finish import complete_jobs, fail_attempts, release_jobs, snooze_jobs
from awa_py.store.maintenance import promote_jobs
from awa_py.store.queues import pause_queue
from awa_py.store.session import Session
from tests.support import (
    OWNER,
    ago,
    another_session,
    claim,
    count,
    eventually,
    insert,
    insert_queue,
    insert_running,
    new_owner,
    seconds,
)

pytestmark = pytest.mark.integration

READ_PAGES = (
    "SELECT pg_stat_get_xact_blocks_fetched('awa.ready'::regclass) + "
    "pg_stat_get_xact_blocks_fetched('awa.ready_keys'::regclass)"
)
WAITING_FOR_A_LOCK = """
    SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()
"""
START = [0] * len(PRIORITIES)


async def claim_limited(
    session: Session,
    limit: int = 1,
    *,
    queue: str = "default",
    kinds: Sequence[str] = ("work",),
    worker_id: UUID = OWNER,
    found: Sequence[int] = (),
) -> Claim:
    claimant = Claimant(worker_id, kinds, detailed_kinds=kinds)
    return await claim_limited_jobs(session, claimant, queue=queue, positions=START, limit=limit, found=found)


async def search(session: Session, limit: int = 200, **options: Any) -> SkippedJobs:
    defaults: dict[str, Any] = {"queue": "default", "positions": START, "max_keys": 200, "after_key": ""}
    claimant = Claimant(OWNER, options.pop("kinds", ("work",)))
    return await find_skipped_jobs(session, claimant, limit=limit, **defaults | options)


async def claimed_ids(session: Session, limit: int = 1, **options: Any) -> list[int]:
    """Search, claim, and return the ids in order of priority and position."""
    about = {name: options[name] for name in ("queue", "kinds") if name in options}
    found = (await search(session, limit, **about)).ids
    return [row["id"] for row in (await claim_limited(session, limit, found=found, **options)).rows]


async def insert_keyed(session: Session, key: str, count: int = 1, *, limit: int = 1, **columns: Any) -> list[int]:
    columns = {"concurrency_key": key, "concurrency_limit": limit, "ordered": False} | columns
    return await insert(session, "ready", count, **columns)


async def insert_ordered(session: Session, key: str, count: int = 1, **columns: Any) -> list[int]:
    return await insert_keyed(session, key, count, ordered=True, **columns)


async def complete(session: Session, *ids: int) -> None:
    await complete_jobs(session, OWNER, list(ids), [1] * len(ids), None, keep=True)


class TestPlainClaim:
    @pytest.mark.parametrize("limits", [{"max_workers": 1}, {"rate_jobs": 1, "rate_period": seconds(1)}])
    async def test_plain_claim_leaves_a_limited_queue_alone(self, session: Session, limits: Any) -> None:
        await insert_queue(session, "default", **limits)
        await insert(session, "ready")
        claimed = await claim_jobs(session, Claimant(OWNER, ["work"]), queue="default", positions=START, limit=9)
        assert (claimed.rows, claimed.limited) == ([], True)

    async def test_plain_claim_leaves_jobs_with_a_key_alone(self, session: Session) -> None:
        (with_key,) = await insert_keyed(session, "a")
        (without,) = await insert(session, "ready")
        claimant = Claimant(OWNER, ["work"])
        first = await claim_jobs(session, claimant, queue="default", positions=START, limit=9)
        assert ([row["id"] for row in first.rows], first.limited) == ([without], True)
        second = await claim_jobs(session, claimant, queue="default", positions=START, limit=9)
        assert (second.rows, second.limited) == ([], True)
        assert await claimed_ids(session, 9) == [with_key]

    async def test_plain_claim_of_an_ordinary_queue_is_not_limited(self, session: Session) -> None:
        await insert(session, "ready")
        for jobs in (1, 0):
            claimed = await claim_jobs(session, Claimant(OWNER, ["work"]), queue="default", positions=START, limit=9)
            assert (len(claimed.rows), claimed.limited) == (jobs, False)


class TestClaimedJobs:
    async def test_jobs_with_and_without_key_come_by_priority_and_position(self, session: Session) -> None:
        (third,) = await insert(session, "ready", priority=2)
        (fourth,) = await insert_keyed(session, "a", priority=2)
        (first,) = await insert_keyed(session, "b", priority=1)
        (second,) = await insert(session, "ready", priority=1)
        assert await claimed_ids(session, 3) == [first, second, third]
        assert await claimed_ids(session, 3) == [fourth]

    async def test_claimed_row_has_all_columns(self, session: Session) -> None:
        await insert_queue(session, "default", max_workers=1, timeout=seconds(60))
        (job_id,) = await insert_keyed(session, "a", limit=3)
        (row,) = (await claim_limited(session)).rows
        assert (row["id"], row["lease"], row["attempt"], row["args"]) == (job_id, 1, 1, "{}")
        assert 0 < row["deadline_s"] <= 60
        stored = await session.connection.fetchrow("SELECT * FROM awa.running")
        assert stored is not None
        kept = ("worker_id", "concurrency_key", "concurrency_limit", "ordered", "limited")
        assert [stored[name] for name in kept] == [OWNER, "a", 3, False, True]

    @pytest.mark.parametrize("state", ["paused", "throttled"])
    async def test_paused_or_throttled_queue_gives_nothing(self, session: Session, state: str) -> None:
        if state == "paused":
            await pause_queue(session, "default", paused=True)
        else:
            await insert_queue(session, "default", throttled_until=ago(-60))
        await insert(session, "ready")
        await insert_keyed(session, "a")
        assert await claimed_ids(session, 9) == []


class TestMaxWorkers:
    async def test_workers_together_run_no_more_than_max_workers(self, session: Session) -> None:
        await insert_queue(session, "default", max_workers=3)
        await insert(session, "ready", 10)
        first = await claimed_ids(session, 2)
        second = await claimed_ids(session, 9, worker_id=new_owner())
        assert (len(first), len(second)) == (2, 1)
        assert await claimed_ids(session, 9) == []
        await complete(session, *first)
        assert len(await claimed_ids(session, 9)) == 2

    async def test_jobs_of_a_dead_worker_count_until_they_are_rescued(self, session: Session) -> None:
        await insert_queue(session, "default", max_workers=3)
        await insert_running(session, 2, silent_s=60, limited=True)
        await insert(session, "ready", 10)
        assert len(await claimed_ids(session, 9)) == 1

    async def test_jobs_of_other_queues_do_not_count(self, session: Session) -> None:
        await insert_queue(session, "default", max_workers=1)
        await insert_running(session, 5, queue="other", limited=True)
        await insert(session, "ready", 2)
        assert len(await claimed_ids(session, 9)) == 1

    async def test_concurrent_claims_do_not_exceed_max_workers(self, session: Session, database: Database) -> None:
        await insert_queue(session, "default", max_workers=7)
        await insert(session, "ready", 200)

        async def claim_often() -> list[int]:
            async with another_session(database) as own:
                return [job for _ in range(5) for job in await claimed_ids(own, 3, worker_id=new_owner())]

        claimed = await asyncio.gather(*(claim_often() for _ in range(6)))
        assert len({job for jobs in claimed for job in jobs}) == 7


class TestRate:
    async def test_bucket_fills_with_time_and_holds_one_second(self, session: Session) -> None:
        await insert_queue(session, "default", rate_jobs=6_000, rate_period=seconds(600), rate_tokens=0)
        await insert(session, "ready", 100)

        async def claimed_after(passed_s: float) -> int:
            await session.connection.execute(
                "UPDATE awa.queues SET rate_tokens = 0, rate_refilled_at = clock_timestamp() - $1::interval",
                seconds(passed_s),
            )
            return len(await claimed_ids(session, 100))

        for passed_s, tokens in ((0.55, 5.5), (100, 10)):  # 10 per second
            refilled = "SELECT awa.refilled_tokens(0, 10, $1)"
            assert await session.connection.fetchval(refilled, seconds(passed_s)) == pytest.approx(tokens)
        assert 5 <= await claimed_after(0.55) <= 10  # more on a slow machine
        assert await claimed_after(100) == 10

    async def test_slow_rate_holds_two_tokens(self, session: Session) -> None:
        await insert_queue(session, "default", rate_jobs=1, rate_period=seconds(60), rate_refilled_at=ago(3600))
        await insert(session, "ready", 10)
        assert len(await claimed_ids(session, 10)) == 2
        assert await claimed_ids(session, 10) == []

    async def test_empty_claim_keeps_the_tokens(self, session: Session) -> None:
        await insert_queue(session, "default", rate_jobs=1, rate_period=seconds(3600))
        assert await claimed_ids(session, 10) == []
        await insert(session, "ready", 5)
        assert len(await claimed_ids(session, 10)) == 1

    async def test_concurrent_claims_share_the_tokens(self, session: Session, database: Database) -> None:
        await insert_queue(session, "default", rate_jobs=1, rate_period=seconds(3600))
        await insert(session, "ready", 50)

        async def claim_once() -> int:
            async with another_session(database) as own:
                return len(await claimed_ids(own, 5, worker_id=new_owner()))

        assert sum(await asyncio.gather(*(claim_once() for _ in range(8)))) == 1


class TestKeys:
    async def test_key_runs_no_more_than_its_limit(self, session: Session) -> None:
        jobs = await insert_keyed(session, "a", 5, limit=2)
        others = await insert_keyed(session, "b", 3, limit=1)
        assert await claimed_ids(session, 9) == [jobs[0], jobs[1], others[0]]
        assert await claimed_ids(session, 9) == []
        await complete(session, jobs[1])
        assert await claimed_ids(session, 9) == [jobs[2]]

    async def test_key_is_shared_by_all_queues(self, session: Session) -> None:
        (first,) = await insert_keyed(session, "a", queue="one")
        await insert_keyed(session, "a", queue="two")
        assert await claimed_ids(session, 9, queue="one") == [first]
        assert await claimed_ids(session, 9, queue="two") == []

    @pytest.mark.parametrize(("keys", "limit"), [(20, 5), (100, 60)], ids=["small claims", "large claims"])
    async def test_concurrent_claims_do_not_exceed_a_key(
        self, session: Session, database: Database, keys: int, limit: int
    ) -> None:
        for _ in range(4):
            for key in range(keys):
                await insert_keyed(session, f"k{key}", 3, limit=2)

        async def claim_often() -> list[int]:
            async with another_session(database) as own:
                return [job for _ in range(8) for job in await claimed_ids(own, limit, worker_id=new_owner())]

        claimed = await asyncio.gather(*(claim_often() for _ in range(6)))
        jobs = [job for each in claimed for job in each]
        assert len(jobs) == len(set(jobs)) == 2 * keys
        running = await session.connection.fetch("SELECT count(*) FROM awa.running GROUP BY concurrency_key")
        assert [row["count"] for row in running] == [2] * keys

    @pytest.mark.parametrize(("waiting", "search_wanted"), [(0, True), (1, True), (2, False)])
    async def test_claim_that_gets_few_jobs_asks_for_a_search(
        self, session: Session, waiting: int, search_wanted: bool
    ) -> None:
        if waiting:
            await insert_keyed(session, "a", waiting, limit=9)
        assert (await claim_limited(session, 8)).search is search_wanted


class TestSearch:
    async def test_search_continues_behind_the_last_key(self, session: Session) -> None:
        for table, columns, values in (
            ("running", ", lease, attempt, worker_id, claim_number", ", 1, 1, $1::uuid, nextval('awa.claim_number')"),
            ("ready", "", ""),
        ):
            await session.connection.execute(
                f"INSERT INTO awa.{table} (kind, concurrency_key, concurrency_limit, ordered {columns}) "
                f"SELECT 'work', 'k' || to_char(n, 'FM0000'), 1, false {values} FROM generate_series(1, 1200) AS n",
                *([OWNER] if values else []),
            )
        (free,) = await insert_keyed(session, "z")
        found: list[int] = []
        after_key, searches = "", 0
        while not found:
            found, after_key = await search(session, after_key=after_key)
            searches += 1
            assert found or after_key
        assert found == [free]
        assert searches == 7  # 200 keys at a time

    async def test_search_finds_late_jobs_without_key(self, session: Session) -> None:
        (late,) = await insert(session, "ready")
        await insert(session, "ready", 3)
        first = await session.connection.fetchval("SELECT min(pos) FROM awa.ready")
        assert (await search(session, positions=[first] * len(PRIORITIES))).ids == [late]

    async def test_full_key_with_100_000_jobs_costs_one_step(self, session: Session) -> None:
        await insert_running(session, concurrency_key="big", concurrency_limit=1, ordered=False)
        await session.connection.execute(
            "INSERT INTO awa.ready (kind, concurrency_key, concurrency_limit, ordered) "
            "SELECT 'work', 'big', 1, false FROM generate_series(1, 100000)"
        )
        await session.connection.execute("ANALYZE awa.ready")
        (other,) = await insert_keyed(session, "small")
        (plain,) = await insert(session, "ready")
        async with session.connection.transaction():
            before = await session.connection.fetchval(READ_PAGES)
            assert [row["id"] for row in await claim(session, limit=9)] == [plain]
            assert await claimed_ids(session, 9) == [other]
            assert await session.connection.fetchval(READ_PAGES) - before < 300

    async def test_search_reads_a_few_jobs_of_each_key(self, session: Session) -> None:
        await session.connection.execute(
            "INSERT INTO awa.ready (kind, concurrency_key, concurrency_limit, ordered) "
            "SELECT 'work', 'k' || n % 20, 10000, false FROM generate_series(1, 20000) AS n"
        )
        await session.connection.execute("ANALYZE awa.ready")
        async with session.connection.transaction():
            before = await session.connection.fetchval(READ_PAGES)
            found = (await search(session, 200)).ids
            assert await session.connection.fetchval(READ_PAGES) - before < 1_000
        keys = await session.connection.fetch(
            "SELECT count(*) FROM awa.ready WHERE id = ANY ($1) GROUP BY concurrency_key", found
        )
        assert [row["count"] for row in keys] == [10] * 20


class TestOtherSessions:
    async def test_claim_sees_what_the_claim_before_it_committed(self, session: Session, database_url: str) -> None:
        serializable = Database(f"{database_url}?options=-c%20default_transaction_isolation%3Dserializable", Schema())
        await insert_queue(session, "default", max_workers=1)
        first, _ = await insert(session, "ready", 2)
        async with another_session(serializable) as second:
            async with session.connection.transaction():
                assert [row["id"] for row in (await claim_limited(session)).rows] == [first]
                waiting = asyncio.create_task(claim_limited(second))
                await eventually(partial(count, session.connection, WAITING_FOR_A_LOCK))
            assert (await waiting).rows == []

    async def test_locked_rows_are_skipped(self, session: Session, database: Database) -> None:
        await insert_queue(session, "default", max_workers=2)
        first, second = await insert(session, "ready", 2)
        async with another_session(database) as other, other.connection.transaction():
            await other.connection.execute("SELECT FROM awa.ready WHERE id = $1 FOR UPDATE", first)
            assert await claimed_ids(session, 2) == [second]

    async def test_frozen_worker_does_not_stop_the_claims_of_others(self, session: Session, database: Database) -> None:
        """500 jobs of 20 kB do not fit into the network buffers, and the frozen worker reads nothing."""
        for queue in ("one", "two"):
            await session.connection.execute(
                "INSERT INTO awa.ready (kind, queue, args, concurrency_key, concurrency_limit, ordered) "
                "SELECT 'work', $1, jsonb_build_object('text', repeat(md5(n::text), 600)), $1 || n, 1, false "
                "FROM generate_series(1, 500) AS n",
                queue,
            )
        async with another_session(database) as frozen:
            await claim_limited(frozen, queue="none")  # prepares the statement: the next claim is one message
            claiming = asyncio.create_task(claim_limited(frozen, 500, queue="one"))
            for _ in range(3):
                await asyncio.sleep(0)
            transport: asyncio.Transport = frozen.connection._transport  # type: ignore[union-attr]
            transport.pause_reading()

            async def is_claimed() -> bool:
                return await count(session.connection, "SELECT count(*) FROM awa.running") == 500

            await eventually(is_claimed)
            assert not claiming.done()
            rows = (await claim_limited(session, 500, queue="two")).rows
            assert {len(row["args"]) for row in rows} == {len('{"text": ""}') + 19_200}
            transport.resume_reading()
            assert len((await claiming).rows) == 500


class TestOrderedKeys:
    async def test_ordered_jobs_run_one_at_a_time_by_id(self, session: Session) -> None:
        jobs = await insert_ordered(session, "a", 3)
        for job in jobs:
            assert await claimed_ids(session, 9) == [job]
            assert await claimed_ids(session, 9) == []
            await complete(session, job)

    async def test_failed_job_blocks_its_key_until_it_has_ended(self, session: Session) -> None:
        first, second = await insert_ordered(session, "a", 2)
        assert await claimed_ids(session, 9) == [first]
        await fail_attempts(session, OWNER, [first], [1], ["no"], [seconds(0)])
        assert await claimed_ids(session, 9) == []
        assert (await promote_jobs(session, limit=9))[0] == 1
        assert await claimed_ids(session, 9) == [first]
        await fail_attempts(session, OWNER, [first], [2], ["no"], [seconds(3600)])
        assert await claimed_ids(session, 9) == []
        await session.connection.execute("DELETE FROM awa.scheduled")
        assert await claimed_ids(session, 9) == [second]

    async def test_snoozed_or_released_job_blocks_its_key(self, session: Session) -> None:
        first, _ = await insert_ordered(session, "a", 2)
        assert await claimed_ids(session, 9) == [first]
        await release_jobs(session, OWNER, [first], [1])
        assert await claimed_ids(session, 9) == [first]
        await snooze_jobs(session, OWNER, [first], [2], [seconds(3600)])
        assert await claimed_ids(session, 9) == []

    async def test_job_that_is_scheduled_for_later_does_not_block_its_key(self, session: Session) -> None:
        key: dict[str, Any] = {"concurrency_key": "a", "concurrency_limit": 1, "ordered": True}
        await insert(session, "scheduled", state="scheduled", run_at=ago(-3600), **key)
        (now,) = await insert_ordered(session, "a")
        assert await claimed_ids(session, 9) == [now]

    async def test_job_of_an_unknown_kind_blocks_its_key(self, session: Session) -> None:
        await insert_ordered(session, "a", kind="elsewhere")
        await insert_ordered(session, "a", kind="work")
        assert await claimed_ids(session, 9) == []
        assert len(await claimed_ids(session, 9, kinds=("elsewhere",))) == 1


class TestFairQueues:
    async def test_ordinary_queue_goes_by_position(self, session: Session) -> None:
        many = await insert_keyed(session, "many", 5, limit=9)
        await insert_keyed(session, "few", 2, limit=9)
        assert await claimed_ids(session, 4) == many[:4]

    async def test_keys_of_a_fair_queue_take_turns(self, session: Session) -> None:
        await insert_queue(session, "default", fair=True)
        many = await insert_keyed(session, "many", 5, limit=9)
        few = await insert_keyed(session, "few", 2, limit=9)
        assert sorted(await claimed_ids(session, 4)) == [*many[:2], *few]
        assert await claimed_ids(session, 9) == many[2:]

    async def test_jobs_without_key_take_turns_as_one_key(self, session: Session) -> None:
        await insert_queue(session, "default", fair=True)
        with_key = await insert_keyed(session, "k", 2, limit=9)
        without = await insert(session, "ready", 20)
        assert sorted(await claimed_ids(session, 4)) == sorted([*with_key, *without[:2]])

    async def test_running_jobs_count_as_turns(self, session: Session) -> None:
        await insert_queue(session, "default", fair=True)
        await insert_running(session, 3, concurrency_key="many", concurrency_limit=9, ordered=False)
        await insert_keyed(session, "many", 3, limit=9)
        few = await insert_keyed(session, "few", 3, limit=9)
        assert sorted(await claimed_ids(session, 3)) == few

    async def test_priority_goes_before_turns(self, session: Session) -> None:
        await insert_queue(session, "default", fair=True)
        urgent = await insert_keyed(session, "many", 3, limit=9, priority=1)
        await insert_keyed(session, "few", 3, limit=9)
        assert await claimed_ids(session, 3) == urgent
