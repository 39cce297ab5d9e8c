"""Notes what happened to jobs that their rows will forget, and writes it every other second, off the hot path.

A row knows when its job was enqueued, its last start, its end, and its errors. What it does not keep is noted here: how
earlier attempts began, by whom, and that they were repeated, put off or given back. A job that succeeds at its first
attempt, within two seconds, costs nothing.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from uuid import UUID

import asyncpg

from awa_py import durations
from awa_py.background import wait_for_event
from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.db.schema import Schema
from awa_py.observability.logs import LogThrottle
from awa_py.observability.metrics import Metrics
from awa_py.store import events
from awa_py.store.events import JobEvent
from awa_py.store.session import Session
from awa_py.text import describe
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.in_flight import InFlightJobs
from awa_py.worker.outcomes import AttemptOutcome, Released, Snoozed, Throttled

logger = logging.getLogger("awa.worker")

FLUSH_INTERVAL_S = 2.0
MOST_KEPT = 50_000
MOST_A_FLUSH = 2_500  # at about 10 µs each: where all jobs fail, that is a hundredth of the time
LAST_FLUSH_S = 5.0

STARTED, RETRIED, SNOOZED, THROTTLED, RELEASED = "started", "retried", "snoozed", "throttled", "released"
# What becomes of a job that goes on, by the type of its outcome.
GOES_ON: dict[type[AttemptOutcome] | type[None], str] = {
    Snoozed: SNOOZED,
    Throttled: THROTTLED,
    Released: RELEASED,
}
NOT_BEGUN = "before it began"


class EventLog:
    """What is to be noted, until it is written. A crash loses it, and with it not a job."""

    def __init__(
        self,
        link: ReconnectingConnection,
        schema: Schema,
        flights: InFlightJobs,
        metrics: Metrics,
        worker_id: UUID,
        *,
        wanted: bool,
    ) -> None:
        self._link = link
        self._schema = schema
        self._flights = flights
        self._dropped = metrics.timeline_dropped
        self._worker_id = worker_id
        self._wanted = wanted
        self._happenings: deque[JobEvent] = deque()
        self._in_hand = 0  # how many more are being written
        self._noted_until = 0.0  # of what was claimed by then, and ran on, the start is noted
        self._log_throttle = LogThrottle(logger)
        self._soon = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._wanted:
            self._task = asyncio.create_task(self._run(), name="awa timeline")

    async def stop(self) -> None:
        """Writes what it has, as far as that can be done at once."""
        if self._task is None:
            return
        self._stopping = True
        self._soon.set()
        try:
            async with asyncio.timeout(LAST_FLUSH_S):
                await self._task  # not cancelled: what it is writing would be written once more
                while self._happenings and await self._flush():
                    pass
        except TimeoutError:
            logger.debug("the timeline was not written to its end")
        self._dropped.inc(len(self._happenings))
        self._log_throttle.close()
        await self._link.close()

    def flush_soon(self) -> None:
        """The worker is about to stop: what is noted by now should not have to wait for its end."""
        self._soon.set()

    def note(self, event: str, flights: Sequence[ClaimedJob]) -> None:
        """This happened to these jobs, just now."""
        if self._wanted and flights:
            now = time.monotonic()
            self._add([_happening(event, flight, now, _detail(flight)) for flight in flights])

    def _add(self, happenings: Sequence[JobEvent]) -> None:
        room = max(0, MOST_KEPT - self._in_hand - len(self._happenings))
        self._happenings.extend(happenings[:room])
        self._dropped.inc(len(happenings[room:]))

    def _note_long_runs(self) -> None:
        """Whoever dies in the middle of a job should have said that it began with it."""
        long_ago = time.monotonic() - FLUSH_INTERVAL_S
        long = [flight for flight in self._flights if self._noted_until < flight.waiting_since <= long_ago]
        self._add([_happening(STARTED, flight, flight.waiting_since, None) for flight in long])
        self._noted_until = long_ago

    async def _run(self) -> None:
        while not self._stopping:
            await wait_for_event(self._soon, FLUSH_INTERVAL_S)
            self._soon.clear()
            self._note_long_runs()
            await self._flush()

    async def _flush(self) -> bool:
        """Writes what has gathered, as much as goes at once. Whether that went well."""
        batch = [self._happenings.popleft() for _ in range(min(len(self._happenings), MOST_A_FLUSH))]
        if not batch:
            return True
        self._in_hand = len(batch)
        written = False
        try:
            session = Session(await self._link.get(), self._schema)
            await events.write_events(session, self._worker_id, batch, now=time.monotonic())
            written = True
        except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
            words = (len(batch), describe(error))
            self._log_throttle.log(
                logging.WARNING, "events", "%d events of the timeline wait for the database: %s", *words
            )
            self._link.drop()
        finally:
            if not written:  # or not known to be: whoever reads them takes each but once
                self._happenings.extendleft(reversed(batch))
            self._in_hand = 0
        return written


def _happening(event: str, flight: ClaimedJob, at: float, detail: str | None) -> JobEvent:
    return JobEvent(event, flight.id, flight.lease, flight.attempt, at, flight.waiting_since, detail)


def _detail(flight: ClaimedJob) -> str | None:
    match flight.outcome:
        case Snoozed(delay):
            return f"for {durations.text(delay)}"
        case Released():
            return flight.stop or NOT_BEGUN
        case _:
            return None
