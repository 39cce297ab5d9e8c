"""Delete what is past its retention, and create the partitions of the coming days."""

import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Protocol

import asyncpg

from awa_py.maintenance.reports import CleanupReport
from awa_py.maintenance.task import TaskResult
from awa_py.store import events, maintenance, metric_buckets, partitions
from awa_py.store.session import Session

logger = logging.getLogger("awa.cleanup")

DAYS_AHEAD = 7
ROWS_PER_BATCH = 5_000
UNIQUE_KEYS_PER_BATCH = 1_000


@dataclass(slots=True, kw_only=True)
class Cleanup:
    """Deletes old rows. Remembers the last unique key, and the last jobs with signals or payloads, that it checked."""

    completed_retention: timedelta
    failed_retention: timedelta
    events_retention: timedelta
    rollup_retention: timedelta
    staleness: timedelta
    last_key: str = ""
    last_job: int = 0
    last_payload: int = 0

    async def run(self, session: Session) -> TaskResult:
        """Delete one bounded batch of each kind."""
        limit = ROWS_PER_BATCH
        partitions_report = await self._rotate_partitions(session)
        dead = await maintenance.delete_dead_jobs(session, retention=self.failed_retention, limit=limit)
        next_key, keys = await maintenance.delete_free_unique_keys(
            session, after=self.last_key, limit=UNIQUE_KEYS_PER_BATCH
        )
        self.last_key = next_key or ""
        next_job, signals = await maintenance.delete_stray_signals(session, after=self.last_job, limit=limit)
        self.last_job = next_job or 0
        # One window per run: few jobs are deleted by hand, and most payloads have a job.
        next_payload, payloads = await maintenance.delete_stray_payloads(session, after=self.last_payload, limit=limit)
        self.last_payload = next_payload or 0
        workers = await maintenance.delete_stale_workers(session, staleness=self.staleness)
        minutes = await metric_buckets.delete_old_buckets(session, retention=self.rollup_retention, limit=limit)
        stray_events = await events.delete_stray_events(session, retention=self.events_retention, limit=limit)
        # Last, since it may time out: if queues have their own retention, it may read all jobs of a day.
        completed = await maintenance.delete_completed_jobs(session, retention=self.completed_retention, limit=limit)
        report = partitions_report + CleanupReport(
            completed_jobs=completed,
            dead_jobs=dead,
            unique_keys=keys,
            signals=signals,
            payloads=payloads,
            workers=workers,
            metric_buckets=minutes,
            events=stray_events,
        )
        has_more = limit in (completed, dead, minutes, stray_events) or next_key is not None or next_job is not None
        return TaskResult(report, has_more=has_more)

    async def _rotate_partitions(self, session: Session) -> CleanupReport:
        completed = await _rotate(session, "completed", partitions.drop_completed_partitions, self.completed_retention)
        return completed + await _rotate(session, "events", partitions.drop_event_partitions, self.events_retention)


class _Drop(Protocol):
    def __call__(self, session: Session, *, retention: timedelta) -> Awaitable[int]: ...


async def _rotate(
    session: Session, table: Literal["completed", "events"], drop: _Drop, retention: timedelta
) -> CleanupReport:
    try:
        created = await partitions.create_day_partitions(session, table, days_ahead=DAYS_AHEAD)
        dropped = await drop(session, retention=retention)
        return CleanupReport(created_partitions=created, dropped_partitions=dropped)
    except asyncpg.LockNotAvailableError:
        # A long transaction reads the table. Waiting for the lock would block the writes that queue up behind it, and
        # there are days left to try again.
        logger.info("the partitions of table %s are in use, trying again later", table)
        return CleanupReport()
