"""Read the queues for the leader's metrics.

It has its own connection: counting ten million jobs takes seconds, and no maintenance task should wait for that. Each
table is counted every interval, but for at most a twentieth of the time. Values that an index provides immediately are
read every interval.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
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

logger = logging.getLogger("awa.queue_gauges")

STATES = {
    "ready": (State.AVAILABLE,),
    "running": (State.RUNNING,),
    "scheduled": (State.SCHEDULED, State.RETRYABLE, State.WAITING),
    "dead": (State.FAILED, State.CANCELLED),
}
QUEUE_GAUGES: dict[GaugeSpec, Callable[[QueueMetrics], float | None]] = {  # None: the queue has no such value
    QUEUE_PAUSED: attrgetter("paused"),
    QUEUE_THROTTLED: attrgetter("throttled"),
    QUEUE_MAX_WORKERS: attrgetter("max_workers"),
    QUEUE_WAITING: attrgetter("waiting_s"),
    QUEUE_WORKERS: attrgetter("workers"),
}
COUNT_PAUSE_FACTOR = 20  # after a count of a table, pause this many times its duration
MAX_BACKLOG_COUNT = 100_000
SESSION_SETTINGS = {"statement_timeout": "60s", "max_parallel_workers_per_gather": "0", "jit": "off"}


@dataclass(frozen=True, slots=True)
class TableCount:
    """The number of jobs in one table by queue and state, and when they were counted."""

    counted_at: float
    jobs: Mapping[tuple[str, str], int]


class QueueGauges:
    """Refreshes the gauges of the queues while its process leads, and removes them afterwards."""

    def __init__(self, database: Database, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._schema = database.schema
        self._connection = ReconnectingConnection(database, "metrics", metrics, SESSION_SETTINGS)
        self._counts: dict[str, TableCount] = {}
        self._next_count_at = dict.fromkeys(STATES, 0.0)
        self._warned_of_many_queues = False
        self._log_throttle = LogThrottle(logger)

    async def run(self) -> None:
        """Refresh the gauges every interval until cancelled."""
        message = "the queues could not be read for the metrics: %s"
        try:
            while True:
                next_at = time.monotonic() + self._settings.metrics_interval.total_seconds()
                try:
                    await self.refresh(Session(await self._connection.get(), self._schema))
                except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
                    self._log_throttle.log(logging.WARNING, "refused", message, describe(error))
                    self._remove()
                except Exception as error:
                    self._log_throttle.log(
                        logging.ERROR, "failed", f"{message}\n%s", describe(error), format_frames(error)
                    )
                    self._remove()
                await asyncio.sleep(max(0.0, next_at - time.monotonic()))
        finally:
            self._remove()
            self._log_throttle.close()

    def _remove(self) -> None:
        """Remove the gauges and drop the connection: no values are better than outdated ones."""
        self._metrics.leader.source = None
        self._connection.drop()

    async def refresh(self, session: Session) -> None:
        """Count the tables whose pause is over, read everything else, and set the gauges."""
        for table, next_at in self._next_count_at.items():
            if time.monotonic() >= next_at:
                await self._count(session, table)
        queues = await queue_metrics.read_queue_metrics(session, staleness=self._settings.heartbeat_staleness)
        lag = await queue_metrics.read_maintenance_lag(
            session,
            staleness=self._settings.heartbeat_staleness,
            failed_retention=self._settings.failed_retention,
            completed_retention=self._settings.completed_retention,
            limit=MAX_BACKLOG_COUNT,
        )
        values: list[Value] = [
            (WORKERS, (), lag.workers),
            (DUE_LAG, (), lag.promotion_lag_s),
            (STALE_LAG, (), lag.rescue_lag_s),
            (BACKLOG, ("dead",), lag.dead),
            (BACKLOG, ("completed",), lag.completed),
            *((COUNTED, (table,), count.counted_at) for table, count in self._counts.items()),
            *self._queue_values(queues),
        ]
        self._metrics.leader.source = lambda: values

    async def _count(self, session: Session, table: str) -> None:
        began_at, counted_at = time.monotonic(), time.time()
        try:
            self._counts[table] = TableCount(counted_at, await queue_metrics.count_queue_jobs(session, table))
        except asyncpg.QueryCanceledError:
            self._counts.pop(table, None)
            timeout = SESSION_SETTINGS["statement_timeout"]
            logger.warning("the jobs in %s could not be counted within %s", table, timeout)
        ended_at = time.monotonic()
        self._next_count_at[table] = ended_at + COUNT_PAUSE_FACTOR * (ended_at - began_at)

    def _queue_values(self, queues: Iterable[QueueMetrics]) -> Iterator[Value]:
        by_name = {queue.name: queue for queue in queues}
        sizes = dict.fromkeys(by_name, 0)
        for count in self._counts.values():
            for (name, _), jobs in count.jobs.items():
                sizes[name] = sizes.get(name, 0) + jobs
        labels = self._labels(sizes)
        shown = [by_name.get(name, QueueMetrics(name=name, paused=False, waiting_s=0.0, workers=0)) for name in sizes]
        for gauge, get_value in QUEUE_GAUGES.items():
            maxima: dict[str, float] = {}
            for queue in shown:
                if (value := get_value(queue)) is not None:
                    label = labels[queue.name]
                    maxima[label] = max(maxima.get(label, 0.0), value)
            yield from ((gauge, (label,), value) for label, value in maxima.items())
        for table, count in self._counts.items():
            totals = {(label, state): 0 for label in labels.values() for state in STATES[table]}
            for (name, state), jobs in count.jobs.items():
                totals[labels[name], State(state)] += jobs
            yield from ((QUEUE_JOBS, key, jobs) for key, jobs in totals.items())

    def _labels(self, sizes: Mapping[str, int]) -> dict[str, str]:
        """Return the label of each queue: its name for the largest ones, a common label for the others."""
        ranked = sorted(sizes, key=lambda name: (-sizes[name], name))
        if len(ranked) > MAX_QUEUE_LABELS and not self._warned_of_many_queues:
            self._warned_of_many_queues = True
            logger.warning("%d queues: metrics name the %d largest, the others together", len(ranked), MAX_QUEUE_LABELS)
        return {name: name if n < MAX_QUEUE_LABELS else OTHER_QUEUES for n, name in enumerate(ranked)}
