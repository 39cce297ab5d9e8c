"""available → running within limits: max_workers, rates and keys, however many claim at once."""

import asyncio
import time
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.db.types import Record
from awa_py.store.claim import PRIORITIES, Note, claim_jobs, claim_limited_jobs, find_overlooked_jobs
from awa_py.store.finish import complete_jobs, fail_attempts, release_jobs, snooze_jobs
from awa_py.store.maintenance import promote_jobs
from awa_py.store.queues import pause_queue
from awa_py.store.session import Session
from awa_py.worker.claiming.cursor import SLACK, Cursor
from awa_py.worker.claiming.taker import Taker
from awa_py.worker.directives import Directives, QueueDirectives
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

PAGES_OF_KEYS = (
    "SELECT pg_stat_get_xact_blocks_fetched('awa.ready'::regclass) + "
    "pg_stat_get_xact_blocks_fetched('awa.ready_keys'::regclass)"
)

FROM_ZERO = [0] * len(PRIORITIES)


async def take(
    session: Session,
    limit: int = 1,
    *,
    queue: str = "default",
    kinds: tuple[str, ...] = ("work",),
    worker_id: UUID = OWNER,
) -> list[int]:
    """A search, and a claim that takes what it found."""
    found, _ = await search(session, queue=queue, kinds=kinds, limit=limit, most_keys=200)
    rows, _ = await take_rows(session, limit, queue=queue, kinds=kinds, worker_id=worker_id, found=found)
    return [row["id"] for row in rows]


async def take_rows(session: Session, limit: int = 1, **options: Any) -> tuple[list[Record], Note]:
    usual: dict[str, Any] = {
        "queue": "default",
        "above": FROM_ZERO,
        "slack": SLACK,
        "kinds": ["work"],
        "shown_kinds": ["work"],
        "worker_id": OWNER,
    }
    return await claim_limited_jobs(session, limit=limit, **usual | options)


async def search(session: Session, **options: Any) -> tuple[list[int], str]:
    usual: dict[str, Any] = {"queue": "default", "above": FROM_ZERO, "kinds": ["work"], "limit": 200, "after_key": ""}
    usual["most_keys"] = options.get("limit", 200)
    return await find_overlooked_jobs(session, **usual | options)


async def keyed(session: Session, key: str, count: int = 1, *, limit: int = 1, **columns: Any) -> list[int]:
    columns = {"concurrency_key": key, "concurrency_limit": limit, "ordered": False} | columns
    return await insert(session, "ready", count, **columns)


async def ordered(session: Session, key: str, count: int = 1, **columns: Any) -> list[int]:
    return await keyed(session, key, count, ordered=True, **columns)


async def position(session: Session, job: int) -> int:
    pos: int = await session.connection.fetchval("SELECT pos FROM awa.ready WHERE id = $1", job)
    return pos


WAITING = """
    SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
    WHERE NOT granted AND locktype = 'advisory' AND datname = current_database()
"""


class TestWhoClaims:
    async def test_a_queue_with_limits_is_left_to_the_careful_claim(self, session: Session) -> None:
        for limits in ({"max_workers": 1}, {"rate_jobs": 1, "rate_period": seconds(1)}):
            await insert_queue(session, "limited", **limits)
            await insert(session, "ready", queue="limited")
            _, limited = await claim_jobs(
                session,
                queue="limited",
                above=FROM_ZERO,
                limit=9,
                kinds=["work"],
                shown_kinds=[],
                worker_id=OWNER,
            )
            assert limited
            await session.connection.execute("TRUNCATE awa.queues, awa.ready")

    async def test_jobs_with_a_key_are_left_to_it_too(self, session: Session) -> None:
        (with_key,) = await keyed(session, "a")
        (without,) = await insert(session, "ready")
        assert [row["id"] for row in await claim(session, limit=9)] == [without]
        _, limited = await claim_jobs(
            session, queue="default", above=FROM_ZERO, limit=9, kinds=["work"], shown_kinds=[], worker_id=OWNER
        )
        assert limited
        assert await take(session, 9) == [with_key]

    async def test_it_takes_what_has_no_key_as_well_by_priority_and_by_becoming_ready(self, session: Session) -> None:
        (third,) = await insert(session, "ready", priority=2)
        (fourth,) = await keyed(session, "a", priority=2)
        (first,) = await keyed(session, "b", priority=1)
        (second,) = await insert(session, "ready", priority=1)
        assert await take(session, 3) == [first, second, third]
        assert await take(session, 3) == [fourth]

    async def test_a_claimed_job_is_as_any_other(self, session: Session) -> None:
        await insert_queue(session, "default", max_workers=1, timeout=seconds(60))
        (job_id,) = await keyed(session, "a", limit=3)
        ((row,), _) = await take_rows(session)
        assert (row["id"], row["lease"], row["attempt"], row["args"]) == (job_id, 1, 1, "{}")
        assert 0 < row["deadline_s"] <= 60
        stored = await session.connection.fetchrow("SELECT * FROM awa.running")
        assert stored is not None
        kept = ("worker_id", "concurrency_key", "concurrency_limit", "ordered", "limited")
        assert [stored[name] for name in kept] == [OWNER, "a", 3, False, True]

    @pytest.mark.parametrize("state", ["paused", "throttled"])
    async def test_a_queue_that_rests_gives_nothing(self, session: Session, state: str) -> None:
        if state == "paused":
            await pause_queue(session, "default", paused=True)
        else:
            await insert_queue(session, "default", throttled_until=ago(-60))
        await insert(session, "ready")
        await keyed(session, "a")
        assert await take(session, 9) == []


class TestMaxWorkers:
    async def test_no_more_than_so_many_run_whoever_claims(self, session: Session) -> None:
        await insert_queue(session, "default", max_workers=3)
        await insert(session, "ready", 10)
        first = await take(session, 2)
        second = await take(session, 9, worker_id=new_owner())
        assert (len(first), len(second)) == (2, 1)
        assert await take(session, 9) == []
        await complete_jobs(session, OWNER, first, [1, 1], None, keep=True)
        assert len(await take(session, 9)) == 2

    async def test_a_dead_workers_jobs_count_until_they_are_rescued(self, session: Session) -> None:
        await insert_queue(session, "default", max_workers=3)
        await insert_running(session, 2, silent_s=60, limited=True)
        await insert(session, "ready", 10)
        assert len(await take(session, 9)) == 1

    async def test_other_queues_do_not_count(self, session: Session) -> None:
        await insert_queue(session, "default", max_workers=1)
        await insert_running(session, 5, queue="other", limited=True)
        await insert(session, "ready", 2)
        assert len(await take(session, 9)) == 1

    async def test_of_many_claims_at_once_together_no_more(self, session: Session, database: Database) -> None:
        await insert_queue(session, "default", max_workers=7)
        await insert(session, "ready", 200)

        async def greedy() -> list[int]:
            async with another_session(database) as own:
                return [job for _ in range(5) for job in await take(own, 3, worker_id=new_owner())]

        taken = await asyncio.gather(*(greedy() for _ in range(6)))
        assert len({job for jobs in taken for job in jobs}) == 7


class TestRate:
    async def test_a_bucket_fills_with_time_and_never_holds_more_than_a_second(self, session: Session) -> None:
        await insert_queue(session, "default", rate_jobs=6_000, rate_period=seconds(600), rate_tokens=0)
        await insert(session, "ready", 100)

        async def after(passed_s: float) -> int:
            await session.connection.execute(
                "UPDATE awa.queues SET rate_tokens = 0, rate_refilled_at = clock_timestamp() - $1::interval",
                seconds(passed_s),
            )
            return len(await take(session, 100))

        for passed_s, tokens in ((0.55, 5.5), (100, 10)):  # ten a second
            refilled = "SELECT awa.refilled(0, 10, $1)"
            assert await session.connection.fetchval(refilled, seconds(passed_s)) == pytest.approx(tokens)
        assert 5 <= await after(0.55) <= 10  # as slow as the machine may be
        assert await after(100) == 10

    async def test_a_slow_rate_holds_two_so_that_nothing_is_lost_between_two_looks(self, session: Session) -> None:
        await insert_queue(session, "default", rate_jobs=1, rate_period=seconds(60), rate_refilled_at=ago(3600))
        await insert(session, "ready", 10)
        assert len(await take(session, 10)) == 2
        assert await take(session, 10) == []

    async def test_a_rate_without_jobs_keeps_its_tokens(self, session: Session) -> None:
        await insert_queue(session, "default", rate_jobs=1, rate_period=seconds(3600))
        assert await take(session, 10) == []
        await insert(session, "ready", 5)
        assert len(await take(session, 10)) == 1

    async def test_two_claims_at_once_one_token_one_job(self, session: Session, database: Database) -> None:
        await insert_queue(session, "default", rate_jobs=1, rate_period=seconds(3600))
        await insert(session, "ready", 50)

        async def one() -> int:
            async with another_session(database) as own:
                return len(await take(own, 5, worker_id=new_owner()))

        assert sum(await asyncio.gather(*(one() for _ in range(8)))) == 1


class TestKeys:
    async def test_at_most_so_many_of_a_key_run(self, session: Session) -> None:
        jobs = await keyed(session, "a", 5, limit=2)
        others = await keyed(session, "b", 3, limit=1)
        assert await take(session, 9) == [jobs[0], jobs[1], others[0]]
        assert await take(session, 9) == []
        await complete_jobs(session, OWNER, [jobs[1]], [1], None, keep=True)
        assert await take(session, 9) == [jobs[2]]

    async def test_a_key_is_the_same_in_all_queues(self, session: Session) -> None:
        (first,) = await keyed(session, "a", queue="one")
        await keyed(session, "a", queue="two")
        assert await take(session, 9, queue="one") == [first]
        assert await take(session, 9, queue="two") == []

    async def test_of_many_claims_at_once_no_key_is_exceeded(self, session: Session, database: Database) -> None:
        for key in range(20):
            await keyed(session, f"k{key}", 30, limit=2)

        async def greedy() -> list[int]:
            async with another_session(database) as own:
                return [job for _ in range(6) for job in await take(own, 5, worker_id=new_owner())]

        await asyncio.gather(*(greedy() for _ in range(6)))
        running = await session.connection.fetch("SELECT concurrency_key, count(*) FROM awa.running GROUP BY 1")
        assert {row["count"] for row in running} == {2}
        assert len(running) == 20

    async def test_of_many_large_claims_at_once_no_key_is_exceeded(self, session: Session, database: Database) -> None:
        for _ in range(4):
            for key in range(100):
                await keyed(session, f"k{key}", 3, limit=2)

        async def greedy() -> list[int]:
            async with another_session(database) as own:
                return [job for _ in range(6) for job in await take(own, 60, worker_id=new_owner())]

        taken = await asyncio.gather(*(greedy() for _ in range(4)))
        jobs = [job for claimed in taken for job in claimed]
        assert len(jobs) == len(set(jobs)) == 200
        running = await session.connection.fetch("SELECT concurrency_key, count(*) FROM awa.running GROUP BY 1")
        assert [row["count"] for row in running] == [2] * 100

    @pytest.mark.parametrize(
        ("limit", "taken", "taken_by_who_waited"),
        [(100, range(150, 250), range(100)), (3, range(3), range(3, 6))],
        ids=["large", "small"],
    )
    async def test_large_claims_look_past_what_another_has_in_hand_and_small_ones_do_not(
        self, session: Session, database: Database, limit: int, taken: range, taken_by_who_waited: range
    ) -> None:
        jobs = [job for key in range(300) for job in await keyed(session, f"k{key}")]
        async with another_session(database) as first, another_session(database) as second:
            async with first.connection.transaction():
                await first.connection.execute("SELECT awa.lock_scope('')")
                waiting = asyncio.create_task(take_rows(second, limit))
                await eventually(lambda: count(session.connection, WAITING))
                rows, _ = await take_rows(first, limit)
                assert [row["id"] for row in rows] == [jobs[n] for n in taken]
            rows, _ = await waiting
            assert [row["id"] for row in rows] == [jobs[n] for n in taken_by_who_waited]

    async def test_a_claim_says_whom_it_passes_by_for_good(self, session: Session) -> None:
        blocked = await keyed(session, "a", 3)
        await take(session, 1)
        others = [job for key in range(4) for job in await keyed(session, f"k{key}")]
        rows, note = await take_rows(session, 2, slack=4)
        assert ([row["id"] for row in rows], list(note.passed_by)) == (others[:2], [])
        rows, note = await take_rows(session, 2, slack=4)
        assert ([row["id"] for row in rows], list(note.passed_by)) == (others[2:], blocked[1:])

    async def test_of_each_priority_for_itself(self, session: Session) -> None:
        await keyed(session, "a", 1)
        await take(session, 1)
        first, second = [await keyed(session, "a", 1, priority=priority) for priority in (1, 3)]
        for priority in (1, 3):
            await keyed(session, f"b{priority}", 1, priority=priority)
        rows, note = await take_rows(session, 1, slack=0)
        assert ([row["priority"] for row in rows], list(note.passed_by)) == ([1], first)
        rows, note = await take_rows(session, 1, slack=0)
        assert ([row["priority"] for row in rows], list(note.passed_by)) == ([3], second)

    async def test_who_is_offered_once_more_and_has_no_room_is_passed_by_again(self, session: Session) -> None:
        blocked = await keyed(session, "a", 3, limit=2)
        running = await take(session, 2)
        (other,) = await keyed(session, "b")
        above = [await position(session, other)] * len(PRIORITIES)
        rows, note = await take_rows(session, 5, above=above, found=blocked[2:])
        assert (rows, list(note.passed_by)) == ([], blocked[2:])
        await complete_jobs(session, OWNER, running[:1], [1], None, keep=False)
        rows, note = await take_rows(session, 5, above=above, found=blocked[2:])
        assert ([row["id"] for row in rows], list(note.passed_by)) == (blocked[2:], [])

    async def test_who_has_room_and_is_left_behind_the_line_is_passed_by(self, session: Session) -> None:
        (urgent,) = await keyed(session, "a", priority=1)
        (other,) = await keyed(session, "b", priority=2)
        above = [0, await position(session, other), 0, 0]
        rows, note = await take_rows(session, 1, above=above, found=[other])
        assert ([row["id"] for row in rows], list(note.passed_by)) == ([urgent], [other])

    async def test_what_was_found_elsewhere_does_not_say_how_far_the_line_has_come(self, session: Session) -> None:
        await keyed(session, "a")
        await take(session, 1)
        blocked = await keyed(session, "a", 2)
        (near,) = await keyed(session, "b")
        (far,) = await keyed(session, "c")
        rows, note = await take_rows(session, 1, slack=0, found=[far], above=[await position(session, near)] * 4)
        assert ([row["id"] for row in rows], list(note.passed_by)) == ([far], [])
        rows, note = await take_rows(session, 1, slack=0)
        assert ([row["id"] for row in rows], list(note.passed_by)) == ([near], blocked)

    @pytest.mark.parametrize(("waiting", "short"), [(0, True), (1, True), (2, False)])
    async def test_a_claim_says_when_it_comes_short(self, session: Session, waiting: int, short: bool) -> None:
        if waiting:
            await keyed(session, "a", waiting, limit=9)
        _, note = await take_rows(session, 8)
        assert (note.short, note.search) == (short, False)

    @pytest.mark.parametrize("limit", [5, 60], ids=["small", "large"])
    async def test_it_says_how_long_it_waited_where_it_took_less_than_half(
        self, session: Session, database: Database, limit: int
    ) -> None:
        await keyed(session, "a", 9, limit=limit // 2)
        async with another_session(database) as first, another_session(database) as second:
            async with first.connection.transaction():
                await first.connection.execute("SELECT awa.lock_scope('')")
                waiting = asyncio.create_task(take_rows(second, limit))
                await eventually(lambda: count(session.connection, WAITING))
                await asyncio.sleep(0.2)
            rows, note = await waiting
            assert 0 < len(rows) < limit / 2
            assert note.waited_s >= 0.2
            rows, note = await take_rows(second, limit)
            assert rows == []
            assert note.waited_s < 0.1

    async def test_more_keys_than_one_look_sees_are_gone_through_in_turn(self, session: Session) -> None:
        await session.connection.execute(
            "INSERT INTO awa.running "
            "(kind, lease, attempt, worker_id, concurrency_key, concurrency_limit, ordered, claim_number) "
            "SELECT 'work', 1, 1, $1, 'k' || to_char(n, 'FM0000'), 1, false, nextval('awa.claim_number') "
            "FROM generate_series(1, 1200) AS n",
            OWNER,
        )
        await session.connection.execute(
            "INSERT INTO awa.ready (kind, concurrency_key, concurrency_limit, ordered) "
            "SELECT 'work', 'k' || to_char(n, 'FM0000'), 1, false FROM generate_series(1, 1200) AS n"
        )
        (free,) = await keyed(session, "z")
        found: list[int] = []
        go_on_after, looks = "", 0
        while not found:
            found, go_on_after = await search(session, after_key=go_on_after)
            looks += 1
            assert found or go_on_after
        assert found == [free]
        assert 1 < looks <= 10

    async def test_what_is_next_in_line_need_not_be_found(self, session: Session) -> None:
        (below,) = await keyed(session, "below")
        start = await session.connection.fetchval("SELECT max(pos) FROM awa.ready")
        first = await keyed(session, "busy", 200, limit=2)
        (beyond,) = await keyed(session, "beyond")
        above = [start] * len(PRIORITIES)
        assert sorted((await search(session, above=above))[0]) == [below, beyond]
        assert (await search(session, above=above, limit=201))[0] == [below]
        rows, _ = await take_rows(session, 5, above=above, found=[below, beyond])
        assert sorted(row["id"] for row in rows) == [below, *first[:2], beyond]

    async def test_a_hundred_thousand_blocked_jobs_are_passed_by_with_one_look(self, session: Session) -> None:
        """By the pages that it reads, not by the clock."""
        await insert_running(session, concurrency_key="big", concurrency_limit=1, ordered=False)
        await session.connection.execute(
            "INSERT INTO awa.ready (kind, concurrency_key, concurrency_limit, ordered) "
            "SELECT 'work', 'big', 1, false FROM generate_series(1, 100000)"
        )
        await session.connection.execute("ANALYZE awa.ready")
        (other,) = await keyed(session, "small")
        (plain,) = await insert(session, "ready")
        async with session.connection.transaction():
            before = await session.connection.fetchval(PAGES_OF_KEYS)
            assert [row["id"] for row in await claim(session, limit=9)] == [plain]
            assert await take(session, 9) == [other]
            assert await session.connection.fetchval(PAGES_OF_KEYS) - before < 200

    async def test_a_search_reads_a_few_jobs_of_each_key_however_many_may_run(self, session: Session) -> None:
        await session.connection.execute(
            "INSERT INTO awa.ready (kind, concurrency_key, concurrency_limit, ordered) "
            "SELECT 'work', 'k' || n % 20, 10000, false FROM generate_series(1, 20000) AS n"
        )
        await session.connection.execute("ANALYZE awa.ready")
        async with session.connection.transaction():
            before = await session.connection.fetchval(PAGES_OF_KEYS)
            found, _ = await search(session, above=[30_000] * len(PRIORITIES))
            assert await session.connection.fetchval(PAGES_OF_KEYS) - before < 1_000
        keys = await session.connection.fetch(
            "SELECT count(*) FROM awa.ready WHERE id = ANY ($1) GROUP BY concurrency_key", found
        )
        assert [row["count"] for row in keys] == [15] * 20  # as many of each


async def test_who_was_passed_by_is_taken_as_soon_as_its_key_has_room(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a search, which may be long in coming beside an old snapshot."""
    monkeypatch.setattr("awa_py.store.claim.find_overlooked_jobs", None)
    taker = Taker(["default"], kinds=["work"], shown_kinds=[], worker_id=OWNER, timed=False)
    taker.orders = Directives(queues={"default": QueueDirectives(limited=True)})
    cursor = Cursor()
    cursor.saw([], full=True, began=0.0, ended=1e9)  # no scan is due by itself

    async def claim_as_a_worker(later_s: float = 0.0) -> list[int]:
        rows, full, aside = await taker.take(session, "default", cursor, 500, time.monotonic() + later_s)
        cursor.saw(rows, full=full, began=0.0, ended=0.0, aside=aside)
        return [row["id"] for row in rows]

    (running,) = await keyed(session, "a")
    assert await claim_as_a_worker() == [running]
    (straggler,) = await keyed(session, "a")
    others = [job for key in range(4) for job in await keyed(session, f"b{key}", SLACK // 2, limit=SLACK)]
    taken = [job for _ in range(4) for job in await claim_as_a_worker()]
    assert taken == others
    assert cursor.near[1] > await position(session, straggler)
    await complete_jobs(session, OWNER, [running], [1], None, keep=False)
    assert await claim_as_a_worker(later_s=60) == [straggler]


class TestOthersInTheWay:
    async def test_who_has_waited_sees_what_was_taken_whatever_the_database_is_set_to(
        self, session: Session, database_url: str
    ) -> None:
        strict = Database(f"{database_url}?options=-c%20default_transaction_isolation%3Dserializable", Schema())
        await insert_queue(session, "default", max_workers=1)
        first, _ = await insert(session, "ready", 2)
        async with another_session(strict) as second:
            async with session.connection.transaction():
                assert [row["id"] for row in (await take_rows(session))[0]] == [first]
                waiting = asyncio.create_task(take_rows(second))
                await eventually(partial(count, session.connection, WAITING))
            assert (await waiting)[0] == []

    async def test_jobs_that_somebody_has_locked_are_passed_by(self, session: Session, database: Database) -> None:
        await insert_queue(session, "default", max_workers=1)
        first, second = await insert(session, "ready", 2)
        async with another_session(database) as other, other.connection.transaction():
            await other.connection.execute("SELECT FROM awa.ready WHERE id = $1 FOR UPDATE", first)
            assert await take(session) == [second]

    async def test_a_caller_that_is_frozen_keeps_nobody_from_claiming(
        self, session: Session, database: Database
    ) -> None:
        """It has asked, and does not read the answer: 500 jobs of 20 kB would not fit into what lies in between."""
        for queue in ("one", "two"):
            await session.connection.execute(
                "INSERT INTO awa.ready (kind, queue, args, concurrency_key, concurrency_limit, ordered) "
                "SELECT 'work', $1, jsonb_build_object('text', repeat(md5(n::text), 600)), $1 || n, 1, false "
                "FROM generate_series(1, 500) AS n",
                queue,
            )
        async with another_session(database) as frozen:
            await take_rows(frozen, queue="none")  # the statement is prepared: the next ask is one message
            asking = asyncio.create_task(take_rows(frozen, 500, queue="one"))
            for _ in range(3):
                await asyncio.sleep(0)
            transport: asyncio.Transport = frozen.connection._transport  # type: ignore[union-attr]
            transport.pause_reading()

            async def claimed() -> bool:
                return await count(session.connection, "SELECT count(*) FROM awa.running") == 500

            await eventually(claimed)
            assert not asking.done()
            rows, _ = await take_rows(session, 500, queue="two")
            assert {len(row["args"]) for row in rows} == {len('{"text": ""}') + 19_200}
            transport.resume_reading()
            assert len((await asking)[0]) == 500


class TestOrderedKeys:
    async def test_one_at_a_time_in_the_order_of_their_ids(self, session: Session) -> None:
        jobs = await ordered(session, "a", 3)
        for job in jobs:
            assert await take(session, 9) == [job]
            assert await take(session, 9) == []
            await complete_jobs(session, OWNER, [job], [1], None, keep=True)

    async def test_one_that_failed_keeps_its_place(self, session: Session) -> None:
        first, second = await ordered(session, "a", 2)
        assert await take(session, 9) == [first]
        await fail_attempts(session, OWNER, [first], [1], ["no"], [seconds(0)])
        assert await take(session, 9) == []
        assert (await promote_jobs(session, limit=9))[0] == 1
        assert await take(session, 9) == [first]
        await fail_attempts(session, OWNER, [first], [2], ["no"], [seconds(3600)])
        assert await take(session, 9) == []
        await session.connection.execute("DELETE FROM awa.scheduled")
        assert await take(session, 9) == [second]

    async def test_so_does_one_that_sleeps_or_was_given_back(self, session: Session) -> None:
        first, second = await ordered(session, "a", 2)
        assert await take(session, 9) == [first]
        await release_jobs(session, OWNER, [first], [1])
        assert await take(session, 9) == [first]
        await snooze_jobs(session, OWNER, [first], [2], [seconds(3600)])
        assert await take(session, 9) == []
        assert second

    async def test_one_that_is_scheduled_for_later_has_no_place_yet(self, session: Session) -> None:
        await insert(
            session,
            "scheduled",
            state="scheduled",
            run_at=ago(-3600),
            concurrency_key="a",
            concurrency_limit=1,
            ordered=True,
        )
        (now,) = await ordered(session, "a")
        assert await take(session, 9) == [now]

    async def test_one_of_a_kind_that_the_worker_does_not_know_is_not_overtaken(self, session: Session) -> None:
        await ordered(session, "a", kind="elsewhere")
        await ordered(session, "a", kind="work")
        assert await take(session, 9) == []
        assert len(await take(session, 9, kinds=("elsewhere",))) == 1


class TestFairness:
    async def test_the_first_come_first_where_nobody_asked_for_more(self, session: Session) -> None:
        many = await keyed(session, "many", 5, limit=9)
        await keyed(session, "few", 2, limit=9)
        assert await take(session, 4) == many[:4]

    async def test_keys_take_turns_where_it_was_asked_for(self, session: Session) -> None:
        await insert_queue(session, "default", fair=True)
        many = await keyed(session, "many", 5, limit=9)
        few = await keyed(session, "few", 2, limit=9)
        assert sorted(await take(session, 4)) == [*many[:2], *few]
        assert await take(session, 9) == many[2:]

    async def test_those_without_a_key_take_turns_as_if_they_had_one(self, session: Session) -> None:
        await insert_queue(session, "default", fair=True)
        with_key = await keyed(session, "k", 2, limit=9)
        without = await insert(session, "ready", 20)
        assert sorted(await take(session, 4)) == sorted([*with_key, *without[:2]])

    async def test_what_runs_already_counts_as_a_turn(self, session: Session) -> None:
        await insert_queue(session, "default", fair=True)
        await insert_running(session, 3, concurrency_key="many", concurrency_limit=9, ordered=False)
        many = await keyed(session, "many", 3, limit=9)
        few = await keyed(session, "few", 3, limit=9)
        assert sorted(await take(session, 3)) == few
        assert many

    async def test_priority_still_comes_first(self, session: Session) -> None:
        await insert_queue(session, "default", fair=True)
        urgent = await keyed(session, "many", 3, limit=9, priority=1)
        await keyed(session, "few", 3, limit=9)
        assert await take(session, 3) == urgent
