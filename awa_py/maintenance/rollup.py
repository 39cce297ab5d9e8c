"""What ended in each minute, by queue and kind: the figures that remain when the jobs are gone."""

import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import asyncpg

from awa_py.maintenance.task import TaskResult
from awa_py.store import metric_buckets
from awa_py.store.session import Session

AGAIN = 3  # the last minutes are rolled up again: what was under way when they were first is in them now
CATCH_UP = timedelta(hours=1)  # how far a leader goes back that comes after a pause
MINUTE = timedelta(minutes=1)
SHORT_S, LONG_S = 0.1, 0.5  # a batch that took less may have twice as many minutes the next time; more, half as many


@dataclass(slots=True)
class RollUp:
    """The leader's roll-up; it remembers how far it has come, and how many minutes make a batch."""

    retention: timedelta  # of what it writes; 0: it writes nothing
    done: datetime | None = None  # the last minute that it has been through
    minutes: int = AGAIN
    _next: datetime | None = field(default=None, init=False)  # the first minute of the next batch, within a round

    async def run(self, session: Session) -> TaskResult:
        """A few minutes, the oldest first."""
        if not self.retention:
            return TaskResult()
        first, last = await metric_buckets.get_rollup_span(session, again=AGAIN, at_most=CATCH_UP, done=self.done)
        first = first if self._next is None else max(first, self._next)
        until = min(first + self.minutes * MINUTE, last + MINUTE)
        written = await self._roll_up(session, first, until)
        self._next = until if until <= last else None
        if self._next is None:
            self.done = last
        return TaskResult(written, has_more=self._next is not None)

    async def _roll_up(self, session: Session, first: datetime, until: datetime) -> int:
        began = time.monotonic()
        try:
            written = await metric_buckets.roll_up_minutes(session, first, until)
        except asyncpg.QueryCanceledError:
            self.minutes = 1
            raise
        took_s = time.monotonic() - began
        if took_s > LONG_S:
            self.minutes = max(1, self.minutes // 2)
        elif took_s < SHORT_S:
            self.minutes = max(AGAIN, 2 * self.minutes)
        return written
