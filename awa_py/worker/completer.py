"""Writes outcomes in batches: outcomes that arrive during a flush are written by the next one."""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from logging import ERROR, WARNING
from operator import attrgetter
from typing import Any
from uuid import UUID

import asyncpg

from awa_py.background import cancel_and_wait
from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.db.schema import Schema
from awa_py.model.job import State
from awa_py.observability.logs import LogThrottle
from awa_py.observability.metrics import Metrics, Reason
from awa_py.store.session import Session
from awa_py.text import clean_text, describe, format_frames
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.event_log import EventLog
from awa_py.worker.in_flight import InFlightJobs
from awa_py.worker.outcome_reporter import OutcomeReporter
from awa_py.worker.outcome_table import OUTCOMES, OutcomeRule
from awa_py.worker.outcome_writers import OutcomeBatch
from awa_py.worker.outcomes import Discarded, LeaseLost
from awa_py.worker.parent_waker import ParentWaker
from awa_py.worker.progress_writer import ProgressWriter

logger = logging.getLogger("awa.worker")

RETRY_S = 1.0
RECONNECT_S = 0.1
LOCKED_RETRY_S = 0.01
# An outcome cannot be stored, or all of them together are too large for one statement.
UNSTORABLE = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError)


class Completer:
    """Makes outcomes durable. Keeps them in memory while the database is away, however long that takes."""

    def __init__(
        self,
        connection: ReconnectingConnection,
        schema: Schema,
        in_flight: InFlightJobs,
        metrics: Metrics,
        event_log: EventLog,
        worker_id: UUID,
        *,
        keep_completed: bool,
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._in_flight = in_flight
        self._metrics = metrics
        self._worker_id = worker_id
        self._keep_completed = keep_completed
        self._log_throttle = LogThrottle(logger)
        self._buffer: list[ClaimedJob] = []
        self._postponed = 0  # jobs whose rows were locked
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._task: asyncio.Task[None] | None = None
        self._reporter = OutcomeReporter(metrics, event_log, self._log_throttle)
        self._parent_waker = ParentWaker(connection, schema, self._log_throttle)
        self.progress_writer = ProgressWriter(
            connection, schema, in_flight, worker_id, self._log_throttle, on_due=self._wake.set
        )

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="awa completer")

    async def stop(self) -> None:
        """Stop flushing. Call `wait_flushed` first: what is still in the buffer is lost."""
        if self._task is not None:
            await cancel_and_wait(self._task)
        self._log_throttle.close()
        await self._connection.close()

    def add(self, jobs: Sequence[ClaimedJob]) -> None:
        """Add jobs whose outcomes the next flush writes."""
        if jobs and not self._buffer:
            self._flushed.clear()
            self._wake.set()
        self._buffer += jobs

    async def wait_flushed(self) -> None:
        """Wait until every outcome that was added is durable."""
        await self._flushed.wait()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._flush()

    async def _flush(self) -> None:
        jobs, self._buffer = self._buffer, []
        try:
            await self.progress_writer.write(jobs)
            await self._write_outcomes(jobs)
        except Exception as error:
            values = (len(jobs), describe(error), format_frames(error))
            self._log_throttle.log(ERROR, "flush", "%d outcomes could not be written, trying again: %s\n%s", *values)
            self._buffer = [*jobs, *self._buffer]
            self._wake.set()
            await asyncio.sleep(RETRY_S)
        if not self._buffer and not self._postponed:
            self._flushed.set()

    async def _write_outcomes(self, jobs: Sequence[ClaimedJob]) -> None:
        started = time.monotonic()
        groups: dict[type, list[ClaimedJob]] = defaultdict(list)
        # In the order of ids, so that two statements that change the same rows cannot deadlock.
        for job in sorted(jobs, key=attrgetter("id")):
            groups[type(job.outcome) if self._in_flight.is_current(job) else LeaseLost].append(job)
        for outcome_type, rule in OUTCOMES.items():
            if outcome_type in groups:
                await self._write(rule, groups[outcome_type])
        await self._parent_waker.wake()
        self._metrics.flush_seconds.observe(time.monotonic() - started)
        self._metrics.flush_jobs.observe(len(jobs))
        self._metrics.observe_runs()

    async def _write(self, rule: OutcomeRule[Any, Any], jobs: Sequence[ClaimedJob]) -> None:
        if rule.write is None:
            self._remove(jobs)
            self._reporter.report_lost(jobs, rule.action)
            return
        commit_unknown = False
        while True:
            try:
                was_connected = self._connection.connected
                session = Session(await self._connection.get(), self._schema)
                if not was_connected:  # until now, a crash may have undone claims, and this worker repeated them
                    jobs = self._remove_repeated(jobs, rule.action)
                    if not jobs:
                        return
                batch: OutcomeBatch[Any] = OutcomeBatch(
                    session=session, worker_id=self._worker_id, jobs=jobs, keep_completed=self._keep_completed
                )
                written = await rule.write(batch)
            except UNSTORABLE as error:
                await self._write_one_by_one(rule, jobs, error)
                return
            except CONNECTION_LOST as error:
                values = (len(jobs), describe(error))
                self._log_throttle.log(WARNING, "lost", "%d outcomes are waiting for the database: %s", *values)
                self._connection.drop()
                commit_unknown = True
                await asyncio.sleep(RECONNECT_S)
            except asyncpg.PostgresError as error:
                values = (len(jobs), describe(error))
                self._log_throttle.log(ERROR, "refused", "%d outcomes could not be written, trying again: %s", *values)
                await asyncio.sleep(RETRY_S)
            else:
                if rule.is_postponed is not None and written is not None:
                    locked = {job_id for job_id, answer in written.items() if rule.is_postponed(answer)}
                    jobs = self._postpone(jobs, locked)
                    written = {job_id: answer for job_id, answer in written.items() if job_id not in locked}
                self._finish(rule, jobs, written, commit_unknown=commit_unknown)
                return

    def _postpone(self, jobs: Sequence[ClaimedJob], locked: set[int]) -> Sequence[ClaimedJob]:
        """Write the outcomes of locked jobs a moment later. Return the other jobs."""
        postponed = [job for job in jobs if job.id in locked]
        if not postponed:
            return jobs
        self._postponed += len(postponed)
        self._loop.call_later(LOCKED_RETRY_S, self._add_postponed, postponed)
        return [job for job in jobs if job.id not in locked]

    def _add_postponed(self, jobs: Sequence[ClaimedJob]) -> None:
        self._postponed -= len(jobs)
        self.add(jobs)

    async def _write_one_by_one(
        self, rule: OutcomeRule[Any, Any], jobs: Sequence[ClaimedJob], error: Exception
    ) -> None:
        """Write each outcome alone, since one of them cannot be stored. That job fails, the others do not."""
        if len(jobs) > 1:
            for job in jobs:
                await self._write(rule, [job])
            return
        (job,) = jobs
        if isinstance(job.outcome, Discarded):
            self._reporter.report_unstorable(job, error)
            self._remove(jobs)
            return
        text = clean_text(f"the outcome cannot be stored: {describe(error)}")
        job.outcome = Discarded(state=State.FAILED, error=text, reason=Reason.RESULT)
        await self._write(OUTCOMES[Discarded], jobs)

    def _remove_repeated(self, jobs: Sequence[ClaimedJob], action: str) -> list[ClaimedJob]:
        """Remove and report the jobs that this worker has claimed again. Return the others."""
        if repeated := [job for job in jobs if not self._in_flight.is_current(job)]:
            self._remove(repeated)
            self._reporter.report_lost(repeated, action)
        return [job for job in jobs if self._in_flight.is_current(job)]

    def _finish(
        self,
        rule: OutcomeRule[Any, Any],
        jobs: Sequence[ClaimedJob],
        written: Mapping[int, Any] | None,
        *,
        commit_unknown: bool,
    ) -> None:
        """Remove and report jobs after their outcomes were written. `written`: those that were ours; None: all."""
        counts = self._remove(jobs)
        ours = jobs
        if written is not None and len(written) < len(jobs):
            ours = [job for job in jobs if job.id in written]
            counts = _count_by_queue(ours)
            others = [job for job in jobs if job.id not in written]
            if commit_unknown:
                self._reporter.report_unsure(others)
            else:
                self._reporter.report_lost(others, rule.action)
        self._parent_waker.note(jobs)
        self._reporter.report(rule, ours, written, counts)

    def _remove(self, jobs: Sequence[ClaimedJob]) -> Counter[str]:
        """Remove the jobs from those in flight. Return how many there were of each queue."""
        counts = _count_by_queue(jobs)
        self._in_flight.remove(jobs, counts)
        return counts


def _count_by_queue(jobs: Collection[ClaimedJob]) -> Counter[str]:
    return Counter(map(attrgetter("queue"), jobs))
