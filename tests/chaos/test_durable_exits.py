"""A worker ends at each crash point of docs/durable.md, and another one goes on."""

import asyncio
from typing import Any

import pytest

import awa_py as awa
from awa_py import State
from tests.chaos import crash_jobs
from tests.chaos.crash_workers import CrashWorkers, completed, count, exists, records, wait_exit
from tests.processes import eventually, is_state

pytestmark = pytest.mark.chaos  # Y1 Y2


async def crash_once(app: awa.App, workers: CrashWorkers, job: awa.Job[Any], point: str) -> awa.Job[Any]:
    """Run a job in a worker that ends at the point, and then in another one. Return the completed job."""
    await workers.exit_at(point)
    workers.start()
    found = await completed(app, job)
    assert await count(app, "awa.checkpoints") == 0
    return found


class TestSteps:
    @pytest.mark.parametrize(
        ("point", "runs_of_second", "lease_of_second"),
        [
            ("in the step", 2, 2),
            ("before record_checkpoints", 2, 2),
            ("after record_checkpoints", 1, 1),
            ("between the steps", 1, 2),
            ("before complete_durable_jobs", 1, 1),
        ],
    )
    async def test_step_runs_again_only_if_it_was_not_recorded(
        self,
        crash_app: awa.App,
        crash_workers: CrashWorkers,
        point: str,
        runs_of_second: int,
        lease_of_second: int,
    ) -> None:
        job = await crash_once(crash_app, crash_workers, await crash_jobs.two_steps.enqueue(), point)
        assert (job.result, job.lease, job.attempt, len(job.errors)) == ("done", 2, 1, 1)
        assert crash_workers.runs == {"first": 1, "second": runs_of_second}
        assert await records(crash_app, job) == {"first": 1, "second": lease_of_second}

    async def test_exit_after_the_completion_repeats_nothing(
        self, crash_app: awa.App, crash_workers: CrashWorkers
    ) -> None:
        job = await crash_jobs.two_steps.enqueue()
        job = await crash_once(crash_app, crash_workers, job, "after complete_durable_jobs")
        assert (job.result, job.lease, job.attempt, job.errors) == ("done", 1, 1, [])
        assert crash_workers.runs == {"first": 1, "second": 1}
        assert await records(crash_app, job) == {"first": 1, "second": 1}

    @pytest.mark.parametrize(("point", "runs"), [("before record_checkpoints", 2), ("after record_checkpoints", 1)])
    async def test_step_whose_error_was_caught_runs_again_only_if_that_was_not_recorded(
        self, crash_app: awa.App, crash_workers: CrashWorkers, point: str, runs: int
    ) -> None:
        job = await crash_once(crash_app, crash_workers, await crash_jobs.caught_error.enqueue(), point)
        assert (job.result, job.lease, job.attempt) == ("done", 2, runs)
        assert crash_workers.runs == {"failed": runs, "next": 1}
        assert await records(crash_app, job) == {"failing": runs, "next": 2}


class TestTransactions:
    @pytest.mark.parametrize(
        ("point", "runs"),
        [
            ("in the step", 2),
            ("before record_transaction", 2),
            ("after record_transaction", 2),  # before the COMMIT
            ("after the commit", 1),
        ],
    )
    async def test_transaction_of_a_step_commits_once(
        self, crash_app: awa.App, crash_workers: CrashWorkers, point: str, runs: int
    ) -> None:
        job = await crash_once(crash_app, crash_workers, await crash_jobs.transact.enqueue(), point)
        assert (job.result, job.lease, job.attempt) == ("done", 2, runs)
        assert crash_workers.runs == {"booked": runs}
        assert await count(crash_app, "public.booked") == 1
        assert await records(crash_app, job) == {"book": runs}

    @pytest.mark.parametrize(
        ("point", "runs"),
        [
            ("in the step", 2),
            ("before complete_in_transaction", 2),
            ("after complete_in_transaction", 2),  # before the COMMIT
            ("after the commit", 1),
        ],
    )
    async def test_transaction_that_completes_the_job_commits_once(
        self, crash_app: awa.App, crash_workers: CrashWorkers, point: str, runs: int
    ) -> None:
        job = await crash_jobs.complete_in_transaction.enqueue()
        job = await crash_once(crash_app, crash_workers, job, point)
        assert (job.result, job.lease, job.attempt) == ("done", runs, runs)
        assert crash_workers.runs == {"booked": runs}
        assert await count(crash_app, "public.booked") == 1


class TestWaits:
    async def test_job_that_was_not_suspended_waits_again(
        self, crash_app: awa.App, crash_workers: CrashWorkers
    ) -> None:
        job = await crash_jobs.take_signals.enqueue(1)
        await crash_workers.exit_at("before suspend_jobs")
        assert await is_state(crash_app, job.id, State.RUNNING)
        crash_workers.start()
        await eventually("the job waits", lambda: is_state(crash_app, job.id, State.WAITING))
        await crash_app.signal(job.id, "go", "a")
        job = await completed(crash_app, job)
        assert (job.result, job.lease, job.attempt, len(job.errors)) == (["a"], 3, 1, 1)

    async def test_job_that_was_suspended_waits_without_its_worker(
        self, crash_app: awa.App, crash_workers: CrashWorkers
    ) -> None:
        job = await crash_jobs.take_signals.enqueue(1)
        await crash_workers.exit_at("after suspend_jobs")
        assert await is_state(crash_app, job.id, State.WAITING)
        await crash_app.signal(job.id, "go", "a")
        crash_workers.start()
        job = await completed(crash_app, job)
        assert (job.result, job.lease, job.attempt, job.errors) == (["a"], 2, 1, [])

    @pytest.mark.parametrize(
        ("point", "errors"), [("after record_checkpoints", 1), ("before suspend_jobs", 1), ("after suspend_jobs", 0)]
    )
    async def test_timer_keeps_its_time(
        self, crash_app: awa.App, crash_workers: CrashWorkers, point: str, errors: int
    ) -> None:
        job = await crash_jobs.nap.enqueue(2.5)
        await crash_workers.exit_at(point)
        until = await crash_app.pool.fetchval("SELECT until FROM awa.checkpoints")
        crash_workers.start()
        job = await completed(crash_app, job)
        assert (job.result, job.lease, job.attempt, len(job.errors)) == ("done", 2, 1, errors)
        assert job.finalized_at is not None
        assert job.finalized_at > until
        assert await records(crash_app, job) == {"sleep": 1}

    @pytest.mark.parametrize(("point", "attempt"), [("before take_signals", 2), ("after take_signals", 1)])
    async def test_signal_is_delivered_once(
        self, crash_app: awa.App, crash_workers: CrashWorkers, point: str, attempt: int
    ) -> None:
        job = await crash_jobs.take_signals.enqueue(2)
        for word in ("a", "b"):
            await crash_app.signal(job.id, "go", word)
        job = await crash_once(crash_app, crash_workers, job, point)
        assert (job.result, job.lease, job.attempt) == (["a", "b"], 2, attempt)
        assert await count(crash_app, "awa.signals") == 0

    async def test_signal_that_commits_before_the_suspension_makes_the_job_available(
        self, crash_app: awa.App, crash_workers: CrashWorkers
    ) -> None:
        job = await crash_jobs.signal_to_itself.enqueue()
        await crash_workers.exit_at("after suspend_jobs")
        assert await is_state(crash_app, job.id, State.AVAILABLE)
        crash_workers.start()
        job = await completed(crash_app, job)
        assert (job.result, job.lease, job.attempt, job.errors) == ("in time", 2, 1, [])

    async def test_signal_of_a_sender_that_did_not_commit_was_never_sent(
        self, crash_app: awa.App, crash_workers: CrashWorkers
    ) -> None:
        job = await crash_jobs.take_signals.enqueue(1)
        worker = crash_workers.start_exiting("before the commit")
        await eventually("the job waits", lambda: is_state(crash_app, job.id, State.WAITING))
        await crash_jobs.send_signal.enqueue(job.id)
        await wait_exit(worker)
        assert await is_state(crash_app, job.id, State.WAITING)
        assert await count(crash_app, "awa.signals") == 0
        crash_workers.start()
        job = await completed(crash_app, job)
        assert (job.result, job.lease, job.errors) == (["attempt 2"], 2, [])

    async def test_signal_that_was_taken_wins_over_a_timer_that_fired_since(
        self, crash_app: awa.App, crash_workers: CrashWorkers
    ) -> None:
        """The process ends before the winner is recorded."""
        job = await crash_jobs.timer_or_signal.enqueue()
        await crash_app.signal(job.id, "go")
        job = await crash_once(crash_app, crash_workers, job, "after take_signals")
        assert (job.result, job.lease, job.attempt) == (1, 2, 1)
        assert sorted((await records(crash_app, job)).values()) == [1, 1, 2]


class TestChildren:
    @pytest.mark.parametrize(("point", "children"), [("after lock_parents", 0), ("after the commit", 1)])
    async def test_child_is_spawned_once(
        self, crash_app: awa.App, crash_workers: CrashWorkers, point: str, children: int
    ) -> None:
        """The first point is before the COMMIT."""
        job = await crash_jobs.parent.enqueue()
        await crash_workers.exit_at(point)
        for rows in ("awa.jobs WHERE parent_id IS NOT NULL", "awa.checkpoints"):
            assert await count(crash_app, rows) == children
        crash_workers.start()
        job = await completed(crash_app, job)
        assert (job.result, crash_workers.runs, len(job.errors)) == (42, {"child": 1}, 1)
        assert job.attempt <= 2
        assert await count(crash_app, "awa.jobs WHERE parent_id IS NOT NULL") == 1

    async def test_leader_wakes_the_parent_if_the_worker_of_the_last_child_did_not(
        self, crash_app: awa.App, crash_workers: CrashWorkers
    ) -> None:
        job = await crash_jobs.parent_of_the_last_child.enqueue()
        await crash_workers.exit_at("before wake_parents")
        assert await is_state(crash_app, job.id, State.WAITING)
        (child,) = await crash_app.children(job.id)
        assert child.state is State.COMPLETED
        crash_workers.start()
        job = await completed(crash_app, job)
        assert (job.result, job.lease, job.attempt, job.errors) == (42, 2, 1, [])

    async def test_result_of_a_child_outlives_a_cleanup_that_ends_before_it_drops_the_row(
        self, crash_app: awa.App, crash_workers: CrashWorkers
    ) -> None:
        job = await crash_jobs.late_parent.enqueue()
        crash_workers.start()
        await eventually("the child has ended", lambda: exists(crash_app, "awa.completed"))
        await eventually("the job waits", lambda: is_state(crash_app, job.id, State.WAITING))
        await crash_app.pool.execute(
            "CREATE TABLE awa.completed_20200101 PARTITION OF awa.completed "
            "FOR VALUES FROM ('2020-01-01 00:00+00') TO ('2020-01-02 00:00+00')"
        )
        await crash_app.pool.execute("UPDATE awa.completed SET finalized_at = '2020-01-01 12:00+00'")
        point = {"AWA_TEST_POINT": "after keep_results", "AWA_TEST_ACTION": "exit", "AWA_TEST_ARMED": "1"}
        await wait_exit(crash_workers.start_cleanup(**point))
        assert (await count(crash_app, "awa.kept_results"), await count(crash_app, "awa.completed")) == (1, 1)
        assert await asyncio.to_thread(crash_workers.start_cleanup().wait) == 0
        assert (await count(crash_app, "awa.kept_results"), await count(crash_app, "awa.completed")) == (1, 0)
        await crash_app.signal(job.id, "go")
        assert (await completed(crash_app, job)).result == 42
        assert await count(crash_app, "awa.kept_results") == 0


class TestStatesAndFlows:
    @pytest.mark.parametrize(("point", "runs"), [("before advance_jobs", 2), ("after advance_jobs", 1)])
    async def test_state_runs_again_only_if_the_next_one_was_not_saved(
        self, crash_app: awa.App, crash_workers: CrashWorkers, point: str, runs: int
    ) -> None:
        job = await crash_once(crash_app, crash_workers, await crash_jobs.first_state.enqueue(), point)
        assert (job.kind, job.result, job.attempt) == ("second_state", "done", 1)
        assert (job.lease, len(job.errors)) == (runs + 1, runs - 1)
        assert crash_workers.runs == {"first": runs, "second": 1}

    async def test_flow_whose_start_did_not_commit_does_not_exist(
        self, crash_app: awa.App, crash_workers: CrashWorkers
    ) -> None:
        await crash_jobs.start_flow.enqueue()
        await crash_workers.exit_at("before the commit")
        assert await count(crash_app, "awa.jobs WHERE kind = 'awa.flow'") == 0
        crash_workers.start()
        await eventually("it completed", lambda: exists(crash_app, "awa.completed WHERE kind = 'awa.flow'"))
        assert crash_workers.runs == {"first": 1, "second": 1}

    @pytest.mark.parametrize(
        "point",
        ["before record_checkpoints", "after record_checkpoints", "after lock_parents", "before complete_durable_jobs"],
    )
    async def test_flow_runs_each_job_once(self, crash_app: awa.App, crash_workers: CrashWorkers, point: str) -> None:
        """The points: before and after the arguments of the second job are recorded, before it is enqueued, the end."""
        job = await crash_app.start(awa.chain(crash_jobs.first_node.new(1), crash_jobs.second_node))
        job = await crash_once(crash_app, crash_workers, job, point)
        assert (job.result, len(job.errors)) == (2, 1)
        assert job.attempt <= 2
        assert crash_workers.runs == {"first": 1, "second": 1}
        assert await count(crash_app, "awa.jobs WHERE parent_id IS NOT NULL") == 2
