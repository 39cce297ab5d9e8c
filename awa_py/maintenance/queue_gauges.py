"""Reads what the queues hold, for the metrics of whoever leads.

On a connection of its own: counting ten million jobs takes seconds, and no maintenance waits for it. Each table is
counted every interval, but for no more than a twentieth of the time; what an index says at once is read every interval.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from logging import ERROR, WARNING
from operator import attrgetter

import asyncpg

from awa_py.db.database import Database
from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.model.job import State
from awa_py.observability.logs import LogThrottle
from awa_py.observability.metrics import (
    BACKLOG,
    COUNTED,
    DUE_LAG,
    MAX_QUEUE_LABELS,
    OTHER_QUEUES,
    QUEUE_JOBS,
    QUEUE_MAX_WORKERS,
    QUEUE_PAUSED,
    QUEUE_THROTTLED,
    QUEUE_WAITING,
    QUEUE_WORKERS,
    STALE_LAG,
    WORKERS,
    GaugeSpec,
    Metrics,
    Value,
)
from awa_py.settings import Settings
from awa_py.store import queue_metrics
from awa_py.store.queue_metrics import QueueMetrics
from awa_py.store.session import Session
from awa_py.text import describe, format_frames

logger = logging.getLogger("awa.lookout")

STATES = {
    "ready": (State.AVAILABLE,),
    "running": (State.RUNNING,),
    "scheduled": (State.SCHEDULED, State.RETRYABLE, State.WAITING),
    "dead": (State.FAILED, State.CANCELLED),
}
OF_QUEUE: dict[GaugeSpec, Callable[[QueueMetrics], float | None]] = {  # None: it has none
    QUEUE_PAUSED: attrgetter("paused"),
    QUEUE_THROTTLED: attrgetter("throttled"),
    QUEUE_MAX_WORKERS: attrgetter("max_workers"),
    QUEUE_WAITING: attrgetter("waiting_s"),
    QUEUE_WORKERS: attrgetter("workers"),
}
REST = 20  # a table that was counted rests so many times as long as that took
BACKLOG_COUNTED = 100_000
SETTINGS = {"statement_timeout": "60s", "max_parallel_workers_per_gather": "0", "jit": "off"}


@dataclass(frozen=True, slots=True)
class Count:
    """The jobs of one table, by queue and state, as they were at a moment."""

    at: float
    jobs: Mapping[tuple[str, str], int]


class QueueGauges:
    """Looks at the queues as long as its process leads; then its gauges are gone."""

    def __init__(self, database: Database, settings: Settings, metrics: Metrics) -> None:
        self._database = database
        self._settings = settings
        self._metrics = metrics
        self._counts: dict[str, Count] = {}
        self._rest_until = dict.fromkeys(STATES, 0.0)
        self._crowded = False
        self._log_throttle = LogThrottle(logger)

    async def run(self) -> None:
        """Looks every interval, until it is cancelled."""
        link = ReconnectingConnection(self._database, "metrics", self._metrics, SETTINGS)
        try:
            while True:
                next_look = time.monotonic() + self._settings.metrics_interval.total_seconds()
                try:
                    await self.look(Session(await link.get(), self._database.schema))
                except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
                    self._log_throttle.log(
                        WARNING, "refused", "the queues could not be read for the metrics: %s", describe(error)
                    )
                    self._forget(link)
                except Exception as error:
                    words = (describe(error), format_frames(error))
                    self._log_throttle.log(
                        ERROR, "failed", "the queues could not be read for the metrics: %s\n%s", *words
                    )
                    self._forget(link)
                await asyncio.sleep(max(0.0, next_look - time.monotonic()))
        finally:
            self._forget(link)
            self._log_throttle.close()

    def _forget(self, link: ReconnectingConnection) -> None:
        """Rather no figures than those that were right once."""
        self._metrics.leader.source = None
        link.drop()

    async def look(self, session: Session) -> None:
        """Reads everything that is due, and shows it."""
        for table, rest_until in self._rest_until.items():
            if time.monotonic() >= rest_until:
                await self._count(session, table)
        queues = await queue_metrics.read_queue_metrics(session, staleness=self._settings.heartbeat_staleness)
        lag = await queue_metrics.read_maintenance_lag(
            session,
            staleness=self._settings.heartbeat_staleness,
            failed_retention=self._settings.failed_retention,
            completed_retention=self._settings.completed_retention,
            limit=BACKLOG_COUNTED,
        )
        values: list[Value] = [
            (WORKERS, (), lag.workers),
            (DUE_LAG, (), lag.promotion_lag_s),
            (STALE_LAG, (), lag.rescue_lag_s),
            (BACKLOG, ("dead",), lag.dead),
            (BACKLOG, ("completed",), lag.completed),
            *((COUNTED, (table,), count.at) for table, count in self._counts.items()),
            *self._queue_values(queues),
        ]
        self._metrics.leader.source = lambda: values

    async def _count(self, session: Session, table: str) -> None:
        began, at = time.monotonic(), time.time()
        try:
            self._counts[table] = Count(at, await queue_metrics.count_queue_jobs(session, table))
        except asyncpg.QueryCanceledError:
            self._counts.pop(table, None)
            logger.warning("the jobs in %s could not be counted within %s", table, SETTINGS["statement_timeout"])
        ended = time.monotonic()
        self._rest_until[table] = ended + REST * (ended - began)

    def _queue_values(self, queues: Iterable[QueueMetrics]) -> Iterator[Value]:
        by_name = {queue.name: queue for queue in queues}
        sizes = dict.fromkeys(by_name, 0)
        for count in self._counts.values():
            for (name, _), jobs in count.jobs.items():
                sizes[name] = sizes.get(name, 0) + jobs
        label = self._labels(sizes)
        shown = [by_name.get(name, QueueMetrics(name, False, 0.0, 0)) for name in sizes]
        for gauge, figure in OF_QUEUE.items():
            most: dict[str, float] = {}
            for queue in shown:
                if (found := figure(queue)) is not None:
                    most[label[queue.name]] = max(most.get(label[queue.name], 0.0), found)
            yield from ((gauge, (name,), value) for name, value in most.items())
        for table, count in self._counts.items():
            jobs_of = {(name, state): 0 for name in label.values() for state in STATES[table]}
            for (name, state), jobs in count.jobs.items():
                jobs_of[label[name], State(state)] += jobs
            yield from ((QUEUE_JOBS, place, jobs) for place, jobs in jobs_of.items())

    def _labels(self, sizes: Mapping[str, int]) -> dict[str, str]:
        """How each queue is called: the largest by their names, the rest together."""
        ranked = sorted(sizes, key=lambda name: (-sizes[name], name))
        if len(ranked) > MAX_QUEUE_LABELS and not self._crowded:
            self._crowded = True
            logger.warning("%d queues: metrics name the %d largest, the others together", len(ranked), MAX_QUEUE_LABELS)
        return {name: name if n < MAX_QUEUE_LABELS else OTHER_QUEUES for n, name in enumerate(ranked)}
