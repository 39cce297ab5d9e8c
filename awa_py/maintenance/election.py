"""The election: whoever holds the lock leads, on the session that holds it."""

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
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.db.errors import CONNECTION_LOST, translate_permission_errors
from awa_py.db.listener import Topic, parse_notification
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.errors import NotPermitted, SchemaError
from awa_py.maintenance.cron import sync
from awa_py.maintenance.loop import MaintenanceLoop
from awa_py.maintenance.queue_gauges import QueueGauges
from awa_py.maintenance.tasks import all_tasks
from awa_py.model.registry import CronDefinition
from awa_py.observability.checks import HealthCheck, problems
from awa_py.observability.logs import LogThrottle
from awa_py.observability.metrics import Metrics
from awa_py.settings import Settings
from awa_py.store import election
from awa_py.store.session import Session
from awa_py.text import describe

logger = logging.getLogger("awa.maintenance")

LOCK_PATIENCE_MS = "500"
ANSWER_MARGIN_S = 1.0


class Candidate:
    """Stands for election for ever; while it leads, it does the maintenance."""

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
        self._process_id = process_id
        self._log_throttle = LogThrottle(logger)
        self._thread = LoopThread("awa-maintenance", self.run)
        self._place_is_free: asyncio.Event | None = None
        self._daemon: MaintenanceLoop | None = None
        self._link: ReconnectingConnection | None = None
        self._trouble: str | None = "not standing for election: the database is not reached yet"
        self.is_leader = False

    def problems(self) -> list[str]:
        """What keeps it from standing for election, in sentences; nothing: it stands, or leads. From any thread."""
        return problems(self.checks())

    def checks(self) -> list[HealthCheck]:
        """How it is. From any thread."""
        why = self._link.problem if self._link is not None else ""
        problem = f"{self._trouble}: {why}" if self._trouble and why else self._trouble
        return [HealthCheck("leadership", problem, {"leading": self.is_leader})]

    def start(self) -> None:
        """Stands for election in a thread of its own."""
        self._thread.start()

    async def stop(self) -> None:
        await self._thread.stop()

    def responds(self, within_s: float) -> bool:
        """Whether its thread answers, where it has one."""
        return self._thread.responds(within_s)

    async def run(self) -> None:
        """Stands for election until it is cancelled."""
        self._place_is_free = asyncio.Event()
        timeout_ms = str(int(self._settings.leader_timeout.total_seconds() * 1000))
        settings = {
            **STABLE_PLAN_SETTINGS,
            "idle_session_timeout": timeout_ms,
            "idle_in_transaction_session_timeout": timeout_ms,
            "statement_timeout": timeout_ms,
            "lock_timeout": LOCK_PATIENCE_MS,
        }
        link = self._link = ReconnectingConnection(self._database, "leader", self._metrics, settings, fail_fast=True)
        synced = False
        try:
            while True:
                connection = await link.get()
                session = Session(connection, self._database.schema)
                try:
                    await connection.add_listener(self._database.schema.leader_channel, self._heard)
                    with translate_permission_errors(self._database.schema):
                        if not synced:
                            await migrations.check(connection, self._database.schema)
                            await sync(session, self._schedules)
                            synced = True
                        self._trouble = None
                        await self._stand(session, self._place_is_free)
                except CONNECTION_LOST as error:
                    self._trouble = f"the session for leadership was lost: {describe(error)}"
                    sentence = "the session for leadership was lost, standing again: %s"
                    self._log_throttle.log(logging.WARNING, "lost", sentence, describe(error))
                except (SchemaError, NotPermitted, asyncpg.PostgresError) as error:
                    self._trouble = f"cannot stand for election: {describe(error)}"
                    self._log_throttle.log(logging.ERROR, "stand", "cannot stand for election: %s", describe(error))
                    await asyncio.sleep(self._settings.election_interval.total_seconds())
                link.drop()
        finally:
            self._trouble = "no longer standing for election"
            await link.close()

    async def _stand(self, session: Session, place_is_free: asyncio.Event) -> None:
        """Waits for the lock, and leads while it is held."""
        patience_s = self._settings.election_interval.total_seconds()
        looked_at = time.monotonic()
        while not await self._try_lead(session):
            if time.monotonic() - looked_at > self._settings.leader_check_interval.total_seconds():
                await self._look_at_the_leader(session)
                looked_at = time.monotonic()
            await wait_for_event(place_is_free, patience_s)
            place_is_free.clear()
        await self._lead(session)

    async def _look_at_the_leader(self, session: Session) -> None:
        try:
            if await election.terminate_frozen_leader(session, silence=self._settings.leader_timeout):
                logger.warning("the leader has been silent for too long: its session was ended")
        except asyncpg.InsufficientPrivilegeError as error:
            sentence = "the leader has been silent for too long, and its session is another role's: %s"
            self._log_throttle.log(logging.WARNING, "depose", sentence, describe(error))

    async def _try_lead(self, session: Session) -> bool:
        async with asyncio.timeout(self._answer_s):
            return await election.try_lead(session)

    async def _lead(self, session: Session) -> None:
        daemon = self._daemon = MaintenanceLoop(
            all_tasks(self._settings, self._schedules, self._metrics), self._metrics, batch_timeout_s=self._answer_s
        )
        session.connection.add_termination_listener(lambda _: daemon.handle_session_end())
        try:
            epoch = await election.record_election(
                session, worker_id=self._process_id, hostname=socket.gethostname(), pid=os.getpid()
            )
            self._believe(True)
            self._metrics.elections.inc()
            self._metrics.epoch.set(epoch)
            logger.info("leading, epoch %d", epoch)
            async with self._looking_out():
                await daemon.run(session)
        except asyncio.CancelledError:
            self._believe(False)
            await self._resign(session)
            raise
        finally:
            self._believe(False)
            self._daemon = None

    @asynccontextmanager
    async def _looking_out(self) -> AsyncIterator[None]:
        """Reads the queues for the metrics meanwhile, where somebody is watching."""
        if not self._metrics.timing:
            yield
            return
        looking = asyncio.create_task(
            QueueGauges(self._database, self._settings, self._metrics).run(), name="awa lookout"
        )
        try:
            yield
        finally:
            await cancel_and_wait(looking)

    async def _resign(self, session: Session) -> None:
        try:
            async with asyncio.timeout(self._answer_s):
                await election.resign(session)
            logger.info("resigned")
        except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
            logger.info("the session ended before it could resign: %s", describe(error))

    def _believe(self, leading: bool) -> None:
        self.is_leader = leading
        self._metrics.is_leader.set(leading)

    @property
    def _answer_s(self) -> float:
        """How long an answer may take. PostgreSQL gives up on a statement sooner: silence means a dead connection."""
        return self._settings.leader_timeout.total_seconds() + ANSWER_MARGIN_S

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        topic, _ = parse_notification(str(payload))
        if topic == Topic.RESIGNED and self._place_is_free is not None:
            self._place_is_free.set()
        elif self._daemon is not None:
            self._daemon.handle_notification(topic)
