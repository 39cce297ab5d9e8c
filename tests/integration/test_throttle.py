"""F10: a handler raises Throttled, and its whole queue cools down."""

import asyncio
from datetime import datetime
from typing import Any

import pytest

import awa_py as awa
from awa_py import App, State
from awa_py.db.database import Database
from awa_py.store.finish import Cooldown, throttle_jobs
from awa_py.store.jobs import cancel_jobs
from awa_py.store.maintenance import promote_jobs, rescue_stale_jobs
from awa_py.store.queues import QueueRow, ensure_queues, list_queues, unthrottle_queue
from awa_py.store.session import Session
from tests.support import (
    OWNER,
    another_session,
    claim,
    eventually,
    insert,
    insert_queue,
    insert_running,
    listen,
    look,
    new_owner,
    sample,
    seconds,
    working,
)

pytestmark = pytest.mark.integration

STALENESS = seconds(90)


async def throttle(session: Session, *jobs: int, lease: int = 1, reason: str = "429") -> dict[int, Cooldown]:
    return await throttle_jobs(session, OWNER, jobs, [lease] * len(jobs), [reason] * len(jobs))


async def throttle_one(session: Session, **columns: Any) -> Cooldown:
    (job_id,) = await insert_running(session, **columns)
    return (await throttle(session, job_id))[job_id]


async def pass_time(session: Session, seconds_: float) -> None:
    """Move the queue's times and its jobs' due times into the past, as if this time had passed."""
    for statement in (
        "UPDATE awa.queues SET throttled_until = throttled_until - $1::interval, throttled_at = throttled_at - $1",
        "UPDATE awa.scheduled SET run_at = run_at - $1::interval",
    ):
        await session.connection.execute(statement, seconds(seconds_))


async def queue(session: Session, name: str = "default") -> QueueRow:
    (row,) = await list_queues(session, name, staleness=STALENESS)
    return row


class TestCooldown:
    async def test_cooldown_doubles_up_to_the_maximum(self, session: Session) -> None:  # F10
        cooldowns = []
        for _ in range(8):
            cooldown = await throttle_one(session)
            assert cooldown.started
            cooldowns.append(round(cooldown.cooldown_s))
            await pass_time(session, cooldown.cooldown_s + 1)
        assert cooldowns == [60, 120, 240, 480, 960, 1800, 1800, 1800]
        assert (await queue(session)).throttles == 8

    async def test_cooldown_without_backoff_is_60_seconds(self, session: Session) -> None:  # F10
        await insert_queue(session, backoff_enabled=False)
        cooldowns = []
        for _ in range(4):
            cooldown = await throttle_one(session)
            cooldowns.append(round(cooldown.cooldown_s))
            await pass_time(session, cooldown.cooldown_s + 1)
        assert cooldowns == [60, 60, 60, 60]

    async def test_cooldown_follows_the_queues_backoff(self, session: Session) -> None:  # F10
        await insert_queue(session, backoff_base=seconds(10), backoff_max=seconds(35))
        cooldowns = []
        for _ in range(4):
            cooldown = await throttle_one(session)
            cooldowns.append(round(cooldown.cooldown_s))
            await pass_time(session, cooldown.cooldown_s + 1)
        assert cooldowns == [10, 20, 35, 35]

    async def test_thousand_cooldowns_in_a_row_do_not_overflow(self, session: Session) -> None:
        await insert_queue(session, throttles=1000)
        assert round((await throttle_one(session)).cooldown_s) == 1800

    async def test_count_of_cooldowns_decays(self, session: Session) -> None:  # F10
        """One less for every 120 s since the last cooldown ended."""
        for quiet_s, left in ((0, 4), (100, 4), (125, 3), (220, 3), (245, 2), (485, 0), (100_000, 0)):
            await insert_queue(session, throttles=4)
            await session.connection.execute(
                "UPDATE awa.queues SET throttled_until = now() - $1::interval", seconds(quiet_s)
            )
            assert (await queue(session)).throttles == left, quiet_s
            cooldown = await throttle_one(session)
            assert (round(cooldown.cooldown_s), cooldown.throttles) == (60 * 2**left, left + 1), quiet_s

    async def test_count_does_not_decay_during_a_cooldown(self, session: Session) -> None:
        await insert_queue(session, throttles=6)
        await session.connection.execute("UPDATE awa.queues SET throttled_until = now() + interval '1000 s'")
        assert (await queue(session)).throttles == 6

    async def test_queue_row_describes_the_cooldown(self, session: Session) -> None:
        before: datetime = await session.now()
        (job_id,) = await insert_running(session, queue="gh")
        await throttle(session, job_id, reason="secondary rate limit")
        row = await queue(session, "gh")
        assert (row.throttle_reason, row.throttles) == ("secondary rate limit", 1)
        assert row.throttled_at is not None
        assert row.throttled_until is not None
        assert row.throttled_at >= before
        assert row.throttled_until - row.throttled_at == seconds(60)


class TestConcurrency:
    async def test_five_jobs_in_one_flush_start_one_cooldown(self, session: Session) -> None:  # F10
        jobs = await insert_running(session, 5)
        answers = await throttle(session, *jobs)
        assert sorted(answers) == jobs
        assert [answers[job].started for job in jobs] == [True, False, False, False, False]
        assert {round(answer.cooldown_s) for answer in answers.values()} == {60}
        assert (await queue(session)).throttles == 1

    async def test_five_jobs_during_one_cooldown_start_no_other(self, session: Session) -> None:  # F10
        jobs = await insert_running(session, 5)
        answers = [(await throttle(session, job, reason=f"no {job}"))[job] for job in jobs]
        assert [answer.started for answer in answers] == [True, False, False, False, False]
        row = await queue(session)
        assert (row.throttles, row.throttle_reason) == (1, f"no {jobs[0]}")
        assert {(await look(session, job)).run_at for job in jobs} == {row.throttled_until}

    async def test_five_processes_start_one_cooldown(self, session: Session, database: Database) -> None:  # F10
        """Also if the first one's transaction is still open when the others arrive."""
        jobs = await insert_running(session, 5)
        answers: dict[int, Cooldown] = {}

        async def one(job: int) -> None:
            async with another_session(database) as other:
                answers.update(await throttle(other, job))

        async with (
            asyncio.TaskGroup() as others,
            another_session(database) as first,
            first.connection.transaction(),
        ):
            answers.update(await throttle(first, jobs[0]))
            for job in jobs[1:]:
                others.create_task(one(job))
            await eventually(lambda: blocked(session, len(jobs) - 1))
        assert sorted(answers) == jobs
        assert sum(answer.started for answer in answers.values()) == 1
        row = await queue(session)
        assert row.throttles == 1
        assert {(await look(session, job)).run_at for job in jobs} == {row.throttled_until}

    async def test_queues_in_any_order_do_not_deadlock(self, session: Session, database: Database) -> None:
        names = [f"q{n}" for n in range(20)]
        await ensure_queues(session, names)

        async def many(order: list[str]) -> None:
            async with another_session(database) as other:
                for _ in range(10):
                    jobs = [(await insert_running(other, queue=name))[0] for name in order]
                    assert len(await throttle(other, *jobs)) == len(order)

        await asyncio.gather(many(names), many(names[::-1]), many(names[10:] + names[:10]))
        assert {row.throttles for row in await list_queues(session, staleness=STALENESS)} == {1}


class TestJob:
    async def test_throttled_attempt_does_not_count(self, session: Session) -> None:  # F10
        (job_id,) = await insert_running(session, attempt=3, lease=4, args='{"a": 1}')
        assert await throttle(session, job_id, lease=4)
        job = await look(session, job_id)
        assert (job.state, job.attempt, job.lease, job.errors, job.args) == (State.SCHEDULED, 2, 4, [], {"a": 1})
        assert job.run_at == (await queue(session)).throttled_until

    async def test_job_with_a_cancel_request_is_cancelled_and_its_queue_cools_down(
        self, session: Session
    ) -> None:  # F10
        (job_id,) = await insert_running(session)
        await cancel_jobs(session, [job_id])
        await throttle(session, job_id)
        job = await look(session, job_id)
        assert (job.state, job.errors[-1]["error"]) == (State.CANCELLED, "cancelled by user")
        assert (await queue(session)).throttles == 1

    async def test_throttled_job_can_be_cancelled(self, session: Session) -> None:
        (job_id,) = await insert_running(session)
        await throttle(session, job_id)
        assert await cancel_jobs(session, [job_id]) == {job_id: "cancelled"}

    async def test_wrong_lease_changes_nothing(self, session: Session) -> None:  # F12
        (job_id,) = await insert_running(session, silent_s=100)
        await rescue_stale_jobs(session, staleness=STALENESS, limit=10)
        await session.connection.execute("UPDATE awa.scheduled SET run_at = now()")
        await promote_jobs(session, limit=10)
        await claim(session, worker_id=new_owner())
        before = await look(session, job_id)
        for lease in (1, 3):
            assert await throttle(session, job_id, lease=lease) == {}
        assert await look(session, job_id) == before
        assert (await queue(session)).throttled_until is None
        assert await session.connection.fetchval("SELECT count(*) FROM awa.queues WHERE throttles > 0") == 0

    async def test_one_lost_job_of_a_batch_does_not_affect_the_others(self, session: Session) -> None:  # F12
        ours, lost = await insert_running(session, 2)
        assert set(await throttle_jobs(session, OWNER, [ours, lost], [1, 2], ["a", "b"])) == {ours}
        assert (await look(session, ours)).state is State.SCHEDULED
        assert (await look(session, lost)).state is State.RUNNING


class TestQueue:
    async def test_throttled_queue_is_not_claimed_from_and_others_are(self, session: Session) -> None:  # F10
        await insert(session, "ready", 3, queue="gh")
        await insert(session, "ready", 1, queue="slack")
        (job_id,) = await insert_running(session, queue="gh")
        await throttle(session, job_id)
        assert await claim(session, queue="gh", limit=10) == []
        assert len(await claim(session, queue="slack", limit=10)) == 1
        await pass_time(session, 61)
        assert await promote_jobs(session, limit=10) == (1, None)
        assert len(await claim(session, queue="gh", limit=10)) == 4

    async def test_workers_are_notified_once(self, session: Session) -> None:
        notifications = await listen(session, "default")
        await throttle(session, *await insert_running(session, 3))
        await throttle_one(session)
        await eventually(lambda: notifications)
        await session.now()
        assert notifications == ["queues:default"]


class TestUnthrottle:
    async def test_unthrottled_queue_continues_and_its_count_is_reset(self, session: Session) -> None:  # F10
        for _ in range(3):
            await throttle_one(session)
            await pass_time(session, 1000)
        jobs = await insert_running(session, 3)
        await throttle(session, *jobs)
        notifications = await listen(session, "default")
        assert await unthrottle_queue(session, "default") == 3
        row = await queue(session)
        assert (row.throttles, row.throttled_until, row.throttled_at, row.throttle_reason) == (0, None, None, None)
        await eventually(lambda: {"queues:default", "ready:default", "due:"} <= set(notifications))
        await promote_jobs(session, limit=10)
        assert {(await look(session, job)).state for job in jobs} == {State.AVAILABLE}
        assert (await throttle_one(session)).throttles == 1

    async def test_unthrottle_releases_only_jobs_that_wait_for_the_cooldown(self, session: Session) -> None:
        ours, theirs = await insert_running(session, queue="a"), await insert_running(session, queue="b")
        await throttle(session, *ours, *theirs)  # one statement: both cooldowns end at the same time
        (retryable,) = await insert(
            session, "scheduled", queue="a", state="retryable", run_at=(await look(session, ours[0])).run_at
        )
        (later,) = await insert(
            session, "scheduled", queue="a", state="scheduled", run_at=(await session.now()) + seconds(999)
        )
        assert await unthrottle_queue(session, "a") == 1
        await promote_jobs(session, limit=10)
        assert (await look(session, ours[0])).state is State.AVAILABLE
        assert (await look(session, theirs[0])).state is State.SCHEDULED
        assert (await look(session, retryable)).state is State.RETRYABLE
        assert (await look(session, later)).state is State.SCHEDULED
        assert (await queue(session, "b")).throttled_until is not None

    async def test_unthrottle_of_a_queue_without_cooldown_releases_nothing(self, session: Session) -> None:
        await insert_queue(session, throttles=3)
        assert await unthrottle_queue(session, "default") == 0
        assert (await queue(session)).throttles == 0
        assert await unthrottle_queue(session, "missing") is None

    async def test_unthrottle_releases_jobs_that_are_throttled_concurrently(
        self, session: Session, database: Database
    ) -> None:
        (job_id,) = await insert_running(session)
        await throttle_one(session)
        async with another_session(database) as watcher, another_session(database) as other:
            async with other.connection.transaction():
                await throttle(other, job_id)
                unthrottling = asyncio.create_task(unthrottle_queue(session, "default"))
                await eventually(lambda: blocked(watcher, 1))
            assert await unthrottling == 2


class TestWorker:
    @pytest.mark.parametrize("how", ["raises", "returns", "settles"])
    async def test_throttled_outcome_starts_a_cooldown_of_the_queue(
        self, app: App, session: Session, how: str, caplog: pytest.LogCaptureFixture
    ) -> None:  # F10
        calls: list[int] = []

        @app.job(queue="gh")
        async def ask(ctx: awa.Context) -> object:
            calls.append(ctx.job.id)
            await asyncio.sleep(0)
            if len(calls) > 1:
                return None
            if how == "returns":
                return awa.Throttled("429 Too Many Requests")
            raise awa.Throttled("429 Too Many Requests")

        @app.job(queue="gh", batch=10)
        async def ask_all(jobs: list[awa.BatchJob]) -> None:
            for job in jobs:
                calls.append(job.id)
                if len(calls) == 1:
                    job.settle(awa.Throttled("429 Too Many Requests"))

        asked = ask_all if how == "settles" else ask
        async with app, working(app, {"gh": 1}, maintenance=True) as worker:
            job = await asked.enqueue() if how != "settles" else await app.enqueue("ask_all", {}, queue="gh")
            found = await eventually(lambda: throttled_queue(session, "gh"))
            assert (found.throttles, found.throttle_reason) == (1, "429 Too Many Requests")
            throttled = await app.get(job.id)
            assert (throttled.state, throttled.attempt) == (State.SCHEDULED, 0)
            await eventually(lambda: sample(worker, "awa_jobs_throttled_total", queue="gh") == 1)
            more = await app.enqueue(asked.kind, {}, queue="gh")
            # It is not claimed, however often the worker polls. After the cooldown, work continues without a wake-up.
            claims = sample(worker, "awa_claim_seconds_count")
            await eventually(lambda: sample(worker, "awa_claim_seconds_count") > claims + 2)
            assert (await app.get(more.id)).state is State.AVAILABLE
            await pass_time(session, 61)
            await eventually(lambda: both_done(app, job.id, more.id))
            assert (await app.get(job.id)).attempt == 1
        lines = [record for record in caplog.records if "is throttled for" in record.getMessage()]
        assert [line.levelname for line in lines] == ["WARNING"]
        assert "queue gh is throttled for 60 s (1 in a row)" in lines[0].getMessage()

    async def test_prefetched_jobs_of_a_throttled_queue_are_released(self, app: App, session: Session) -> None:  # F10
        """Jobs that wait for a slot when their queue is throttled do not run, and lose no attempt."""
        ran: list[int] = []
        go_on = asyncio.Event()

        @app.job
        async def ask(ctx: awa.Context, slow: bool) -> None:
            ran.append(ctx.job.id)
            if slow:
                await go_on.wait()
                raise awa.Throttled
            await asyncio.sleep(0)

        async with app, working(app, {"default": 1}) as worker:
            # Short jobs, so that the worker prefetches.
            await app.enqueue_many([ask.new(slow=False) for _ in range(3000)])
            await eventually(lambda: sample(worker, "awa_jobs_completed_total", queue="default") == 3000)
            before = len(ran)
            await app.enqueue_many([ask.new(slow=True), *(ask.new(slow=False) for _ in range(300))])
            await eventually(lambda: len(ran) > before)
            go_on.set()
            await eventually(lambda: throttled_queue(session))
            await eventually(lambda: nothing_runs(session))
            assert len(ran) == before + 1
            rows = await session.connection.fetch("SELECT attempt, count(*) FROM awa.ready GROUP BY attempt")
            assert [tuple(row) for row in rows] == [(0, 300)]


async def throttled_queue(session: Session, name: str = "default") -> QueueRow | None:
    found = await list_queues(session, name, staleness=STALENESS)
    return found[0] if found and found[0].throttled else None


async def both_done(app: App, *ids: int) -> bool:
    return all([(await app.get(job_id)).state is State.COMPLETED for job_id in ids])


async def nothing_runs(session: Session) -> bool:
    return bool(await session.connection.fetchval("SELECT count(*) FROM awa.running") == 0)


async def blocked(session: Session, number: int) -> bool:
    """Return whether this many sessions wait for a lock."""
    waiting = await session.connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    return bool(waiting == number)
