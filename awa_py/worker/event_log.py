"""Records what happened to a job that its row does not keep, and writes it every two seconds, off the hot path.

A row has the times of its job's enqueueing, last start and end, and its errors. The event log adds when and where
earlier attempts started, and that they were retried, snoozed, throttled or released. A job that succeeds at its first
attempt within two seconds costs nothing here.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from uuid import UUID

import asyncpg

from awa_py.background import wait_for_event
from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.db.schema import Schema
from awa_py.observability.logs import LogThrottle
from awa_py.observability.metrics import Metrics
from awa_py.store import events
from awa_py.store.events import JobEvent
from awa_py.store.session import Session
from awa_py.text import describe
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.in_flight import InFlightJobs

logger = logging.getLogger("awa.worker")

FLUSH_INTERVAL_S = 2.0
MAX_BUFFERED = 50_000
MAX_PER_FLUSH = 2_500  # at about 10 µs each: if all jobs fail, one percent of the time
LAST_FLUSH_TIMEOUT_S = 5.0


class EventLog:
    """Buffers the events of jobs until they are written. A crash loses buffered events, but no job."""

    def __init__(
        self,
        connection: ReconnectingConnection,
        schema: Schema,
        in_flight: InFlightJobs,
        metrics: Metrics,
        worker_id: UUID,
        *,
        enabled: bool,
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._in_flight = in_flight
        self._dropped = metrics.timeline_dropped
        self._worker_id = worker_id
        self._enabled = enabled
        self._buffer: deque[JobEvent] = deque()
        self._being_written = 0
        self._starts_recorded_until = 0.0  # jobs that were claimed by then and still run have a "started" event
        self._log_throttle = LogThrottle(logger)
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._enabled:
            self._task = asyncio.create_task(self._run(), name="awa event log")

    async def stop(self) -> None:
        """Write the buffer if the database is there, and stop."""
        if self._task is None:
            return
        self._stopping = True
        self._wake.set()
        try:
            async with asyncio.timeout(LAST_FLUSH_TIMEOUT_S):
                await self._task  # not cancelled: the events that it is writing would be written again
                while self._buffer and await self._flush():
                    pass
        except TimeoutError:
            logger.debug("the last events could not be written in time")
        self._dropped.inc(len(self._buffer))
        self._log_throttle.close()
        await self._connection.close()

    def flush_soon(self) -> None:
        """Flush now instead of at the next interval."""
        self._wake.set()

    def add(
        self, event: str, jobs: Sequence[ClaimedJob], detail: Callable[[ClaimedJob], str | None] | None = None
    ) -> None:
        """Record an event that has just happened to the jobs."""
        if self._enabled and jobs:
            now = time.monotonic()
            self._append([_job_event(event, job, now, None if detail is None else detail(job)) for job in jobs])

    def _append(self, job_events: Sequence[JobEvent]) -> None:
        room = max(0, MAX_BUFFERED - self._being_written - len(self._buffer))
        self._buffer.extend(job_events[:room])
        self._dropped.inc(len(job_events[room:]))

    def _record_long_runs(self) -> None:
        """Record the start of jobs that have been running for a while: this worker may die before they end."""
        until = time.monotonic() - FLUSH_INTERVAL_S
        long_runs = [job for job in self._in_flight if self._starts_recorded_until < job.waiting_since <= until]
        self._append([_job_event("started", job, job.waiting_since, None) for job in long_runs])
        self._starts_recorded_until = until

    async def _run(self) -> None:
        while not self._stopping:
            await wait_for_event(self._wake, FLUSH_INTERVAL_S)
            self._wake.clear()
            self._record_long_runs()
            await self._flush()

    async def _flush(self) -> bool:
        """Write one batch. Return False if that failed."""
        batch = [self._buffer.popleft() for _ in range(min(len(self._buffer), MAX_PER_FLUSH))]
        if not batch:
            return True
        self._being_written = len(batch)
        written = False
        try:
            session = Session(await self._connection.get(), self._schema)
            await events.write_events(session, self._worker_id, batch, now=time.monotonic())
            written = True
        except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
            message = "%d events of jobs are waiting for the database: %s"
            self._log_throttle.log(logging.WARNING, "events", message, len(batch), describe(error))
            self._connection.drop()
        finally:
            if not written:  # or the commit is unknown: readers ignore an event that was written twice
                self._buffer.extendleft(reversed(batch))
            self._being_written = 0
        return written


def _job_event(event: str, job: ClaimedJob, at: float, detail: str | None) -> JobEvent:
    return JobEvent(event, job.id, job.lease, job.attempt, at, job.waiting_since, detail)
