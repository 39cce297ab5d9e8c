"""The heartbeat: reports that the worker is alive, renews the leases of its jobs, and receives its directives.

It has a thread and a connection of its own, so that a worker whose event loop is blocked by a handler does not look
dead. It is sent at the report interval. Leases are renewed at the heartbeat interval, which is longer.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from operator import attrgetter

import asyncpg

from awa_py.background import LoopThread, wait_for_event
from awa_py.connections import DedicatedConnection, Record
from awa_py.db.database import ASYNC_COMMIT_SETTINGS, Database
from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.listener import Listener
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.observability.checks import HealthCheck
from awa_py.observability.logs import LogThrottle
from awa_py.observability.metrics import Metrics
from awa_py.settings import Settings
from awa_py.store import heartbeat as store
from awa_py.store.heartbeat import WorkerInfo
from awa_py.store.session import Session
from awa_py.text import describe
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.claiming.wakeups import Wakeups
from awa_py.worker.directives import Directives, directives_from
from awa_py.worker.in_flight import InFlightJobs
from awa_py.worker.outcomes import StopReason

logger = logging.getLogger("awa.heartbeat")

RETRY_S = 1.0
MAX_KEEPALIVE_S = 32_767  # the limit of Linux


class Heartbeat:
    """Sends heartbeats, and asks handlers to stop whose jobs were cancelled or whose leases were lost.

    If heartbeats fail, the worker stops claiming, and its handlers are stopped before their leases expire.
    """

    def __init__(
        self,
        database: Database,
        worker: WorkerInfo,
        settings: Settings,
        in_flight: InFlightJobs,
        metrics: Metrics,
        *,
        wakeups: Wakeups,
        listener: Listener,
        stopping: asyncio.Event,
        directives: Directives,
    ) -> None:
        """`directives`: those that the worker follows already."""
        self._database = database
        self._worker = worker
        self._in_flight = in_flight
        self._metrics = metrics
        self._wakeups = wakeups
        self._listener = listener
        self._stopping = stopping
        self._directives = directives
        self._directives_callbacks: list[Callable[[Directives], None]] = []
        self._worker_loop = asyncio.get_running_loop()
        self._locked_connection: DedicatedConnection | None = None
        self._locked_on: datetime | None = None
        self._unchecked: set[ClaimedJob] = set()
        self._log_throttle = LogThrottle(logger)
        self._report_interval_s = settings.report_interval.total_seconds()
        self._share_staleness = settings.share_staleness
        self._own_interval_s = self._interval_s = settings.heartbeat_interval.total_seconds()
        self._own_staleness_s = self._staleness_s = settings.heartbeat_staleness.total_seconds()
        in_flight.lease_s = self._staleness_s - _margin_s(self._staleness_s)
        self._last_sent = time.monotonic()
        self._last_renewal = -math.inf
        self._thread = LoopThread("awa-heartbeat", self._main)
        self._wake: asyncio.Event | None = None

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        await self._thread.stop()

    def on_directives(self, callback: Callable[[Directives], None]) -> None:
        """Call the function, in the worker's loop, when the directives have changed."""
        self._directives_callbacks.append(callback)

    def send_now(self) -> None:
        """Send a heartbeat at once, e.g. because the directives may have changed. Call from any thread."""
        if self._wake is not None:
            self._thread.call(self._wake.set)

    def check_lease(self, job: ClaimedJob) -> None:
        """Look at once whether the worker still holds the job, and whether it is to be cancelled."""
        self._unchecked.add(job)
        self.send_now()

    @property
    def age_s(self) -> float:
        """Return the seconds since the last successful heartbeat."""
        return time.monotonic() - self._last_sent

    @property
    def healthy(self) -> bool:
        """Return True if the lease of a job that is claimed now would be renewed in time."""
        return self.age_s < (self._interval_s + self._staleness_s) / 2

    def responds(self, within_s: float) -> bool:
        """Return False if its thread has been blocked for that long. The database need not be there."""
        return self._thread.responds(within_s)

    def checks(self) -> list[HealthCheck]:
        problem = None if self.healthy else "heartbeats fail: the database is not reachable"
        return [HealthCheck("database", problem, {"heartbeat_age_s": round(self.age_s, 3)})]

    async def _main(self) -> None:
        self._wake = asyncio.Event()
        # If the worker is cut off, the server must keep its lock for as long as its handlers may run, which is until
        # their leases expire.
        keepalive_s = min(math.ceil(self._own_staleness_s), MAX_KEEPALIVE_S)
        settings = {**ASYNC_COMMIT_SETTINGS, "tcp_keepalives_idle": str(keepalive_s), "tcp_user_timeout": "0"}
        connection = ReconnectingConnection(self._database, "heartbeat", self._metrics, settings)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send_forever(connection, self._wake))
                tasks.create_task(self._stop_expiring_forever())
        finally:
            await connection.close()

    async def _send_forever(self, reconnecting: ReconnectingConnection, wake: asyncio.Event) -> None:
        while True:
            try:
                connection = await reconnecting.get()
                wake.clear()
                async with asyncio.timeout(self._staleness_s / 2):  # a proxy may swallow the answer
                    await self._send(connection)
            except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
                self._log_throttle.log(logging.WARNING, "heartbeat", "a heartbeat failed: %s", describe(error))
                # If PostgreSQL refuses it, e.g. because the disk is full, the session and its lock stay: without them,
                # the leader would take the worker for dead.
                if isinstance(error, CONNECTION_LOST):
                    reconnecting.drop()
                await asyncio.sleep(RETRY_S)
                continue
            renewal_s = self._last_renewal + self._interval_s - time.monotonic()
            report_s = self._report_interval_s if self._listener.active else self._report_interval_s / 2
            await wait_for_event(wake, max(0.0, min(report_s, renewal_s)))

    async def _send(self, connection: DedicatedConnection) -> None:
        """Report that the worker is alive, renew leases if that is due, and pass new directives on."""
        session = Session(connection, self._database.schema)
        started = time.monotonic()
        reconnected = self._locked_connection is not None and connection is not self._locked_connection
        await self._lock_worker(connection, session)
        rows = await store.heartbeat_worker(
            session,
            self._worker,
            listening=self._wakeups.subscribed,
            locked_on=self._locked_on,
            quiet=self._directives.quiet,
            stopping=self._stopping.is_set(),
            share_staleness=self._share_staleness,
        )
        interval_s, staleness_s = self._intervals(rows)
        if reconnected or started >= self._last_renewal + interval_s or staleness_s < self._staleness_s:
            # After a reconnect any lease may have been lost: renew also those that are fresh.
            fresh_s = 0.0 if reconnected else min(interval_s, staleness_s - interval_s) / 2
            await self._renew_leases(session, started, fresh_s=fresh_s)
            self._last_renewal = started
        await self._check_leases(session)
        # Only after the renewal: with a shorter staleness, leases that are not renewed yet would seem to have expired.
        self._interval_s, self._staleness_s = interval_s, staleness_s
        self._in_flight.lease_s = staleness_s - _margin_s(staleness_s)
        self._last_sent = started
        directives = directives_from(rows, self._directives)
        if directives != self._directives:
            self._directives = directives
            for callback in self._directives_callbacks:
                self._worker_loop.call_soon_threadsafe(callback, directives)

    async def _lock_worker(self, connection: DedicatedConnection, session: Session) -> None:
        """Take the worker's lock once per session, so that the leader notices the end of the session."""
        if connection is not self._locked_connection or self._locked_on is None:
            self._locked_on = await store.lock_worker(session, self._worker.id)
            self._locked_connection = connection

    async def _renew_leases(self, session: Session, now: float, *, fresh_s: float) -> None:
        """Renew the leases that are older than `fresh_s`."""
        jobs = sorted((job for job in self._in_flight if now - job.renewed_at > fresh_s), key=attrgetter("id"))
        if not jobs:
            return
        ids, leases = [job.id for job in jobs], [job.lease for job in jobs]
        cancelled_by_id = await store.renew_leases(session, self._worker.id, ids, leases)
        for job in jobs:
            if job.id not in cancelled_by_id:  # locked, or lost
                self._unchecked.add(job)
                continue
            job.renewed_at = now
            if cancelled_by_id[job.id]:
                self._request_stop(job, StopReason.CANCELLED)

    def _intervals(self, rows: Iterable[Record]) -> tuple[float, float]:
        """Return the renewal interval and the staleness: those of the queue with the shortest staleness, or our own."""
        shortest: timedelta | None = min((row["staleness"] for row in rows if row["staleness"]), default=None)
        if shortest is None or shortest.total_seconds() >= self._own_staleness_s:
            return self._own_interval_s, self._own_staleness_s
        staleness_s = shortest.total_seconds()
        return min(self._own_interval_s, staleness_s / 3), staleness_s

    async def _stop_expiring_forever(self) -> None:
        """Stop handlers whose lease is about to expire: another worker may claim their jobs soon."""
        while True:
            await asyncio.sleep(_margin_s(self._staleness_s) / 2)
            for job in self._in_flight:
                if job.stop is None and self._in_flight.has_expired(job):
                    message = "%s: heartbeats fail and its lease is about to expire: stopping its handler"
                    self._log_throttle.log(logging.ERROR, job.kind, message, job, extra=job.fields())
                    self._request_stop(job, StopReason.LEASE_EXPIRED)

    async def _check_leases(self, session: Session) -> None:
        """Check the jobs that notifications named, or that were not renewed; or all, if notifications do not arrive."""
        jobs = []
        while self._unchecked:  # the worker's thread may add to it
            jobs.append(self._unchecked.pop())
        if not self._listener.active:
            jobs = list(self._in_flight)
        if jobs:
            ids, leases = [job.id for job in jobs], [job.lease for job in jobs]
            cancelled_by_id = await store.check_leases(session, self._worker.id, ids, leases)
            for job in jobs:
                if job.id not in cancelled_by_id:
                    self._request_stop(job, StopReason.LEASE_LOST)
                elif cancelled_by_id[job.id]:
                    self._request_stop(job, StopReason.CANCELLED)

    def _request_stop(self, job: ClaimedJob, reason: StopReason) -> None:
        self._worker_loop.call_soon_threadsafe(job.request_stop, reason)


def _margin_s(staleness_s: float) -> float:
    """Return how long before the end of its lease a handler is stopped."""
    return min(5.0, staleness_s / 10)
