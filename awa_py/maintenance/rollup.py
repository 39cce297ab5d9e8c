"""Roll up the jobs that ended in each minute, by queue and kind. The counts remain when the jobs are deleted."""

import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import asyncpg

from awa_py.maintenance.reports import RollUpReport
from awa_py.maintenance.task import TaskResult
from awa_py.store import metric_buckets
from awa_py.store.session import Session

REPEATED_MINUTES = 3  # roll up the last minutes again: transactions that were open the first time are committed now
MAX_CATCH_UP = timedelta(hours=1)  # the span that a new leader rolls up after a time without a leader
MINUTE = timedelta(minutes=1)
FAST_BATCH_S = 0.1  # a faster batch doubles the minutes of the next one
SLOW_BATCH_S = 0.5  # a slower batch halves them


@dataclass(slots=True)
class RollUp:
    """Rolls up minutes in order. Remembers the last one, and adapts the number of minutes per batch."""

    retention: timedelta  # of the roll-ups; 0 disables the task
    rolled_up_until: datetime | None = None
    minutes_per_batch: int = REPEATED_MINUTES
    _next: datetime | None = field(default=None, init=False)  # where the next batch of this round starts

    async def run(self, session: Session) -> TaskResult:
        """Roll up the next minutes, oldest first."""
        if not self.retention:
            return TaskResult(RollUpReport())
        first, last = await metric_buckets.get_rollup_span(
            session, again=REPEATED_MINUTES, at_most=MAX_CATCH_UP, done=self.rolled_up_until
        )
        first = first if self._next is None else max(first, self._next)
        until = min(first + self.minutes_per_batch * MINUTE, last + MINUTE)
        written = await self._roll_up(session, first, until)
        self._next = until if until <= last else None
        if self._next is None:
            self.rolled_up_until = last
        return TaskResult(RollUpReport(metric_buckets=written), has_more=self._next is not None)

    async def _roll_up(self, session: Session, first: datetime, until: datetime) -> int:
        began_at = time.monotonic()
        try:
            written = await metric_buckets.roll_up_minutes(session, first, until)
        except asyncpg.QueryCanceledError:
            self.minutes_per_batch = 1
            raise
        duration_s = time.monotonic() - began_at
        if duration_s > SLOW_BATCH_S:
            self.minutes_per_batch = max(1, self.minutes_per_batch // 2)
        elif duration_s < FAST_BATCH_S:
            self.minutes_per_batch = max(REPEATED_MINUTES, 2 * self.minutes_per_batch)
        return written
