"""The election: the process whose session holds the advisory lock is the leader."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import asyncpg

from awa_py.background import LoopThread, cancel_and_wait, wait_for_event
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.errors import CONNECTION_LOST, INVALID_DATA, translate_permission_errors
from awa_py.db.listener import NotificationReader, Topic
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.errors import NotPermitted, SchemaError
from awa_py.invalid_jobs import InvalidJobs
from awa_py.maintenance.cron import sync
from awa_py.maintenance.loop import MaintenanceLoop
from awa_py.maintenance.queue_gauges import QueueGauges
from awa_py.maintenance.rescue import Watch
from awa_py.maintenance.tasks import all_tasks
from awa_py.model.registry import CronDefinition
from awa_py.observability.checks import HealthCheck, problems
from awa_py.observability.logs import LogThrottle
from awa_py.observability.metrics import Metrics
from awa_py.settings import Settings
from awa_py.store import election
from awa_py.store.election import LockHolder
from awa_py.store.session import Session
from awa_py.text import describe

logger = logging.getLogger("awa.maintenance")

LOCK_TIMEOUT_MS = "500"
ANSWER_MARGIN_S = 1.0
MIN_SESSION_S = 2.0  # a session that is lost sooner could not be used


class Candidate:
    """Takes part in the election until it is cancelled. Runs the maintenance tasks while it leads."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        schedules: Sequence[CronDefinition],
        metrics: Metrics,
        process_id: UUID,
    ) -> None:
        self._database = database
        self._settings = settings
        self._schedules = schedules
        self._metrics = metrics
        self._reader = NotificationReader(metrics)
        self._process_id = process_id
        # PostgreSQL gives up on a statement sooner than this. No answer until then means that the connection is dead.
        self._answer_timeout_s = settings.leader_timeout.total_seconds() + ANSWER_MARGIN_S
        self._connection = ReconnectingConnection(
            database, "leader", metrics, _session_settings(settings), fail_fast=True
        )
        self._thread = LoopThread("awa-maintenance", self.run)
        self._leader_resigned = asyncio.Event()
        self._loop: MaintenanceLoop | None = None
        self._problem: str | None = "not taking part in the election: the database has not been reached yet"
        self._invalid_jobs = InvalidJobs(metrics, silence=settings.heartbeat_staleness)
        self._log_throttle = LogThrottle(logger)
        self.is_leader = False

    def problems(self) -> list[str]:
        """Return why it does not take part in the election; empty if it does, or leads. Thread-safe."""
        return problems(self.checks())

    def checks(self) -> list[HealthCheck]:
        """Return its state for the health pages. Thread-safe."""
        reason = self._connection.problem
        problem = f"{self._problem}: {reason}" if self._problem and reason else self._problem
        loop = self._loop
        return [
            HealthCheck("leadership", problem, {"leading": self.is_leader}),
            *(loop.checks() if loop is not None else ()),
            self._invalid_jobs.check(),
        ]

    def start(self) -> None:
        """Take part in the election in a thread of its own."""
        self._thread.start()

    async def stop(self) -> None:
        await self._thread.stop()

    def responds(self, within_s: float) -> bool:
        """Return False if it runs in a thread of its own that has not answered for this long."""
        return self._thread.responds(within_s)

    async def run(self) -> None:
        """Take part in the election until cancelled."""
        schema = self._database.schema
        is_synced = False
        try:
            while True:
                connection = await self._connection.get()
                connected_at = time.monotonic()
                session = Session(connection, schema)
                try:
                    await connection.add_listener(schema.leader_channel, self._handle_payload)
                    with translate_permission_errors(schema):
                        if not is_synced:
                            await migrations.check(connection, schema)
                            await sync(session, self._schedules)
                            is_synced = True
                        self._problem = None
                        await self._wait_for_lock(session)
                        await self._lead(session)
                except CONNECTION_LOST as error:
                    self._problem = f"the session for the election was lost: {describe(error)}"
                    message = "the session for the election was lost, connecting again: %s"
                    self._log_throttle.log(logging.WARNING, "lost", message, describe(error))
                    if time.monotonic() - connected_at < MIN_SESSION_S:  # the server may be read-only
                        await asyncio.sleep(self._settings.election_interval.total_seconds())
                except (SchemaError, NotPermitted, *INVALID_DATA, asyncpg.PostgresError) as error:
                    self._problem = f"cannot take part in the election: {describe(error)}"
                    message = "cannot take part in the election: %s"
                    self._log_throttle.log(logging.ERROR, "refused", message, describe(error))
                    await asyncio.sleep(self._settings.election_interval.total_seconds())
                self._connection.drop()
        finally:
            self._problem = "no longer taking part in the election"
            await self._connection.close()

    async def _wait_for_lock(self, session: Session) -> None:
        interval_s = self._settings.election_interval.total_seconds()
        checked_at = time.monotonic()
        suspects: set[int] = set()
        while not await self._try_lock(session):
            if time.monotonic() - checked_at > self._settings.leader_check_interval.total_seconds():
                holders = await election.list_lock_holders(session, silence=self._settings.leader_timeout)
                if any(holder.is_frozen for holder in holders):
                    await self._terminate_frozen_leader(session)
                foreign = [holder for holder in holders if not holder.leads]
                # A new leader has to write its row first: a session counts if it was there at the last look, too.
                self._set_foreign_lock_holders([holder for holder in foreign if holder.pid in suspects])
                suspects = {holder.pid for holder in foreign}
                checked_at = time.monotonic()
            await wait_for_event(self._leader_resigned, interval_s)
            self._leader_resigned.clear()
        self._set_foreign_lock_holders(())

    async def _try_lock(self, session: Session) -> bool:
        async with asyncio.timeout(self._answer_timeout_s):
            return await election.try_lead(session)

    async def _terminate_frozen_leader(self, session: Session) -> None:
        try:
            if await election.terminate_frozen_leader(session, silence=self._settings.leader_timeout):
                logger.warning("the leader was silent for too long: its session was ended")
        except asyncpg.InsufficientPrivilegeError as error:
            message = "the leader was silent for too long, but its session belongs to another role: %s"
            self._log_throttle.log(logging.WARNING, "frozen", message, describe(error))

    def _set_foreign_lock_holders(self, holders: Sequence[LockHolder]) -> None:
        self._metrics.foreign_lock_holders.set(len(holders))
        self._problem = None
        if holders:
            holder = holders[0]
            self._problem = f"no process can lead: {holder} holds the leader's lock: {holder.remedy}"
            self._log_throttle.log(logging.ERROR, "foreign", "%s", self._problem)

    async def _lead(self, session: Session) -> None:
        tasks = all_tasks(
            self._settings, self._schedules, self._metrics, watch=Watch(), invalid_jobs=self._invalid_jobs
        )
        loop = self._loop = MaintenanceLoop(tasks, self._metrics, batch_timeout_s=self._answer_timeout_s)
        session.connection.add_termination_listener(lambda _: loop.handle_session_end())
        try:
            epoch = await election.record_election(
                session, worker_id=self._process_id, hostname=socket.gethostname(), pid=os.getpid()
            )
            self._set_leader(True)
            self._metrics.elections.inc()
            self._metrics.epoch.set(epoch)
            logger.info("elected as the leader, epoch %d", epoch)
            async with self._queue_gauges():
                await loop.run(session)
        except asyncio.CancelledError:
            self._set_leader(False)
            await self._resign(session)
            raise
        finally:
            self._set_leader(False)
            self._loop = None

    @asynccontextmanager
    async def _queue_gauges(self) -> AsyncIterator[None]:
        """Refresh the gauges of the queues in the meantime, if metrics are exported."""
        if not self._metrics.timing:
            yield
            return
        gauges = QueueGauges(self._database, self._settings, self._metrics)
        refreshing = asyncio.create_task(gauges.run(), name="awa queue gauges")
        try:
            yield
        finally:
            await cancel_and_wait(refreshing)

    async def _resign(self, session: Session) -> None:
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                await election.resign(session)
            logger.info("resigned")
        except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
            logger.info("the session ended before the leader could resign: %s", describe(error))

    def _set_leader(self, is_leader: bool) -> None:
        self.is_leader = is_leader
        self._metrics.is_leader.set(is_leader)

    def _handle_payload(self, _connection: object, pid: int, channel: str, payload: object) -> None:
        notification = self._reader.read(channel, pid, payload)
        if notification is None:
            return
        if notification.topic is Topic.RESIGNED:
            self._leader_resigned.set()
        elif self._loop is not None:
            self._loop.handle_notification(notification.topic)


def _session_settings(settings: Settings) -> dict[str, str]:
    """Return settings with which PostgreSQL ends the session of a frozen leader."""
    timeout_ms = str(int(settings.leader_timeout.total_seconds() * 1000))
    return {
        "idle_session_timeout": timeout_ms,
        "idle_in_transaction_session_timeout": timeout_ms,
        "statement_timeout": timeout_ms,
        "lock_timeout": LOCK_TIMEOUT_MS,
    }
