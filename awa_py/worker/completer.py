"""Writes outcomes in batches: outcomes that arrive during a flush are written by the next one."""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from logging import ERROR, INFO, WARNING
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
from awa_py.store import heartbeat
from awa_py.store.session import Session
from awa_py.text import class_name, clean_text, describe, format_frames, ordinal
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.event_log import EventLog
from awa_py.worker.in_flight import InFlightJobs
from awa_py.worker.outcome_table import OUTCOMES, OutcomeBatch, OutcomeRule, job_keys
from awa_py.worker.outcomes import Discarded, LeaseLost

logger = logging.getLogger("awa.worker")

RETRY_S = 1.0
RECONNECT_S = 0.1
PROGRESS_INTERVAL_S = 0.5


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
        self._event_log = event_log
        self._worker_id = worker_id
        self._keep_completed = keep_completed
        self._log_throttle = LogThrottle(logger)
        self._buffer: list[ClaimedJob] = []
        self._progress: dict[int, ClaimedJob] = {}
        self._progress_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._flushed = asyncio.Event()
        self._flushed.set()
        self._task: asyncio.Task[None] | None = None

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

    def add_progress(self, job: ClaimedJob) -> None:
        """Write the job's progress within about half a second. Call from any thread."""
        self._loop.call_soon_threadsafe(self._add_progress, job)

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
        if self._progress:
            await self._write_progress({job.id for job in jobs})
        try:
            await self._write_outcomes(jobs)
        except Exception as error:
            values = (len(jobs), describe(error), format_frames(error))
            self._log_throttle.log(ERROR, "flush", "%d outcomes could not be written, trying again: %s\n%s", *values)
            self._buffer = [*jobs, *self._buffer]
            self._wake.set()
            await asyncio.sleep(RETRY_S)
        if not self._buffer:
            self._flushed.set()

    def _add_progress(self, job: ClaimedJob) -> None:
        self._progress[job.id] = job
        if self._progress_timer is None:
            self._progress_timer = self._loop.call_later(PROGRESS_INTERVAL_S, self._flush_progress)

    def _flush_progress(self) -> None:
        self._progress_timer = None
        self._wake.set()

    async def _write_progress(self, ending: set[int]) -> None:
        """Write the progress that is due, and the last progress of the jobs that are ending."""
        all_due = self._progress_timer is None
        due = [job for job in self._progress.values() if all_due or job.id in ending]
        for job in due:
            del self._progress[job.id]
        due = [job for job in due if self._is_current(job)]
        progress = [job.progress or "null" for job in due]
        while due:
            try:
                session = Session(await self._connection.get(), self._schema)
                await heartbeat.update_progress(session, *job_keys(self._worker_id, due), progress)
                return
            except CONNECTION_LOST:  # the outcomes wait for the database too, and the next attempt needs the progress
                self._connection.drop()
            except asyncpg.PostgresError as error:
                values = (len(due), describe(error))
                self._log_throttle.log(WARNING, "progress", "the progress of %d jobs was not written: %s", *values)
                return

    async def _write_outcomes(self, jobs: Sequence[ClaimedJob]) -> None:
        started = time.monotonic()
        groups: dict[type, list[ClaimedJob]] = defaultdict(list)
        # In the order of ids, so that two statements that change the same rows cannot deadlock.
        for job in sorted(jobs, key=attrgetter("id")):
            groups[type(job.outcome) if self._is_current(job) else LeaseLost].append(job)
        for outcome_type, rule in OUTCOMES.items():
            if outcome_type in groups:
                await self._write(rule, groups[outcome_type])
        self._metrics.flush_seconds.observe(time.monotonic() - started)
        self._metrics.flush_jobs.observe(len(jobs))
        self._metrics.observe_runs()

    async def _write(self, rule: OutcomeRule[Any, Any], jobs: Sequence[ClaimedJob]) -> None:
        if rule.write is None:
            self._remove(jobs)
            self._report_lost(jobs, rule.action)
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
            except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
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
                self._finish(rule, jobs, written, commit_unknown=commit_unknown)
                return

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
            message = "%s: its outcome cannot be stored, a rescue will end the job: %s"
            self._log(ERROR, job, "unstorable", message, job, describe(error))
            self._remove(jobs)
            return
        text = clean_text(f"the outcome cannot be stored: {describe(error)}")
        job.outcome = Discarded(state=State.FAILED, error=text, reason=Reason.RESULT)
        await self._write(OUTCOMES[Discarded], jobs)

    def _is_current(self, job: ClaimedJob) -> bool:
        """Return False if this worker has claimed the job again since.

        The earlier attempt has lost its lease, even if both have the same number: a crash of the server can undo the
        first claim.
        """
        return self._in_flight.get(job.id) is job

    def _remove_repeated(self, jobs: Sequence[ClaimedJob], action: str) -> list[ClaimedJob]:
        """Remove and report the jobs that this worker has claimed again. Return the others."""
        if repeated := [job for job in jobs if not self._is_current(job)]:
            self._remove(repeated)
            self._report_lost(repeated, action)
        return [job for job in jobs if self._is_current(job)]

    def _finish(
        self,
        rule: OutcomeRule[Any, Any],
        jobs: Sequence[ClaimedJob],
        written: Mapping[int, Any] | None,
        *,
        commit_unknown: bool,
    ) -> None:
        """Count, record and log jobs after their outcomes were written. `written`: those that were ours; None: all."""
        counts = self._remove(jobs)
        ours = jobs
        if written is not None and len(written) < len(jobs):
            ours = [job for job in jobs if job.id in written]
            counts = _count_by_queue(ours)
            others = [job for job in jobs if job.id not in written]
            if commit_unknown:
                message = "%s: the connection broke during the write: the outcome was written, or the lease was lost"
                for job in others:
                    self._log(INFO, job, "unsure", message, job)
            else:
                self._report_lost(others, rule.action)
        if rule.counter is not None:
            for queue, count in counts.items():
                rule.counter(self._metrics).labels(queue).inc(count)
        if rule.event is not None:
            self._event_log.add(rule.event, ours, rule.event_detail)
        if rule.report is not None and written is not None:
            self._report(rule, ours, written)

    def _report(self, rule: OutcomeRule[Any, Any], jobs: Sequence[ClaimedJob], written: Mapping[int, Any]) -> None:
        assert rule.report is not None
        events: dict[str, list[ClaimedJob]] = defaultdict(list)
        for job in jobs:
            report = rule.report(job, job.outcome, written[job.id])
            if report is None:
                continue
            if report.counter is not None:
                labels = (job.queue,) if report.reason is None else (job.queue, report.reason)
                report.counter(self._metrics).labels(*labels).inc()
            if report.event is not None:
                events[report.event].append(job)
            self._log(report.level, job, report.topic, report.message, *report.values, exception=report.exception)
        for event, its_jobs in events.items():
            self._event_log.add(event, its_jobs)

    def _report_lost(self, jobs: Iterable[ClaimedJob], action: str) -> None:
        for job in jobs:
            self._metrics.lost_leases.inc()
            message = "%s: the lease was lost before the %s attempt could %s: nothing was changed"
            self._log(WARNING, job, "lost", message, job, ordinal(job.attempt), action)

    def _remove(self, jobs: Sequence[ClaimedJob]) -> Counter[str]:
        """Remove the jobs from those in flight. Return how many there were of each queue."""
        counts = _count_by_queue(jobs)
        self._in_flight.remove(jobs, counts)
        return counts

    def _log(
        self,
        level: int,
        job: ClaimedJob,
        topic: str,
        message: str,
        *values: object,
        exception: BaseException | None = None,
    ) -> None:
        """Log a line about a job, throttled with others of the same topic, kind of job and class of error."""
        key = (topic, job.kind, class_name(exception))
        self._log_throttle.log(level, key, message, *values, exc_info=exception, extra=job.fields())


def _count_by_queue(jobs: Collection[ClaimedJob]) -> Counter[str]:
    return Counter(map(attrgetter("queue"), jobs))
