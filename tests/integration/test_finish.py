"""Ending attempts: running → another state, guarded by lease and worker."""

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from awa_py import State
from awa_py.connections import Record
from awa_py.store.claim import Claimant, claimed_job, release_orphans, take_over_jobs
from awa_py.store.finish import (
    RetryDecision,
    advance_jobs,
    complete_jobs,
    discard_jobs,
    fail_attempts,
    release_jobs,
    snooze_jobs,
    throttle_jobs,
)
from awa_py.store.heartbeat import (
    WorkerInfo,
    check_leases,
    heartbeat_worker,
    renew_leases,
    update_progress,
)
from awa_py.store.jobs import cancel_jobs, delete_jobs, retry_jobs
from awa_py.store.maintenance import promote_jobs, rescue_lost_jobs, rescue_overdue_jobs, rescue_stale_jobs
from awa_py.store.queues import set_queue
from awa_py.store.session import Session
from awa_py.store.workers import list_workers
from tests.support import (
    OWNER,
    FromNow,
    ago,
    claim,
    insert,
    insert_queue,
    insert_running,
    lead,
    look,
    new_owner,
    put_one,
    seconds,
    states,
)

pytestmark = pytest.mark.integration

STALENESS = timedelta(seconds=90)
Finish = Callable[[Session, int, int], Awaitable[Any]]

FINISHES: dict[str, Finish] = {
    "complete": lambda session, job_id, lease: complete_jobs(session, OWNER, [job_id], [lease], ['"r"'], keep=True),
    "complete, kept nowhere": lambda session, job_id, lease: complete_jobs(
        session, OWNER, [job_id], [lease], [None], keep=False
    ),
    "fail": lambda session, job_id, lease: fail_attempts(session, OWNER, [job_id], [lease], ["boom"], [None]),
    "snooze": lambda session, job_id, lease: snooze_jobs(session, OWNER, [job_id], [lease], [seconds(60)]),
    "advance": lambda session, job_id, lease: advance_jobs(session, OWNER, [job_id], [lease], ['{"kind": "next"}']),
    "throttle": lambda session, job_id, lease: throttle_jobs(session, OWNER, [job_id], [lease], ["429"]),
    "discard": lambda session, job_id, lease: discard_jobs(session, OWNER, [job_id], [lease], [State.FAILED], ["why"]),
    "release": lambda session, job_id, lease: release_jobs(session, OWNER, [job_id], [lease]),
    "heartbeat": lambda session, job_id, lease: renew_leases(session, OWNER, [job_id], [lease]),
    "progress": lambda session, job_id, lease: update_progress(session, OWNER, [job_id], [lease], ['{"fraction": 1}']),
}


async def fail(session: Session, job_id: int, lease: int = 1, delay: timedelta | None = None) -> RetryDecision:
    return (await fail_attempts(session, OWNER, [job_id], [lease], ["boom"], [delay]))[job_id]


def within_jitter(delay_s: float) -> Any:
    """Match a backoff with its random factor from 1 to 1.2."""
    return pytest.approx(1.1 * delay_s, rel=0.1 / 1.1 + 1e-6)


class TestGuards:
    @pytest.mark.parametrize("finish", FINISHES)
    async def test_wrong_lease_changes_nothing(self, session: Session, finish: str) -> None:  # A19
        (job_id,) = await insert_running(session, lease=5, attempt=2)
        before = await look(session, job_id)
        for lease in (4, 6, 1):
            await FINISHES[finish](session, job_id, lease)
        assert await look(session, job_id) == before

    async def test_attempt_with_an_expired_lease_can_complete(self, session: Session) -> None:  # P10
        (job_id,) = await insert_running(session, silent_s=100)
        await complete_jobs(session, OWNER, [job_id], [1], ['"r"'], keep=True)
        assert (await look(session, job_id)).state is State.COMPLETED

    @pytest.mark.parametrize("finish", FINISHES)
    async def test_old_worker_changes_nothing_after_a_rescue_and_a_new_claim(  # F12
        self, session: Session, finish: str
    ) -> None:
        (job_id,) = await insert_running(session, silent_s=100)
        await rescue_stale_jobs(session, staleness=STALENESS, limit=10)
        await session.connection.execute("UPDATE awa.scheduled SET run_at = now()")
        await promote_jobs(session, limit=10)
        (row,) = await claim(session, worker_id=new_owner())
        assert (row["id"], row["lease"]) == (job_id, 2)
        before = await look(session, job_id)
        await FINISHES[finish](session, job_id, 1)
        assert await look(session, job_id) == before

    @pytest.mark.parametrize("finish", FINISHES)
    async def test_same_lease_of_another_worker_changes_nothing(self, session: Session, finish: str) -> None:
        (job_id,) = await insert_running(session, worker_id=new_owner())
        before = await look(session, job_id)
        await FINISHES[finish](session, job_id, 1)
        assert await look(session, job_id) == before

    async def test_result_has_the_ids_that_the_worker_held(self, session: Session) -> None:
        ours, lost = await insert_running(session, 2)
        (taken,) = await insert_running(session, worker_id=new_owner())
        jobs_and_leases = ([ours, lost, taken], [1, 9, 1])
        assert await check_leases(session, OWNER, *jobs_and_leases) == {ours: False}
        assert await renew_leases(session, OWNER, *jobs_and_leases) == {ours: False}
        assert await complete_jobs(session, OWNER, *jobs_and_leases, [None] * 3, keep=True) == {ours}

    async def test_result_is_none_if_the_worker_held_all_jobs(self, session: Session) -> None:
        jobs = await insert_running(session, 3)
        assert await complete_jobs(session, OWNER, jobs, [1, 1, 1], [None] * 3, keep=True) is None

    async def test_one_lost_job_of_a_batch_does_not_affect_the_others(self, session: Session) -> None:
        ours, lost = await insert_running(session, 2)
        assert set(await fail_attempts(session, OWNER, [ours, lost], [1, 2], ["a", "b"], [None, None])) == {ours}
        assert (await look(session, ours)).state is State.RETRYABLE
        assert (await look(session, lost)).state is State.RUNNING


class TestComplete:
    async def test_result_is_stored(self, session: Session) -> None:
        (job_id,) = await insert_running(session, args='{"a": 1}', tags=["t"])
        await complete_jobs(session, OWNER, [job_id], [1], ['{"ok": [1, "two"]}'], keep=True)
        job = await look(session, job_id)
        assert (job.state, job.result, job.args, job.tags) == (State.COMPLETED, {"ok": [1, "two"]}, {"a": 1}, ["t"])
        assert job.finalized_at is not None
        assert (job.attempt, job.worker_id) == (1, OWNER)

    async def test_missing_result_is_none(self, session: Session) -> None:
        (job_id,) = await insert_running(session)
        await complete_jobs(session, OWNER, [job_id], [1], [None], keep=True)
        assert (await look(session, job_id)).result is None

    async def test_job_that_completes_despite_a_cancel_request_is_completed(self, session: Session) -> None:  # F7
        (job_id,) = await insert_running(session)
        await cancel_jobs(session, [job_id])
        await complete_jobs(session, OWNER, [job_id], [1], [None], keep=True)
        assert (await look(session, job_id)).state is State.COMPLETED

    @pytest.mark.parametrize(
        ("keep", "retention", "kept"),
        [(True, None, True), (False, None, False), (True, 0, False), (False, 0, False), (False, 60, True)],
    )
    async def test_completed_job_is_kept_unless_its_retention_is_0(
        self, session: Session, keep: bool, retention: int | None, kept: bool
    ) -> None:
        if retention is not None:
            await insert_queue(session, completed_retention=seconds(retention))
        else:
            await insert_queue(session)
        (job_id,) = await insert_running(session)
        assert await complete_jobs(session, OWNER, [job_id], [1], [None], keep=keep) is None
        assert await states(session) == ({"completed": 1} if kept else {})

    async def test_job_completes_on_a_day_without_partition(self, session: Session) -> None:
        await session.connection.execute("SELECT awa.drop_day_partitions('completed', 'infinity')")
        (job_id,) = await insert_running(session)
        await complete_jobs(session, OWNER, [job_id], [1], [None], keep=True)
        assert await session.connection.fetchval("SELECT count(*) FROM awa.completed_default") == 1


class TestFail:
    async def test_failed_attempt_is_retried_and_its_error_kept(self, session: Session) -> None:
        (job_id,) = await insert_running(session, attempt=3)
        answer = await fail(session, job_id)
        job = await look(session, job_id)
        assert (answer.attempt, answer.max_attempts) == (3, 25)
        assert answer.retry_s == within_jitter(4)
        assert (job.state, job.attempt, job.lease, job.finalized_at) == (State.RETRYABLE, 3, 1, None)  # A16
        (error,) = job.errors
        assert (error["attempt"], error["error"]) == (3, "boom")
        assert error["at"]

    async def test_backoff_doubles_up_to_its_maximum(self, session: Session) -> None:  # F11
        await insert_queue(session, backoff_base=seconds(2), backoff_max=seconds(100))
        expected = {1: 2, 2: 4, 3: 8, 6: 64, 7: 100, 20: 100}
        for attempt, retry_s in expected.items():
            (job_id,) = await insert_running(session, attempt=attempt)
            assert (await fail(session, job_id)).retry_s == within_jitter(retry_s)

    async def test_default_backoff_is_a_second_to_an_hour(self, session: Session) -> None:
        for attempt, retry_s in {1: 1, 2: 2, 12: 2048, 13: 3600, 24: 3600}.items():
            (job_id,) = await insert_running(session, attempt=attempt)
            assert (await fail(session, job_id)).retry_s == within_jitter(retry_s)

    async def test_backoff_exponent_is_at_most_30(self, session: Session) -> None:  # F11
        await insert_queue(session, backoff_base=timedelta(microseconds=1), backoff_max=timedelta(days=400))
        for attempt in (31, 32, 32_766):
            (job_id,) = await insert_running(session, attempt=attempt, max_attempts=32_767)
            assert (await fail(session, job_id)).retry_s == within_jitter(2**30 / 1e6)

    async def test_longest_possible_backoff_does_not_overflow(self, session: Session) -> None:
        await insert_queue(session, backoff_base=timedelta(days=3650), backoff_max=timedelta(days=36500))
        (job_id,) = await insert_running(session, attempt=32_000, max_attempts=32_767)
        assert (await fail(session, job_id)).retry_s == within_jitter(timedelta(days=36500).total_seconds())

    async def test_job_is_due_at_once_without_backoff(self, session: Session) -> None:  # F11
        await insert_queue(session, backoff_enabled=False)
        (job_id,) = await insert_running(session, attempt=5)
        assert (await fail(session, job_id)).retry_s == 0

    async def test_jobs_that_fail_together_do_not_come_back_together(self, session: Session) -> None:  # F11
        jobs = await insert_running(session, 200)
        answers = await fail_attempts(session, OWNER, jobs, [1] * 200, ["boom"] * 200, [None] * 200)
        delays_s = [answer.retry_s or 0 for answer in answers.values()]
        assert all(delay_s == within_jitter(1) for delay_s in delays_s)
        assert len(set(delays_s)) > 150
        assert max(delays_s) - min(delays_s) > 0.15

    async def test_handlers_delay_overrides_the_backoff(self, session: Session) -> None:
        (job_id,) = await insert_running(session, attempt=5)
        assert (await fail(session, job_id, delay=seconds(7.5))).retry_s == 7.5

    async def test_job_without_attempts_left_fails(self, session: Session) -> None:
        (job_id,) = await insert_running(session, attempt=3, max_attempts=3, run_at=ago(60))
        assert (await fail(session, job_id)).retry_s is None
        job = await look(session, job_id)
        assert (job.state, job.attempt, job.errors[-1]["error"]) == (State.FAILED, 3, "boom")
        assert job.finalized_at is not None
        assert job.worker_id == OWNER

    async def test_job_with_a_deadline_before_the_retry_fails(self, session: Session) -> None:  # D3
        (too_late,) = await insert_running(session, attempt=5, expires_at=FromNow(10))
        (in_time,) = await insert_running(session, attempt=5, expires_at=FromNow(30))
        await fail(session, too_late)
        await fail(session, in_time)
        assert (await look(session, too_late)).state is State.FAILED
        assert (await look(session, in_time)).state is State.RETRYABLE

    async def test_last_32_errors_are_kept(self, session: Session) -> None:  # A18
        job_id = await put_one(session, max_attempts=100)
        for _ in range(40):
            (row,) = await claim(session)
            await fail(session, job_id, row["lease"], seconds(0))
            await promote_jobs(session, limit=1)
        job = await look(session, job_id)
        assert [error["attempt"] for error in job.errors] == list(range(9, 41))

    async def test_job_with_a_cancel_request_is_cancelled(self, session: Session) -> None:
        (job_id,) = await insert_running(session)
        await cancel_jobs(session, [job_id])
        assert (await fail(session, job_id)).retry_s is None
        job = await look(session, job_id)
        assert (job.state, job.errors[-1]["error"]) == (State.CANCELLED, "cancelled by user")


class TestSnooze:
    async def test_snoozed_attempt_does_not_count(self, session: Session) -> None:
        (job_id,) = await insert_running(session, attempt=3, lease=4)
        assert await snooze_jobs(session, OWNER, [job_id], [4], [seconds(60)]) == {job_id}
        job = await look(session, job_id)
        assert (job.state, job.attempt, job.lease, job.errors) == (State.SCHEDULED, 2, 4, [])
        left = await session.connection.fetchval("SELECT run_at - now() FROM awa.scheduled")
        assert seconds(55) < left <= seconds(60)

    async def test_job_with_a_cancel_request_is_cancelled(self, session: Session) -> None:
        (job_id,) = await insert_running(session)
        await cancel_jobs(session, [job_id])
        assert await snooze_jobs(session, OWNER, [job_id], [1], [seconds(60)]) == {job_id}
        assert (await look(session, job_id)).state is State.CANCELLED


class TestDiscard:
    @pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED])
    async def test_discarded_job_ends_with_attempts_left(self, session: Session, state: State) -> None:
        (job_id,) = await insert_running(session)
        assert await discard_jobs(session, OWNER, [job_id], [1], [state], ["not wanted"]) == {job_id}
        job = await look(session, job_id)
        assert (job.state, job.attempt, job.errors[-1]["error"]) == (state, 1, "not wanted")
        assert job.finalized_at is not None


class TestRelease:
    async def test_released_attempt_does_not_count_and_job_is_available(self, session: Session) -> None:  # F19
        (job_id,) = await insert_running(session, attempt=1)
        assert await release_jobs(session, OWNER, [job_id], [1]) == {job_id}
        assert (await look(session, job_id)).attempt == 0
        (row,) = await claim(session)
        assert (row["id"], row["attempt"], row["lease"]) == (job_id, 1, 2)

    async def test_last_attempt_can_be_released(self, session: Session) -> None:
        (job_id,) = await insert_running(session, attempt=25, max_attempts=25)
        await release_jobs(session, OWNER, [job_id], [1])
        assert (await look(session, job_id)).state is State.AVAILABLE

    async def test_job_with_a_cancel_request_is_cancelled(self, session: Session) -> None:
        (job_id,) = await insert_running(session)
        await cancel_jobs(session, [job_id])
        await release_jobs(session, OWNER, [job_id], [1])
        assert (await look(session, job_id)).state is State.CANCELLED


class TestCancel:
    async def test_waiting_job_is_cancelled_at_once(self, session: Session) -> None:
        available = await put_one(session)
        scheduled = await put_one(session, delay=seconds(60))
        assert await cancel_jobs(session, [available, scheduled]) == {available: "cancelled", scheduled: "cancelled"}
        job = await look(session, available)
        assert (job.state, job.errors[-1]["error"]) == (State.CANCELLED, "cancelled by user")
        assert job.finalized_at is not None

    async def test_heartbeat_reports_the_cancel_request_of_a_running_job(self, session: Session) -> None:
        (job_id,) = await insert_running(session)
        assert await cancel_jobs(session, [job_id]) == {job_id: "requested"}
        assert await renew_leases(session, OWNER, [job_id], [1]) == {job_id: True}
        assert await check_leases(session, OWNER, [job_id], [1]) == {job_id: True}
        assert await check_leases(session, OWNER, [job_id], [2]) == {}
        assert await check_leases(session, new_owner(), [job_id], [1]) == {}

    async def test_cancel_does_not_change_finished_jobs(self, session: Session) -> None:
        (job_id,) = await insert_running(session)
        await complete_jobs(session, OWNER, [job_id], [1], [None], keep=True)
        assert await cancel_jobs(session, [job_id]) == {}
        assert (await look(session, job_id)).state is State.COMPLETED

    @pytest.mark.parametrize("rescue", ["stale", "overdue"])
    async def test_rescued_job_with_a_cancel_request_is_cancelled(self, session: Session, rescue: str) -> None:
        (job_id,) = await insert_running(session, silent_s=100, deadline_at=ago(1))
        await cancel_jobs(session, [job_id])
        if rescue == "stale":
            await rescue_stale_jobs(session, staleness=STALENESS, limit=10)
        else:
            await rescue_overdue_jobs(session, limit=10)
        job = await look(session, job_id)
        assert (job.state, job.errors[-1]["error"]) == (State.CANCELLED, "cancelled by user")


class TestRetryAndDelete:
    async def test_retried_job_has_all_its_attempts_again(self, session: Session) -> None:
        (failed,) = await insert_running(session, attempt=25, rescues=3, expires_at=ago(5))
        await fail(session, failed)
        assert await retry_jobs(session, [failed]) == {failed}
        job = await look(session, failed)
        assert (job.state, job.attempt, job.rescues, job.deadline_at) == (State.AVAILABLE, 0, 0, None)
        assert [error["error"] for error in job.errors] == ["boom"]
        assert len(await claim(session)) == 1

    async def test_completed_job_can_be_retried(self, session: Session) -> None:
        (job_id,) = await insert_running(session)
        await complete_jobs(session, OWNER, [job_id], [1], ["1"], keep=True)
        assert await retry_jobs(session, [job_id]) == {job_id}
        assert await states(session) == {"available": 1}

    async def test_retry_of_a_retryable_job_keeps_its_attempts(self, session: Session) -> None:
        (job_id,) = await insert_running(session, attempt=7)
        await fail(session, job_id)
        assert await retry_jobs(session, [job_id]) == {job_id}
        job = await look(session, job_id)
        assert (job.state, job.attempt) == (State.AVAILABLE, 7)

    async def test_running_job_is_neither_retried_nor_deleted(self, session: Session) -> None:
        (job_id,) = await insert_running(session)
        assert await retry_jobs(session, [job_id]) == set()
        assert await delete_jobs(session, [job_id]) == set()
        assert await states(session) == {"running": 1}

    async def test_job_that_does_not_run_can_be_deleted(self, session: Session) -> None:
        available, scheduled = await put_one(session), await put_one(session, delay=seconds(9))
        (completed, failed) = await insert_running(session, 2)
        await complete_jobs(session, OWNER, [completed], [1], [None], keep=True)
        await discard_jobs(session, OWNER, [failed], [1], [State.FAILED], ["x"])
        everything = [available, scheduled, completed, failed]
        assert await delete_jobs(session, everything) == set(everything)
        assert await states(session) == {}


ODD = "a'; DROP TABLE awa.ready--"


async def test_sql_in_names_of_workers_queues_and_kinds_is_never_executed(session: Session) -> None:  # D6
    worker = WorkerInfo(id=new_owner(), hostname=ODD, pid=1, version=ODD, queues=(ODD,), kinds=(ODD,), concurrency=1)
    await heartbeat_worker(session, worker)
    await set_queue(session, ODD, {"staleness": seconds(5)})
    (job_id,) = await insert(session, "ready", kind=ODD, queue=ODD)
    (row,) = await claim(session, queue=ODD, kinds=[ODD], worker_id=worker.id)
    assert await fail_attempts(session, worker.id, [job_id], [row["lease"]], [ODD], [seconds(0)])
    await promote_jobs(session, limit=5)
    (row,) = await claim(session, queue=ODD, kinds=[ODD], worker_id=worker.id)
    assert await release_orphans(session, worker_id=worker.id, known=set()) == 1
    job = await look(session, job_id)
    assert (job.kind, job.queue, job.errors[-1]["error"]) == (ODD, ODD, ODD)
    (shown,) = await list_workers(session, staleness=STALENESS)
    assert (shown.hostname, shown.queues, shown.alive) == (ODD, [ODD], True)


ENDS_OF_ATTEMPTS: dict[str, Callable[[Session, int], Awaitable[Any]]] = {
    "fail": lambda session, job_id: fail(session, job_id),
    "snooze": lambda session, job_id: snooze_jobs(session, OWNER, [job_id], [1], [seconds(60)]),
    "throttle": lambda session, job_id: throttle_jobs(session, OWNER, [job_id], [1], ["429"]),
    "release": lambda session, job_id: release_jobs(session, OWNER, [job_id], [1]),
    "rescue of a stale job": lambda session, _: rescue_stale_jobs(session, staleness=STALENESS, limit=1),
    "rescue of an overdue job": lambda session, _: rescue_overdue_jobs(session, limit=1),
    "rescue of a lost job": lambda session, _: rescue_from_lost_worker(session),
    "take-over": lambda session, _: take_over(session),
}


@pytest.mark.parametrize("end", ENDS_OF_ATTEMPTS)
async def test_progress_and_metadata_of_an_attempt_reach_the_next_one(session: Session, end: str) -> None:
    progress, metadata = {"fraction": 0.5, "message": "halfway"}, {"order": [7]}
    (job_id,) = await insert_running(session, silent_s=100, deadline_at=ago(1), metadata=json.dumps(metadata))
    await update_progress(session, OWNER, [job_id], [1], [json.dumps(progress)])
    rows = await ENDS_OF_ATTEMPTS[end](session, job_id)
    if end != "take-over":
        await session.connection.execute("UPDATE awa.scheduled SET run_at = now()")
        await session.connection.execute("UPDATE awa.queues SET throttled_until = NULL")
        await promote_jobs(session, limit=1)
        rows = await claim(session)
    job = claimed_job(rows[0])
    assert (job.id, job.lease, job.progress, job.metadata) == (job_id, 2, progress, metadata)


async def take_over(session: Session) -> list[Record]:
    await lead(session, since_s=120)
    claimant = Claimant(OWNER, ["work"], ["work"])
    return await take_over_jobs(session, claimant, queues=["default"], staleness=STALENESS, limit=1)


async def rescue_from_lost_worker(session: Session) -> None:
    """Rescue the job of a worker whose session has ended."""
    info = WorkerInfo(id=OWNER, hostname="h", pid=1, version="0", queues=("default",), kinds=("work",), concurrency=1)
    await heartbeat_worker(session, info)
    await session.connection.execute(
        "UPDATE awa.workers SET heartbeat_at = now() - interval '1 minute', locked_on = pg_postmaster_start_time()"
    )
    await session.connection.execute("UPDATE awa.leader SET elected_at = now() - interval '1 minute'")
    assert (await rescue_lost_jobs(session, silence=seconds(10), limit=1)).jobs


async def test_progress_stays_with_the_job(session: Session) -> None:
    (job_id,) = await insert_running(session)
    await update_progress(session, OWNER, [job_id], [1], ['{"fraction": 0.5, "message": "halfway"}'])
    assert (await look(session, job_id)).progress == {"fraction": 0.5, "message": "halfway"}
    await complete_jobs(session, OWNER, [job_id], [1], [None], keep=True)
    assert (await look(session, job_id)).progress == {"fraction": 0.5, "message": "halfway"}
