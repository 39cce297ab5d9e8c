"""The one connection of a process that listens. It is made anew for ever; polling beside it is the net."""

import asyncio
import logging
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import asyncpg

from awa_py.background import wait_for_event
from awa_py.db.connections import CONNECTION_LOST, Database, ReconnectingConnection, describe
from awa_py.observability.logs import LogThrottle
from awa_py.observability.metrics import Metrics

logger = logging.getLogger("awa.notify")

PING_INTERVAL_S = 15.0
PING_TIMEOUT_S = 10.0


class Topic(StrEnum):
    """What a notification is about: the word before its colon. The last three go to leader and candidates, and so do
    changes of queues."""

    READY = "ready"  # ready:QUEUE       something can be claimed
    CANCEL = "cancel"  # cancel:ID:LEASE   somebody wants a running job to stop
    LOST = "lost"  # lost:ID:LEASE     a running job was taken from its worker
    QUEUES = "queues"  # queues:NAME       an operator changed a queue, or the leader its parts
    WORKERS = "workers"  # workers:ID        an operator told a worker something
    DUE = "due"  # due:              a job will be due within seconds
    CRON = "cron"  # cron:NAME         a schedule was added or changed
    RESIGNED = "resigned"  # resigned:         the leader's place is free


def parse(payload: str) -> tuple[str, str]:
    """The topic of a notification and what follows it."""
    topic, _, subject = payload.partition(":")
    return topic, subject


class Listener:
    """Hears what is said to this installation, and says when it began (again) to listen."""

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        *,
        heard: Callable[[str, str], None],
        listening: Callable[[], None],
    ) -> None:
        self._link = ReconnectingConnection(database, "listener", metrics)
        self._metrics = metrics
        self._channel = database.schema.channel
        self._heard = heard
        self._listening = listening
        self._log_throttle = LogThrottle(logger)
        self.active = False

    async def run(self) -> None:
        """Listens until it is cancelled."""
        try:
            while True:
                connection = await self._link.get()
                ended = asyncio.Event()
                try:
                    connection.add_termination_listener(lambda *_, e=ended: e.set())
                    await connection.add_listener(self._channel, self._on_notification)
                    self.active = True
                    self._listening()
                    await self._watch(connection, ended)
                except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
                    self._log_throttle.log(
                        logging.WARNING, "interrupted", "listening was interrupted: %s", describe(error)
                    )
                if self.active:
                    self._metrics.fallbacks.inc()
                self.active = False
                self._link.drop()
        finally:
            self.active = False
            self._link.drop()

    async def _watch(self, connection: Any, ended: asyncio.Event) -> None:
        while not ended.is_set():
            if not await wait_for_event(ended, PING_INTERVAL_S):
                await connection.execute("SELECT 1", timeout=PING_TIMEOUT_S)

    def _on_notification(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        self._heard(*parse(str(payload)))
