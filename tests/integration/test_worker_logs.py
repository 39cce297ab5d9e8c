"""A worker's log: the job in every line of its handler, blocked event loops, and no line for each job."""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

import awa_py as awa
from awa_py import App
from awa_py.observability.logs import JobFilter
from tests.support import QUICK, drain, eventually, seconds, with_settings, working

pytestmark = pytest.mark.integration

handler_logger = logging.getLogger("mine")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[logging.LogRecord]]:
    """Return the records from INFO on, as a logging handler with the filter gets them."""
    caplog.set_level(logging.INFO)
    kept: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.addFilter(JobFilter())
    handler.emit = kept.append  # type: ignore[method-assign, assignment]
    logging.root.addHandler(handler)
    yield kept
    logging.root.removeHandler(handler)


def jobs_of(lines: Sequence[logging.LogRecord], message: str) -> list[tuple[object, ...]]:
    """Return (job, kind, queue, attempt) of each line with that message."""
    found = [line.__dict__ for line in lines if line.getMessage() == message]
    return [(each["job_id"], each["job_kind"], each["queue"], each["attempt"]) for each in found]


class TestHandlerLines:
    async def test_async_handler_lines_have_the_job_also_after_an_await_and_in_tasks(
        self, app: App, lines: list[logging.LogRecord]
    ) -> None:
        left_behind: list[asyncio.Task[None]] = []

        @app.job(queue="email")
        async def slow() -> None:
            async def child() -> None:
                await asyncio.sleep(0)
                handler_logger.info("a child")

            handler_logger.info("before")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(child())
            await asyncio.sleep(0.01)
            handler_logger.info("after")

        @app.job(queue="email")
        async def quick() -> None:
            async def later() -> None:
                await asyncio.sleep(0.05)
                handler_logger.info("left behind")

            handler_logger.info("at once")
            left_behind.append(asyncio.create_task(later()))

        async with app:
            jobs = await app.enqueue_many([each.new() for _ in range(5) for each in (slow, quick)])
            await drain(app, "email")
            await asyncio.gather(*left_behind)
        expected = {
            kind: [(job.id, kind, "email", 1) for job in jobs if job.kind == kind] for kind in app.registry.kinds
        }
        for message in ("before", "a child", "after"):
            assert sorted(jobs_of(lines, message)) == expected["slow"]
        for message in ("at once", "left behind"):
            assert sorted(jobs_of(lines, message)) == expected["quick"]

    async def test_sync_handler_lines_have_the_job_and_its_attempt(
        self, app: App, lines: list[logging.LogRecord]
    ) -> None:
        @app.job
        def threaded(ctx: awa.Context) -> None:
            handler_logger.info("in a thread")
            if ctx.attempt == 1:
                raise awa.Retry(after=0)

        async with app:
            job = await threaded.enqueue()
            await drain(app)
        assert jobs_of(lines, "in a thread") == [(job.id, "threaded", "default", n) for n in (1, 2)]

    async def test_batch_handler_lines_have_the_number_of_jobs(self, app: App, lines: list[logging.LogRecord]) -> None:
        @app.job(batch=10)
        async def together(jobs: list[awa.BatchJob]) -> None:
            handler_logger.info("a batch")

        async with app:
            await app.enqueue_many([together.new() for _ in range(3)])
            await drain(app)
        assert jobs_of(lines, "a batch") == [(None, "together", "default", None)]
        assert [line.__dict__["jobs"] for line in lines if line.getMessage() == "a batch"] == [3]

    async def test_only_lines_of_a_worker_have_its_id(self, app: App, lines: list[logging.LogRecord]) -> None:
        @app.job
        async def work() -> None:
            handler_logger.info("inside")

        async with app:
            await work.enqueue()
            worker = app.worker(["default"], maintenance=False)
            handler_logger.info("outside")
            await worker.run(until_idle=True)
            handler_logger.info("outside")
        workers = [(line.getMessage(), line.__dict__["worker"]) for line in lines if line.name == "mine"]
        assert workers == [("outside", None), ("inside", str(worker.id)), ("outside", None)]
        about = [line.__dict__["worker"] for line in lines if line.name == "awa.worker"]
        assert about == [str(worker.id)] * 2  # its start and its end, none for the job


class TestThrottledLines:
    async def test_completed_and_snoozed_jobs_log_nothing(self, app: App, lines: list[logging.LogRecord]) -> None:
        @app.job
        async def work(ctx: awa.Context) -> None:
            if ctx.job.id % 2 and not ctx.job.rescues and ctx.job.run_at == ctx.job.created_at:
                raise awa.Snooze(0.01)

        async with app:
            await app.enqueue_many([work.new() for _ in range(100)])
            await drain(app)
        assert [line.getMessage().split()[0] for line in lines] == ["worker", "worker"]

    @pytest.mark.parametrize("end", ["fail", "retry", "cancel", "give up"])
    async def test_other_outcomes_log_one_line_and_a_count(
        self, app: App, lines: list[logging.LogRecord], end: str
    ) -> None:
        @app.job(max_attempts=1 if end == "fail" else 2)
        async def work() -> None:
            match end:
                case "retry":
                    raise awa.Retry("later", after=3600)
                case "cancel":
                    raise awa.Cancel("not wanted")
                case "give up":
                    raise awa.Fail("hopeless")
            raise ValueError("no")

        async with app:
            jobs = await app.enqueue_many([work.new() for _ in range(100)])
            await drain(app)
        lines = [line for line in lines if line.name == "awa.worker"]
        first, rest = [line for line in lines if "serves" not in line.getMessage()][:2]
        assert first.levelno == {"cancel": logging.INFO, "retry": logging.WARNING}.get(end, logging.ERROR)
        assert first.__dict__["job_id"] == jobs[0].id
        assert bool(first.exc_info) == (end == "fail")
        assert "(and 98 more like it in " in rest.getMessage()
        assert len(lines) == 4


class TestLoopWatchdog:
    @pytest.fixture
    def app(self, database_url: str) -> App:
        return with_settings(database_url, replace(QUICK, blocked_after=seconds(0.2)))

    async def test_handler_that_blocks_the_loop_is_logged_with_its_stack(
        self, app: App, lines: list[logging.LogRecord]
    ) -> None:
        @app.job
        async def sleepy() -> None:
            await asyncio.sleep(0)
            time.sleep(1.5)  # shown in the stack

        @app.job(batch=5)
        async def sleepy_batch(jobs: list[awa.BatchJob]) -> None:
            time.sleep(1.5)

        async with app, working(app):
            job = await sleepy.enqueue()
            await app.result(job.id)
            await sleepy_batch.enqueue()
            found = await eventually(lambda: self.of(lines) if len(self.of(lines)) == 4 else None)
        first, over, batch, _ = (line.getMessage() for line in found)
        assert first.startswith(f"job {job.id} (sleepy) has been blocking the event loop for 0.")
        assert "time.sleep(1.5)  # shown in the stack" in first
        assert "run_until_complete" not in first
        assert over.startswith(f"job {job.id} (sleepy) blocked the event loop for 1.")
        assert batch.startswith("1 jobs (sleepy_batch) has been blocking the event loop for 0.")
        assert found[0].__dict__["job_id"] == job.id
        assert {line.levelno for line in found} == {logging.WARNING}

    async def test_handlers_that_wait_or_run_in_threads_are_not_logged(
        self, app: App, lines: list[logging.LogRecord]
    ) -> None:
        @app.job
        async def waits() -> None:
            await asyncio.sleep(1)

        @app.job
        def in_a_thread() -> None:
            time.sleep(1)

        async with app:
            await waits.enqueue()
            await in_a_thread.enqueue()
            await drain(app)
        assert not [line for line in self.of(lines) if "waits" in line.getMessage() or "in_a" in line.getMessage()]

    @staticmethod
    def of(lines: list[logging.LogRecord]) -> list[logging.LogRecord]:
        return [line for line in lines if line.name == "awa.watchdog"]
