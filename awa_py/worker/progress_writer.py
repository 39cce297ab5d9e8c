"""Writes the progress of running jobs, every half second and before their outcomes."""

import asyncio
from collections.abc import Callable, Sequence
from logging import WARNING
from uuid import UUID

import asyncpg

from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.db.schema import Schema
from awa_py.observability.logs import LogThrottle
from awa_py.store import heartbeat
from awa_py.store.session import Session
from awa_py.text import describe
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.in_flight import InFlightJobs
from awa_py.worker.outcome_writers import job_keys

PROGRESS_INTERVAL_S = 0.5


class ProgressWriter:
    """Collects jobs that have new progress, and writes the latest progress of each."""

    def __init__(
        self,
        connection: ReconnectingConnection,
        schema: Schema,
        in_flight: InFlightJobs,
        worker_id: UUID,
        log_throttle: LogThrottle,
        *,
        on_due: Callable[[], None],
    ) -> None:
        """Call `on_due` when it is time to call `write`."""
        self._connection = connection
        self._schema = schema
        self._in_flight = in_flight
        self._worker_id = worker_id
        self._log_throttle = log_throttle
        self._on_due = on_due
        self._jobs: dict[int, ClaimedJob] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def add(self, job: ClaimedJob) -> None:
        """Write the job's progress within about half a second. Call from any thread."""
        self._loop.call_soon_threadsafe(self._add, job)

    def _add(self, job: ClaimedJob) -> None:
        self._jobs[job.id] = job
        if self._timer is None:
            self._timer = self._loop.call_later(PROGRESS_INTERVAL_S, self._end_interval)

    def _end_interval(self) -> None:
        self._timer = None
        self._on_due()

    async def write(self, ending: Sequence[ClaimedJob]) -> None:
        """Write the progress that is due, and the last progress of the jobs that are ending."""
        if not self._jobs:
            return
        due = [job for job in self._take_due(ending) if self._in_flight.is_current(job)]
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

    def _take_due(self, ending: Sequence[ClaimedJob]) -> list[ClaimedJob]:
        all_due = self._timer is None
        ending_ids = {job.id for job in ending}
        due = [job for job in self._jobs.values() if all_due or job.id in ending_ids]
        for job in due:
            del self._jobs[job.id]
        return due
