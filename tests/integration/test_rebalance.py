"""The split of max_workers over the live workers, and warnings of queues that no worker serves."""

import asyncio
import logging
from uuid import UUID

import pytest

from awa_py import App, Settings
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.maintenance import rebalance
from awa_py.maintenance.rebalance import NO_LIMITS_INTERVAL_S, Rebalance
from awa_py.maintenance.task import run_once
from awa_py.maintenance.tasks import all_tasks
from awa_py.observability.metrics import Metrics
from awa_py.store import backlog, shares
from awa_py.store.heartbeat import heartbeat_worker, remove_worker
from awa_py.store.queues import pause_queue, set_queue
from awa_py.store.session import Session
from awa_py.store.shares import ShareChange
from awa_py.store.workers import command_workers
from tests.support import (
    QUICK,
    another_session,
    count,
    eventually,
    insert,
    insert_queue,
    insert_running,
    new_owner,
    seconds,
    with_settings,
    working,
)
from tests.workers import set_silence, worker_info

pytestmark = pytest.mark.integration

IDS = [UUID(int=n) for n in range(1, 6)]


def make_task() -> Rebalance:
    return Rebalance(share_staleness=Settings().share_staleness)


async def register(
    session: Session, *ids: UUID, queue: str = "email", limit: int = 100, concurrency: int = 100
) -> None:
    for worker_id in ids:
        await heartbeat_worker(
            session, worker_info(queue, worker_id=worker_id, limits=(limit,), concurrency=concurrency)
        )


async def slots(session: Session, queue: str = "email") -> dict[int, int]:
    """Return the slots by the number of the worker."""
    query = "SELECT worker_id, slots FROM awa.slots WHERE queue = $1 ORDER BY worker_id"
    return {row[0].int: row[1] for row in await session.connection.fetch(query, queue)}


class TestShares:  # F6
    async def test_ten_slots_over_three_workers_are_four_three_three(self, session: Session) -> None:
        await insert_queue(session, "email", max_workers=10)
        await register(session, IDS[2], IDS[0], IDS[1])
        assert (await make_task().run(session)).rows_changed == 3
        assert await slots(session) == {1: 4, 2: 3, 3: 3}
        assert (await make_task().run(session)).rows_changed == 0

    async def test_no_share_exceeds_the_limit_of_its_worker(self, session: Session) -> None:
        await insert_queue(session, "email", max_workers=10)
        await register(session, IDS[0], limit=2)
        await register(session, IDS[1], limit=50, concurrency=3)
        await register(session, IDS[2])
        await make_task().run(session)
        assert await slots(session) == {1: 2, 2: 3, 3: 5}

    async def test_shares_of_silent_quiet_stopping_and_removed_workers_go_to_the_others(self, session: Session) -> None:
        await insert_queue(session, "email", max_workers=10)
        await register(session, *IDS)
        await make_task().run(session)
        assert await slots(session) == {1: 2, 2: 2, 3: 2, 4: 2, 5: 2}
        await set_silence(session, IDS[0], 9)
        await command_workers(session, [IDS[1]], quiet=True)
        await command_workers(session, [IDS[2]], stop=True)
        await remove_worker(session, IDS[3])
        await make_task().run(session)
        assert await slots(session) == {5: 10}
        await register(session, IDS[0])  # it sends heartbeats again
        await command_workers(session, [IDS[1]], quiet=False)
        await make_task().run(session)
        assert await slots(session) == {1: 4, 2: 3, 5: 3}

    async def test_queue_without_max_workers_has_no_shares(self, session: Session) -> None:
        await insert_queue(session, "email", max_workers=10)
        await insert_queue(session, "other")
        await register(session, IDS[0])
        await register(session, IDS[1], queue="other")
        await make_task().run(session)
        assert (await slots(session), await slots(session, "other")) == ({1: 10}, {})
        await session.connection.execute("UPDATE awa.queues SET max_workers = NULL")
        batch = await make_task().run(session)
        assert (batch.rows_changed, await slots(session)) == (1, {})
        assert (await make_task().run(session)).interval_s == NO_LIMITS_INTERVAL_S

    async def test_only_changed_shares_are_written_and_notified(self, session: Session, database: Database) -> None:
        for queue in ("a", "b"):
            await insert_queue(session, queue, max_workers=4)
            await register(session, IDS[0 if queue == "a" else 1], queue=queue)
        await make_task().run(session)
        notifications: list[str] = []
        async with another_session(database) as other:
            await other.connection.add_listener("awa", lambda *args: notifications.append(str(args[3])))
            await register(session, IDS[2], queue="b")
            assert (await make_task().run(session)).rows_changed == 2
            await eventually(lambda: notifications)
        assert notifications == ["queues:b"]
        assert (await slots(session, "a"), await slots(session, "b")) == ({1: 4}, {2: 2, 3: 2})

    async def test_worker_that_was_removed_in_the_meantime_gets_no_share(self, session: Session) -> None:
        await register(session, IDS[0])
        changes = [
            ShareChange(queue="email", worker_id=IDS[0], slots=1),
            ShareChange(queue="email", worker_id=new_owner(), slots=1),
        ]
        assert await shares.assign_slots(session, changes) == 1

    async def test_two_leaders_write_the_same_shares(self, session: Session, database: Database) -> None:
        await insert_queue(session, "email", max_workers=10)
        await register(session, *IDS[:3])
        async with another_session(database, **STABLE_PLAN_SETTINGS) as other:
            await asyncio.gather(*(make_task().run(each) for each in (session, other)))
        assert await slots(session) == {1: 4, 2: 3, 3: 3}

    async def test_rebalance_is_a_task_of_the_leader(self, session: Session) -> None:  # F18
        await insert_queue(session, "email", max_workers=10)
        await register(session, *IDS[:2])
        (task,) = (task for task in all_tasks(QUICK, [], Metrics()) if task.name == "rebalance")
        assert (await run_once(task, session)).rows_changed == 2


class TestJobsClaimedBeforeTheLimit:
    async def test_running_jobs_are_marked_in_bounded_batches(self, session: Session) -> None:
        await insert_running(session, 5, queue="email")
        await insert_running(session, 2, queue="other")
        await insert_queue(session, "email", max_workers=10)
        assert await shares.mark_limited_jobs(session, limit=3) == 3
        assert await shares.mark_limited_jobs(session, queue="other", limit=9) == 0
        assert await shares.mark_limited_jobs(session, queue="email", limit=9) == 2
        assert await count(session.connection, "SELECT count(*) FROM awa.running WHERE limited") == 5

    async def test_jobs_are_marked_in_every_batch_while_the_limit_is_new(self, session: Session) -> None:
        await insert_queue(session, "email", max_workers=10)
        await register(session, IDS[0])
        await insert_running(session, 5, queue="email")
        task = make_task()
        assert (await task.run(session)).rows_changed == 6
        await insert_running(session, 2, queue="email")  # their claim commits after the limit
        assert (await task.run(session)).rows_changed == 2
        assert (await task.run(session)).rows_changed == 0

    async def test_jobs_are_marked_at_an_interval_when_the_limit_is_old(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rebalance, "NEW_LIMIT_S", 0.0)
        await insert_queue(session, "email", max_workers=10)
        await register(session, IDS[0])
        task = make_task()
        await task.run(session)
        await insert_running(session, queue="email")
        assert (await task.run(session)).rows_changed == 0
        task.next_mark_at = 0.0
        assert (await task.run(session)).rows_changed == 1

    async def test_locked_job_is_skipped(self, session: Session, database: Database) -> None:
        await insert_queue(session, "email", max_workers=10)
        first, _ = await insert_running(session, 2, queue="email")
        async with another_session(database) as other, other.connection.transaction():
            await other.connection.execute("UPDATE awa.running SET heartbeat_at = now() WHERE id = $1", first)
            assert await shares.mark_limited_jobs(session, limit=9) == 1


class TestUnservedQueues:  # F6
    @pytest.fixture(autouse=True)
    def check_in_every_batch(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        monkeypatch.setattr(rebalance, "UNSERVED_INTERVAL_S", 0.0)
        caplog.set_level(logging.INFO, logger="awa.rebalance")

    async def test_unserved_queue_is_reported_once_until_it_is_served(
        self, session: Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        task = make_task()
        await insert(session, "ready", 3, queue="email")
        await task.run(session)
        assert caplog.text == ""  # a worker may be about to start
        for _ in range(3):
            await task.run(session)
        assert caplog.text.count('jobs wait in queue "email", but no live worker serves it') == 1
        await register(session, IDS[0])
        await task.run(session)
        assert 'queue "email" is served again' in caplog.text
        await set_silence(session, IDS[0], 9)
        for _ in range(3):
            await task.run(session)
        assert caplog.text.count('jobs wait in queue "email"') == 2

    async def test_quiet_worker_serves_no_queue_and_paused_queue_is_not_reported(
        self, session: Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        await register(session, IDS[0])
        await register(session, IDS[1], queue="served")
        await command_workers(session, [IDS[0]], quiet=True)
        for queue in ("email", "paused", "served"):
            await insert(session, "ready", queue=queue)
        await insert(session, "ready", queue="keyed", concurrency_key="k", concurrency_limit=1, ordered=False)
        await pause_queue(session, "paused", paused=True)
        assert await backlog.list_unserved_queues(session, staleness=seconds(8)) == ["email", "keyed"]
        task = make_task()
        for _ in range(2):
            await task.run(session)
        assert [record.args for record in caplog.records] == [("email", "email"), ("keyed", "keyed")]


class TestLeader:
    async def test_leader_assigns_shares_as_soon_as_a_queue_is_limited(
        self, database_url: str, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slots_of: dict[UUID, list[int | None]] = {}

        def apply(claim_loop: object, directives: object) -> None:
            worker_id = claim_loop._claimant.worker_id  # type: ignore[attr-defined]
            slots_of.setdefault(worker_id, []).append(directives.queues["email"].slots)  # type: ignore[attr-defined]

        monkeypatch.setattr("awa_py.worker.claiming.claim_loop.ClaimLoop.apply", apply)
        app = with_settings(database_url, QUICK)
        other: App = with_settings(database_url, QUICK)
        async with app, working(app, ["email"], maintenance=True) as one, working(other, ["email"]) as two:
            first, second = sorted([one.id, two.id])
            await session.connection.execute("UPDATE awa.queues SET max_workers = 5 WHERE name = 'email'")
            await set_queue(session, "email", {})  # notifies the leader
            await eventually(lambda: (slots_of[first][-1], slots_of[second][-1]) == (3, 2))
            await command_workers(session, [first], quiet=True)
            await eventually(lambda: slots_of[second][-1] == 5)
