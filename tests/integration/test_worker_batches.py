"""Batch handlers: which jobs they get, and the outcome of each job."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import awa_py as awa
from awa_py import App, BatchJob, State
from awa_py.store.session import Session
from awa_py.worker.worker import CLEANUP_TIMEOUT_S
from tests.support import (
    PATIENCE_S,
    QUICK,
    drain,
    eventually,
    insert_queue,
    nothing_runs,
    running,
    sample,
    seconds,
    states,
    with_settings,
    working,
)

pytestmark = pytest.mark.integration

MODES = pytest.mark.parametrize("mode", ["in_loop", "in_thread"])


class Calls:
    """A batch handler that records its calls. With `blocks`, it waits for `go_on` before it ends."""

    def __init__(self, app: App, mode: str = "in_loop", *, blocks: bool = False, **options: Any) -> None:
        self.sizes: list[int] = []
        self.jobs: list[BatchJob] = []
        self.now = self.most = 0
        self.interrupted = 0
        self.go_on = threading.Event()
        self.ends_with: BaseException | object = None
        self.does: Callable[[Sequence[BatchJob]], None] = lambda jobs: None
        if not blocks:
            self.go_on.set()
        app.job(kind="work", **{"batch": 10, **options})(self.in_loop if mode == "in_loop" else self.in_thread)

    async def in_loop(self, jobs: list[BatchJob]) -> object:
        self._begin(jobs)
        try:
            await asyncio.sleep(0)
            while not self.go_on.is_set():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.interrupted += 1
            raise
        finally:
            self.now -= 1
        return self._end()

    def in_thread(self, jobs: list[BatchJob]) -> object:
        self._begin(jobs)
        self.go_on.wait(PATIENCE_S)
        self.now -= 1
        return self._end()

    def _begin(self, jobs: list[BatchJob]) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        self.sizes.append(len(jobs))
        self.jobs += jobs
        self.does(jobs)

    def _end(self) -> object:
        if isinstance(self.ends_with, BaseException):
            raise self.ends_with
        return self.ends_with

    def job(self, **args: object) -> BatchJob:
        """Return the job with these arguments."""
        (found,) = (job for job in self.jobs if job.args == args)
        return found


async def enqueue(app: App, count: int, **options: Any) -> list[int]:
    jobs = await app.enqueue_many([app.new("work", {"n": n}, **options) for n in range(count)])
    return [job.id for job in jobs]


async def ended_as(app: App, job_id: int, state: State) -> bool:
    return (await app.get(job_id)).state is state


async def all_released(app: App, job_ids: Sequence[int]) -> bool:
    """Return True if all jobs are available and no attempt was counted."""
    return {((await app.get(job_id)).state, (await app.get(job_id)).attempt) for job_id in job_ids} == {
        (State.AVAILABLE, 0)
    }


class TestCollecting:
    @MODES
    async def test_batch_handler_gets_a_list_of_jobs(self, app: App, mode: str) -> None:
        calls = Calls(app, mode)
        async with app:
            job = await app.enqueue("work", {"to": "me", "deep": [1, {"a": None}]}, queue="mail")
            await drain(app, "mail")
        (seen,) = calls.jobs
        assert isinstance(seen, awa.BatchJob)
        assert (seen.id, seen.kind, seen.queue, seen.attempt) == (job.id, "work", "mail", 1)
        assert seen.args == {"to": "me", "deep": [1, {"a": None}]}
        assert (seen.cancelled, seen.settled) == (False, False)
        assert f"{job.id} (work)" in repr(seen)

    async def test_batch_has_at_most_its_size_and_each_job_once(self, app: App, session: Session) -> None:
        calls = Calls(app, batch=7, linger=0)
        async with app:
            await enqueue(app, 100)
            await drain(app)
        assert max(calls.sizes) <= 7
        assert sorted(job.args["n"] for job in calls.jobs) == list(range(100))
        assert await states(session) == {"completed": 100}

    @pytest.mark.parametrize("concurrency", [1, 3])
    async def test_batches_are_full_even_with_few_slots(self, app: App, concurrency: int) -> None:
        calls = Calls(app, batch=50, linger="5s")
        async with app:
            await enqueue(app, 400)
            async with asyncio.timeout(PATIENCE_S):
                await app.work(concurrency=concurrency, until_idle=True, maintenance=False)
        assert calls.sizes == [50] * 8

    async def test_batch_larger_than_a_claim_is_filled(self, app: App) -> None:
        calls = Calls(app, batch=1_200, linger="5s")
        async with app:
            await enqueue(app, 2_400)
            async with asyncio.timeout(PATIENCE_S):
                await app.work(concurrency=1, until_idle=True, maintenance=False)
        assert calls.sizes == [1_200] * 2

    async def test_single_job_runs_after_the_linger_time(self, app: App) -> None:
        calls = Calls(app, linger="0.4s")
        async with app, working(app):
            began = time.monotonic()
            job = await app.enqueue("work")
            await app.result(job.id, timeout="20s")
        assert time.monotonic() - began >= 0.4
        assert calls.sizes == [1]

    async def test_jobs_within_the_linger_time_form_one_batch(self, app: App) -> None:
        calls = Calls(app, linger="3s", batch=3)
        async with app, working(app):
            for n in range(3):
                await app.enqueue("work", {"n": n})
            await eventually(lambda: calls.jobs)
        assert calls.sizes == [3]

    async def test_lingering_job_is_not_released(self, app: App) -> None:
        calls = Calls(app, linger="2.5s")
        async with app, working(app) as worker:
            (job_id,) = await enqueue(app, 1)
            await app.result(job_id, timeout="20s")
            assert sample(worker, "awa_jobs_released_total", queue="default") == 0
            assert (await app.get(job_id)).lease == 1
        assert calls.sizes == [1]

    @MODES
    async def test_batch_call_holds_one_slot(self, app: App, mode: str) -> None:
        calls = Calls(app, mode, batch=10, linger=0)
        calls.does = lambda jobs: time.sleep(0.01)
        async with app:
            await enqueue(app, 100)
            async with asyncio.timeout(PATIENCE_S):
                await app.work({"default": 1}, concurrency=10, until_idle=True, maintenance=False)
        assert calls.most == 1
        assert len(calls.jobs) == 100

    async def test_batch_calls_use_all_slots(self, app: App) -> None:
        calls = Calls(app, blocks=True)
        async with app, working(app, {"default": 3}) as worker:
            await enqueue(app, 100)
            await eventually(lambda: calls.now == 3)
            assert sample(worker, "awa_jobs_running", queue="default") == 3
            calls.go_on.set()
            await eventually(lambda: len(calls.jobs) == 100)
        assert calls.most == 3

    async def test_single_jobs_run_next_to_batches_of_the_same_queue(self, app: App, session: Session) -> None:
        calls = Calls(app, batch=20)
        ran: list[int] = []

        @app.job
        async def other(n: int) -> None:
            ran.append(n)

        async with app:
            await app.enqueue_many(
                [app.new("work", {"n": n}) if n % 3 else app.new("other", {"n": n}) for n in range(300)]
            )
            async with asyncio.timeout(PATIENCE_S):
                await app.work(concurrency=2, until_idle=True, maintenance=False)
        assert ran == [n for n in range(300) if not n % 3]
        assert sorted(job.args["n"] for job in calls.jobs) == [n for n in range(300) if n % 3]
        assert await states(session) == {"completed": 300}

    async def test_single_job_does_not_wait_for_an_incomplete_batch(self, app: App) -> None:
        calls = Calls(app, linger="20s")

        @app.job
        async def other() -> str:
            return f"before {len(calls.sizes)} calls"

        async with app, working(app, concurrency=1):
            gathering = await app.enqueue("work")
            await eventually(partial(running, app, gathering.id))
            await asyncio.sleep(3 * QUICK.poll_interval.total_seconds())  # it has polled for more jobs
            job = await app.enqueue("other")
            assert await app.result(job.id, timeout="10s") == "before 0 calls"

    async def test_batch_has_jobs_of_one_kind_and_one_queue(self, app: App) -> None:
        seen: list[set[tuple[str, str]]] = []

        async def note(jobs: list[BatchJob]) -> None:
            seen.append({(job.kind, job.queue) for job in jobs})

        app.job(kind="a", batch=10)(note)
        app.job(kind="b", batch=10)(note)
        async with app:
            await app.enqueue_many([app.new(kind, queue=queue) for _ in range(10) for kind in "ab" for queue in "xy"])
            await drain(app, "x", "y")
        assert all(len(places) == 1 for places in seen)
        assert set().union(*seen) == {("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")}

    async def test_slow_batch_handler_does_not_cause_repeated_claims(self, app: App) -> None:
        calls = Calls(app, blocks=True, batch=10)
        async with app, working(app, {"default": 1}) as worker:
            await enqueue(app, 50)
            await eventually(lambda: calls.now == 1)
            await asyncio.sleep(3)
            claimed = sample(worker, "awa_jobs_claimed_total", queue="default")
            calls.go_on.set()
        assert claimed <= 30


class TestBatchOutcomes:
    @MODES
    async def test_return_completes_all_jobs_of_the_batch(self, app: App, session: Session, mode: str) -> None:
        Calls(app, mode)
        async with app:
            await enqueue(app, 25)
            await drain(app)
        assert await states(session) == {"completed": 25}

    @MODES
    async def test_exception_fails_the_jobs_that_are_not_settled(self, app: App, mode: str) -> None:
        calls = Calls(app, mode, batch=4, linger="5s")
        calls.ends_with = ValueError("the API is down")

        def settle_two(jobs: Sequence[BatchJob]) -> None:
            calls.job(n=0).complete("done")
            calls.job(n=1).settle(awa.Cancel("not wanted"))

        calls.does = settle_two
        async with app:
            job_ids = await enqueue(app, 4)
            await drain(app)
            found = [await app.get(job_id) for job_id in job_ids]
        assert [(job.state, job.attempt) for job in found] == [
            (State.COMPLETED, 1),
            (State.CANCELLED, 1),
            (State.RETRYABLE, 1),
            (State.RETRYABLE, 1),
        ]
        assert found[0].result == "done"
        assert {job.errors[-1]["error"] for job in found[2:]} == {"ValueError: the API is down"}

    @pytest.mark.parametrize("raised", [True, False])
    async def test_outcome_applies_to_all_jobs_that_are_not_settled(
        self, app: App, session: Session, raised: bool
    ) -> None:
        @app.job(batch=10)
        async def work(jobs: list[BatchJob]) -> object:
            if raised:
                raise awa.Snooze("60s")
            return awa.Snooze("60s")

        async with app:
            await enqueue(app, 5)
            await drain(app)
        assert await states(session) == {"scheduled": 5}

    @MODES
    async def test_job_is_settled_while_its_batch_handler_runs(self, app: App, session: Session, mode: str) -> None:
        await insert_queue(session, backoff_base=seconds(60))
        calls = Calls(app, mode, blocks=True, batch=7, linger="5s")
        ends: dict[str, Callable[[BatchJob], None]] = {
            "complete": lambda job: job.complete({"n": 1}),
            "retry": lambda job: job.settle(awa.Retry("later", after="60s")),
            "snooze": lambda job: job.settle(awa.Snooze("60s")),
            "cancel": lambda job: job.settle(awa.Cancel("not wanted")),
            "fail": lambda job: job.settle(awa.Fail("pointless")),
            "error": lambda job: job.settle(ValueError("odd")),
        }

        def settle_each(jobs: Sequence[BatchJob]) -> None:
            for job in jobs:
                if job.args["end"] != "open":
                    ends[job.args["end"]](job)
                assert job.settled == (job.args["end"] != "open")

        calls.does = settle_each
        async with app, working(app):
            new = [app.new("work", {"end": end}) for end in (*ends, "open")]
            jobs = dict(zip((*ends, "open"), await app.enqueue_many(new), strict=True))

            async def only_one_runs() -> bool:
                states = {end: (await app.get(job.id)).state for end, job in jobs.items()}
                return [end for end in states if states[end] in {State.AVAILABLE, State.RUNNING}] == ["open"]

            await eventually(only_one_runs)
            assert calls.now == 1
            found = {end: await app.get(job.id) for end, job in jobs.items()}
            calls.go_on.set()
            assert await app.result(jobs["open"].id, timeout="20s") is None
            after = {end: await app.get(job.id) for end, job in jobs.items() if end != "open"}
        assert {end: (job.state, job.attempt) for end, job in found.items()} == {
            "complete": (State.COMPLETED, 1),
            "retry": (State.RETRYABLE, 1),
            "snooze": (State.SCHEDULED, 0),
            "cancel": (State.CANCELLED, 1),
            "fail": (State.FAILED, 1),
            "error": (State.RETRYABLE, 1),
            "open": (State.RUNNING, 1),
        }
        assert found["complete"].result == {"n": 1}
        assert [found[end].errors[-1]["error"] for end in ("retry", "cancel", "fail", "error")] == [
            "later",
            "not wanted",
            "pointless",
            "ValueError: odd",
        ]
        assert {end: job.state for end, job in after.items()} == {
            end: job.state for end, job in found.items() if end != "open"
        }

    async def test_result_that_is_not_json_fails_only_its_job(self, app: App) -> None:
        calls = Calls(app, batch=2, linger="5s")
        calls.does = lambda jobs: calls.job(n=0).complete(object())
        async with app:
            bad, good = await enqueue(app, 2)
            await drain(app)
            assert (await app.get(bad)).state is State.FAILED
            assert (await app.get(good)).state is State.COMPLETED

    @MODES
    async def test_settling_a_job_twice_is_an_error(self, app: App, mode: str) -> None:
        calls = Calls(app, mode, batch=1)
        problems: list[str] = []

        def settle_twice(jobs: Sequence[BatchJob]) -> None:
            (job,) = jobs
            job.complete("first")
            with pytest.raises(awa.AwaError) as refused:
                job.complete("second")
            problems.append(str(refused.value))
            with pytest.raises(awa.AwaError) as refused:
                job.settle(awa.Fail())
            problems.append(str(refused.value))

        calls.does = settle_twice
        async with app:
            (job_id,) = await enqueue(app, 1)
            await drain(app)
            assert await app.result(job_id, timeout="10s") == "first"
        assert problems == [f"job {job_id} (work) has already been settled"] * 2

    async def test_settling_a_job_with_another_type_is_a_type_error(self, app: App) -> None:
        calls = Calls(app, batch=1)
        odd_ones: list[Any] = ["done", None, 3, awa.Retry, KeyboardInterrupt()]
        problems: list[str] = []

        def settle_oddly(jobs: Sequence[BatchJob]) -> None:
            for odd in odd_ones:
                with pytest.raises(TypeError) as refused:
                    jobs[0].settle(odd)
                problems.append(str(refused.value))
            assert not jobs[0].settled

        calls.does = settle_oddly
        async with app:
            (job_id,) = await enqueue(app, 1)
            await drain(app)
            assert (await app.get(job_id)).state is State.COMPLETED
        assert problems == [
            f"settle() takes awa.Retry, Snooze, Throttled, Cancel, Fail or an error, not {type(odd).__name__}"
            for odd in odd_ones
        ]

    async def test_retried_jobs_join_a_batch_again(self, app: App, session: Session) -> None:
        attempts: Counter[int] = Counter()

        @app.job(batch=5)
        async def work(jobs: list[BatchJob]) -> None:
            for job in jobs:
                attempts[job.args["n"]] = job.attempt
                if job.attempt == 1 and job.args["n"] % 2:
                    job.settle(awa.Retry(after=0))

        async with app:
            await enqueue(app, 20)
            await drain(app)
        assert attempts == {n: 1 + n % 2 for n in range(20)}
        assert await states(session) == {"completed": 20}


class TestStoppingABatch:
    async def test_cancelled_job_is_marked_and_its_batch_goes_on(self, app: App) -> None:
        calls = Calls(app, blocks=True, batch=3, linger="5s")
        async with app, working(app):
            job_ids = await enqueue(app, 3)
            await eventually(lambda: calls.now)
            await app.cancel(job_ids[1])
            await eventually(lambda: calls.job(n=1).cancelled)
            assert not calls.job(n=0).cancelled
            assert not calls.job(n=2).cancelled
            calls.job(n=1).settle(RuntimeError("it gives up"))
            await eventually(lambda: ended_as(app, job_ids[1], State.CANCELLED))
            calls.go_on.set()
            for job_id in (job_ids[0], job_ids[2]):
                await app.result(job_id, timeout="20s")
        assert calls.interrupted == 0

    @pytest.mark.parametrize("settled_first", [False, True])
    async def test_async_batch_is_interrupted_when_all_its_jobs_are_cancelled(
        self, app: App, settled_first: bool
    ) -> None:
        calls = Calls(app, blocks=True, batch=3, linger="5s")
        async with app, working(app):
            job_ids = await enqueue(app, 3)
            await eventually(lambda: calls.now)
            if settled_first:
                calls.job(n=0).complete()
                await app.result(job_ids.pop(0), timeout="20s")
            for job_id in job_ids:
                assert calls.interrupted == 0
                await app.cancel(job_id)
            await eventually(lambda: calls.interrupted)
            for job_id in job_ids:
                await eventually(partial(ended_as, app, job_id, State.CANCELLED))

    async def test_batch_with_all_jobs_settled_is_not_interrupted_by_a_cancel(self, app: App, session: Session) -> None:
        calls = Calls(app, blocks=True, batch=2, linger="5s")
        async with app, working(app):
            job_ids = await enqueue(app, 2)
            await eventually(lambda: calls.now)
            await app.cancel(job_ids[0])
            await eventually(lambda: calls.job(n=0).cancelled)
            for job in calls.jobs:
                job.complete()
            await eventually(lambda: nothing_runs(session))
            calls.go_on.set()
            await eventually(lambda: not calls.now)
        assert calls.interrupted == 0
        assert await states(session) == {"completed": 2}

    async def test_sync_batch_handler_decides_the_outcome_of_cancelled_jobs(self, app: App) -> None:
        calls = Calls(app, "in_thread", blocks=True, batch=2, linger="5s")
        async with app, working(app):
            job_ids = await enqueue(app, 2)
            await eventually(lambda: calls.now)
            for job_id in job_ids:
                await app.cancel(job_id)
            await eventually(lambda: all(job.cancelled for job in calls.jobs))
            calls.job(n=0).complete("finished anyway")
            assert await app.result(job_ids[0], timeout="20s") == "finished anyway"
            calls.ends_with = RuntimeError("it gives up")
            calls.go_on.set()
            await eventually(lambda: ended_as(app, job_ids[1], State.CANCELLED))

    async def test_job_cancelled_before_its_batch_is_full_does_not_run(self, app: App) -> None:
        calls = Calls(app, batch=3, linger="30s")
        async with app, working(app) as worker:
            unwanted = await app.enqueue("work", {"n": 0})
            await eventually(lambda: running(app, unwanted.id))
            wanted = await app.enqueue("work", {"n": 1})
            await eventually(lambda: running(app, wanted.id))
            await app.cancel(unwanted.id)
            assert worker._parts is not None
            claimed = worker._parts.in_flight.get(unwanted.id)
            assert claimed is not None
            await eventually(lambda: claimed.stop)
            await eventually(lambda: ended_as(app, unwanted.id, State.CANCELLED) if calls.jobs else app.enqueue("work"))
            await app.result(wanted.id, timeout="20s")
        assert unwanted.id not in {job.id for job in calls.jobs}

    @MODES
    async def test_earliest_timeout_of_its_jobs_limits_the_batch(self, app: App, mode: str) -> None:
        calls = Calls(app, mode, blocks=True, batch=2, linger="5s", max_attempts=1)
        async with app, working(app):
            short, long = await app.enqueue_many(
                [app.new("work", {"n": 0}, timeout="1s"), app.new("work", {"n": 1}, timeout="1h")]
            )
            for job in (short, long):
                with pytest.raises(awa.JobFailed, match="HandlerTimeout: timed out after 1 s"):
                    await app.result(job.id, timeout="20s")
            calls.go_on.set()
            await eventually(lambda: not calls.now)
        assert calls.interrupted == (mode == "in_loop")

    async def test_settling_after_the_timeout_changes_nothing(self, app: App) -> None:
        calls = Calls(app, "in_thread", blocks=True, batch=2, linger="0.4s", timeout="0.5s", max_attempts=1)
        async with app, working(app, {"default": 1}) as worker:
            job_ids = await enqueue(app, 2)
            await eventually(lambda: ended_as(app, job_ids[0], State.FAILED))
            await eventually(lambda: all(job.cancelled for job in calls.jobs))
            assert sample(worker, "awa_jobs_running", queue="default") == 1  # its thread
            for job in calls.jobs:
                job.complete("too late")
                assert job.settled
            calls.go_on.set()
            await eventually(lambda: sample(worker, "awa_jobs_running", queue="default") == 0)
            for job_id in job_ids:
                found = await app.get(job_id)
                assert (found.state, found.result) == (State.FAILED, None)
            assert sample(worker, "awa_lost_leases_total") == 0


class TestShutdownWithABatch:
    @MODES
    @pytest.mark.parametrize("settled", [0, 1])
    async def test_jobs_of_a_slow_batch_are_released_without_counting_the_attempt(
        self, database_url: str, mode: str, settled: int
    ) -> None:
        app = with_settings(database_url, replace(QUICK, shutdown_timeout=seconds(0.2)))
        calls = Calls(app, mode, blocks=True, batch=4, linger="5s")
        async with app:
            async with working(app) as worker:
                job_ids = await enqueue(app, 4)
                await eventually(lambda: calls.now)
                for n in range(settled):
                    calls.job(n=n).complete()
                    await app.result(job_ids[n], timeout="20s")
            assert await all_released(app, job_ids[settled:])
            assert worker.abandoned == (mode == "in_thread")
            calls.go_on.set()
        assert calls.interrupted == (mode == "in_loop")

    async def test_cancelled_jobs_of_a_hanging_thread_end_cancelled(self, database_url: str) -> None:
        app = with_settings(database_url, replace(QUICK, shutdown_timeout=seconds(0.2)))
        calls = Calls(app, "in_thread", blocks=True, batch=2, linger="5s")
        async with app:
            async with working(app) as worker:
                job_ids = await enqueue(app, 2)
                await eventually(lambda: calls.now)
                for job_id in job_ids:
                    await app.cancel(job_id)
                await eventually(lambda: all(job.cancelled for job in calls.jobs))
            assert worker.abandoned == 1
            assert {(await app.get(job_id)).state for job_id in job_ids} == {State.CANCELLED}
            calls.go_on.set()

    async def test_batch_with_all_jobs_settled_is_interrupted_at_shutdown(self, database_url: str) -> None:
        app = with_settings(database_url, replace(QUICK, shutdown_timeout=seconds(0.2)))
        calls = Calls(app, blocks=True, batch=1)
        async with app:
            async with working(app):
                (job_id,) = await enqueue(app, 1)
                await eventually(lambda: calls.now)
                calls.jobs[0].complete()
                await app.result(job_id, timeout="20s")
            assert (calls.interrupted, calls.now) == (1, 0)

    async def test_batch_that_ends_before_the_shutdown_timeout_completes(self, app: App, session: Session) -> None:
        calls = Calls(app, blocks=True, batch=4, linger="5s")
        async with app:
            worker = app.worker(["default"], maintenance=False)
            task = asyncio.create_task(worker.run())
            await enqueue(app, 4)
            await eventually(lambda: calls.now)
            worker.stop()
            await asyncio.sleep(0.1)
            calls.go_on.set()
            async with asyncio.timeout(PATIENCE_S):
                await task
        assert await states(session) == {"completed": 4}

    async def test_jobs_of_an_incomplete_batch_are_released_without_counting_the_attempt(self, app: App) -> None:
        calls = Calls(app, batch=100, linger="1h")
        async with app:
            async with working(app):
                job_ids = await enqueue(app, 5)
                for job_id in job_ids:
                    await eventually(partial(running, app, job_id))
                began = time.monotonic()
            assert await all_released(app, job_ids)
        assert time.monotonic() - began < CLEANUP_TIMEOUT_S
        assert calls.sizes == []


class TestDeclaringABatchHandler:
    @pytest.mark.parametrize("size", [0, -1, True, 2.5, "10"])
    def test_batch_must_be_a_positive_number(self, size: Any) -> None:
        with pytest.raises(awa.ConfigError, match=f"batch is the largest number of jobs .* 1 or more, not {size!r}"):
            App().job(batch=size)

    def test_linger_needs_batch(self) -> None:
        with pytest.raises(awa.ConfigError, match="linger needs batch"):
            App().job(linger="1s")  # type: ignore[call-overload]

    def test_linger_must_be_shorter_than_the_timeout(self) -> None:
        async def late(jobs: list[BatchJob]) -> None: ...

        with pytest.raises(awa.ConfigError, match="late: linger must be shorter than the timeout"):
            App().job(batch=2, linger="2s", timeout="2s")(late)

    def test_linger_must_not_be_negative(self) -> None:
        with pytest.raises(awa.AwaError, match="-1 is negative"):
            App().job(batch=2, linger=-1)

    def test_linger_must_be_a_duration(self) -> None:
        with pytest.raises(awa.AwaError, match="soon"):
            App().job(batch=2, linger="soon")

    def test_batch_handler_must_have_one_parameter(self) -> None:
        async def none() -> None: ...
        async def two(jobs: list[BatchJob], more: int) -> None: ...
        async def named(*, jobs: list[BatchJob]) -> None: ...
        async def any_number(*jobs: BatchJob) -> None: ...

        for function in (none, two, named, any_number):
            with pytest.raises(awa.ConfigError, match=f"{function.__name__}: a batch handler takes one parameter"):
                App().job(batch=2)(function)  # type: ignore[arg-type]

    async def test_batch_job_accepts_any_json_arguments_by_name(self, app: App) -> None:
        calls = Calls(app)
        work = app.job(kind="other", batch=2)(calls.in_loop)
        async with app:
            await work.enqueue(a=1, b=[None, "x"], kind="odd")
            await app.enqueue("other", {"whatever": {"deep": True}})
            await drain(app)
        assert [job.args for job in calls.jobs] == [
            {"a": 1, "b": [None, "x"], "kind": "odd"},
            {"whatever": {"deep": True}},
        ]

    def test_batch_job_refuses_positional_arguments_and_values_that_are_not_json(self) -> None:
        app = App()

        @app.job(batch=2)
        async def work(jobs: list[BatchJob]) -> None: ...

        with pytest.raises(awa.InvalidArguments, match="work: takes 0 positional arguments, not 1"):
            work.new(1)
        with pytest.raises(awa.AwaError, match='work: argument "bad": an object is not JSON-serializable'):
            work.new(bad=object())

    async def test_batch_handler_can_be_called_directly(self) -> None:
        app = App()

        @app.job(batch=2)
        async def work(jobs: list[BatchJob]) -> int:
            return len(jobs)

        assert await work([]) == 0

    async def test_batch_job_can_have_a_schedule(self, app: App) -> None:
        seen: list[dict[str, Any]] = []

        @app.cron("* * * * * *")
        @app.job(batch=10)
        async def work(jobs: list[BatchJob]) -> None:
            seen.extend(job.args for job in jobs)

        async with app, working(app, maintenance=True):
            await eventually(lambda: seen)
        assert seen[0] == {}
