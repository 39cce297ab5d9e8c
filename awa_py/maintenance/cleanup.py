"""What is past its retention goes; what tomorrow needs is made."""

import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg

from awa_py.maintenance.task import TaskResult
from awa_py.store import events, maintenance, metric_buckets, partitions
from awa_py.store.session import Session

logger = logging.getLogger("awa.cleanup")

DAYS_AHEAD = 7
BATCH = 5_000
KEYS = 1_000


@dataclass(slots=True, kw_only=True)
class Cleanup:
    """The leader's cleanup; it remembers how far it has come with the unique keys."""

    completed_retention: timedelta
    failed_retention: timedelta
    events_retention: timedelta
    rollup_retention: timedelta
    staleness: timedelta
    last_key: str = ""

    async def run(self, session: Session) -> TaskResult:
        """One bounded batch of everything."""
        days = await self._turn_partitions(session)
        dead = await maintenance.delete_dead_jobs(session, retention=self.failed_retention, limit=BATCH)
        next_key, keys = await maintenance.delete_free_unique_keys(session, after=self.last_key, limit=KEYS)
        self.last_key = next_key or ""
        workers = await maintenance.delete_stale_workers(session, staleness=self.staleness)
        minutes = await metric_buckets.delete_old_buckets(session, retention=self.rollup_retention, limit=BATCH)
        strays = await events.delete_stray_events(session, retention=self.events_retention, limit=BATCH)
        # Last: where queues have retentions of their own, it may read a day's jobs, and take too long.
        completed = await maintenance.delete_completed_jobs(session, retention=self.completed_retention, limit=BATCH)
        return TaskResult(
            days + completed + dead + minutes + strays + keys + workers,
            has_more=BATCH in (completed, dead, minutes, strays) or next_key is not None,
        )

    async def _turn_partitions(self, session: Session) -> int:
        return await _turn(
            "completed jobs",
            partitions.create_day_partitions(session, "completed", days_ahead=DAYS_AHEAD),
            partitions.drop_completed_partitions(session, retention=self.completed_retention),
        ) + await _turn(
            "events",
            partitions.create_day_partitions(session, "events", days_ahead=DAYS_AHEAD),
            partitions.drop_event_partitions(session, retention=self.events_retention),
        )


async def _turn(what: str, make: Coroutine[Any, Any, int], drop: Coroutine[Any, Any, int]) -> int:
    try:
        return await make + await drop
    except asyncpg.LockNotAvailableError:
        # Somebody reads the table in a long transaction. There are days of time: finishes must not queue up behind our
        # lock.
        logger.info("the partitions of %s are in use, trying again later", what)
        return 0
    finally:
        drop.close()
