"""What is past its retention goes; what tomorrow needs is made."""

import logging
from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from awa_py.maintenance.task import Batch
from awa_py.store import maintain
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
    staleness: timedelta
    last_key: str = ""

    async def run(self, session: Session) -> Batch:
        """One bounded batch of everything."""
        partitions = await self._turn_partitions(session)
        dead = await maintain.delete_dead_jobs(session, retention=self.failed_retention, limit=BATCH)
        next_key, keys = await maintain.sweep_unique_keys(session, after=self.last_key, limit=KEYS)
        self.last_key = next_key or ""
        workers = await maintain.sweep_workers(session, staleness=self.staleness)
        # Last: where queues have retentions of their own, it may read a day's jobs, and take too long.
        completed = await maintain.delete_completed_jobs(session, retention=self.completed_retention, limit=BATCH)
        return Batch(
            partitions + completed + dead + keys + workers,
            again=completed == BATCH or dead == BATCH or next_key is not None,
        )

    async def _turn_partitions(self, session: Session) -> int:
        try:
            made = await maintain.make_partitions(session, days_ahead=DAYS_AHEAD)
            return made + await maintain.drop_partitions(session, retention=self.completed_retention)
        except asyncpg.LockNotAvailableError:
            # Somebody reads the table in a long transaction. There are days of time: finishes must not queue up
            # behind our lock.
            logger.info("the partitions of completed jobs are in use, trying again later")
            return 0
