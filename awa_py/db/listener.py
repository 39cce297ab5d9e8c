"""The connection that listens for notifications. It reconnects forever; workers also poll, in case one is missed."""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import asyncpg

from awa_py.background import cancel_and_wait, wait_for_event
from awa_py.connections import DedicatedConnection
from awa_py.db.database import Database
from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.observability.checks import HealthCheck
from awa_py.observability.logs import LogThrottle
from awa_py.observability.metrics import Metrics
from awa_py.text import describe

logger = logging.getLogger("awa.notify")

PING_INTERVAL_S = 15.0
PING_TIMEOUT_S = 10.0


class Topic(StrEnum):
    """The word before the colon of a notification.

    Every login may send notifications, so they are hints: each makes a process look at the tables, and nothing else.
    DUE, CRON and RESIGNED go to the leader and the candidates, QUEUES to them and to the workers, the rest to workers.
    """

    READY = "ready"  # ready:QUEUE       the queue has jobs to claim
    CANCEL = "cancel"  # cancel:ID:LEASE   a running job may be about to be cancelled
    LOST = "lost"  # lost:ID:LEASE     a running job may have been rescued from its worker
    QUEUES = "queues"  # queues:NAME       an operator changed a queue, or the leader changed its shares
    WORKERS = "workers"  # workers:ID        an operator sent a worker a directive
    DUE = "due"  # due:              a job will be due within seconds
    CRON = "cron"  # cron:NAME         a schedule was added or changed
    RESIGNED = "resigned"  # resigned:         the leader resigned


_LEASE = re.compile(r"([0-9]{1,18}):([0-9]{1,9})")
_SUBJECTS = {
    Topic.READY: re.compile(".+", re.DOTALL),
    Topic.CANCEL: _LEASE,
    Topic.LOST: _LEASE,
    Topic.QUEUES: re.compile(".*", re.DOTALL),  # empty: any queue
    Topic.WORKERS: re.compile("[0-9a-f-]{36}"),
    Topic.DUE: re.compile(""),
    Topic.CRON: re.compile(".+", re.DOTALL),
    Topic.RESIGNED: re.compile(""),
}


@dataclass(frozen=True, slots=True)
class Notification:
    """A well-formed notification. `subject` is the text after the colon."""

    topic: Topic
    subject: str

    @property
    def job(self) -> tuple[int, int]:
        """Return the id and the lease that a notification of CANCEL or LOST names."""
        job_id, _, lease = self.subject.partition(":")
        return int(job_id), int(lease)


def parse_notification(payload: str) -> Notification | None:
    """Return the notification, or None if it is malformed."""
    name, _, subject = payload.partition(":")
    try:
        topic = Topic(name)
    except ValueError:
        return None
    return Notification(topic, subject) if _SUBJECTS[topic].fullmatch(subject) else None


class NotificationReader:
    """Parses notifications. Counts the malformed ones, and logs the first of them."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._has_logged = False

    def read(self, channel: str, pid: int, payload: object) -> Notification | None:
        notification = parse_notification(str(payload))
        if notification is None:
            self._metrics.malformed_notifications.inc()
            if not self._has_logged:
                self._has_logged = True
                message = "ignored a malformed notification on channel %s, sent by the session with PID %d: %.100r"
                logger.warning(message, channel, pid, payload)
        return notification


class Listener:
    """Listens on the workers' channel."""

    def __init__(self, database: Database, metrics: Metrics) -> None:
        self._connection = ReconnectingConnection(database, "listener", metrics)
        self._metrics = metrics
        self._channel = database.schema.channel
        self._reader = NotificationReader(metrics)
        self._notification_callbacks: list[Callable[[Notification], None]] = []
        self._subscribed_callbacks: list[Callable[[], None]] = []
        self._log_throttle = LogThrottle(logger)
        self._task: asyncio.Task[None] | None = None
        self.active = False

    def on_notification(self, callback: Callable[[Notification], None]) -> None:
        """Call the function with each well-formed notification."""
        self._notification_callbacks.append(callback)

    def on_subscribed(self, callback: Callable[[], None]) -> None:
        """Call the function after every LISTEN, also a repeated one: notifications may have been missed until then."""
        self._subscribed_callbacks.append(callback)

    def start(self) -> None:
        self._task = asyncio.create_task(self.run(), name="awa listener")

    async def stop(self) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)

    def checks(self) -> list[HealthCheck]:
        return [HealthCheck("listening", None if self.active else "not listening for notifications: the worker polls")]

    async def run(self) -> None:
        try:
            while True:
                connection = await self._connection.get()
                ended = asyncio.Event()
                try:
                    connection.add_termination_listener(lambda *_, e=ended: e.set())
                    await connection.add_listener(self._channel, self._handle_payload)
                    self.active = True
                    for callback in self._subscribed_callbacks:
                        callback()
                    await self._ping_until(ended, connection)
                except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
                    self._log_throttle.log(
                        logging.WARNING, "interrupted", "listening was interrupted: %s", describe(error)
                    )
                if self.active:
                    self._metrics.fallbacks.inc()
                self.active = False
                self._connection.drop()
        finally:
            self.active = False
            self._connection.drop()

    async def _ping_until(self, ended: asyncio.Event, connection: DedicatedConnection) -> None:
        while not ended.is_set():
            if not await wait_for_event(ended, PING_INTERVAL_S):
                await connection.execute("SELECT 1", timeout=PING_TIMEOUT_S)

    def _handle_payload(self, _connection: Any, pid: int, channel: str, payload: object) -> None:
        notification = self._reader.read(channel, pid, payload)
        if notification is not None:
            for callback in self._notification_callbacks:
                callback(notification)
