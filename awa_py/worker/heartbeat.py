"""The heartbeat: a thread of its own with its own connection, so that a handler that blocks the event loop does not
look dead."""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import timedelta

import asyncpg

from awa_py.config import Settings
from awa_py.db import LOST, STEADY_PLANS, Database, Link, describe
from awa_py.logs import Tally
from awa_py.loops import LoopThread, wait_for_any
from awa_py.metrics import Metrics
from awa_py.store import heartbeat as store
from awa_py.store.heartbeat import WorkerInfo
from awa_py.store.session import Session
from awa_py.worker.bell import Bell
from awa_py.worker.flight import Flight, Stop
from awa_py.worker.flights import Flights

logger = logging.getLogger("awa.heartbeat")

CANCEL_POLL_S = 1.0
FAILED_BEAT_PAUSE_S = 1.0


class Heart:
    """Renews the leases of all jobs in flight, and learns which are lost and which are to be cancelled.

    A worker that cannot beat stops claiming, and stops its handlers before their leases run out.
    """

    def __init__(
        self,
        database: Database,
        worker: WorkerInfo,
        settings: Settings,
        flights: Flights,
        metrics: Metrics,
        *,
        bell: Bell,
        listening: Callable[[], bool],
        tell: Callable[[Flight, Stop], None],
    ) -> None:
        self._database = database
        self._worker = worker
        self._flights = flights
        self._metrics = metrics
        self._bell = bell
        self._listening = listening
        self._tell = tell
        self._tally = Tally(logger)
        self._own_interval_s = self._interval_s = settings.heartbeat_interval.total_seconds()
        self._own_staleness_s = self._staleness_s = settings.heartbeat_staleness.total_seconds()
        self._last_beat = time.monotonic()
        self._thread = LoopThread("awa-heartbeat", self._main)
        self._wake: asyncio.Event | None = None

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        await self._thread.stop()

    def turns(self, within_s: float) -> bool:
        """Whether its thread answers. Without a database it does."""
        return self._thread.turns(within_s)

    def beat_now(self) -> None:
        """Beats at once: what a queue's row says about staleness may have changed."""
        if self._wake is not None:
            self._thread.call(self._wake.set)

    @property
    def silent_s(self) -> float:
        """How long ago the last heartbeat got through."""
        return time.monotonic() - self._last_beat

    @property
    def healthy(self) -> bool:
        """Whether new leases would be renewed in time."""
        return self.silent_s < (self._interval_s + self._staleness_s) / 2

    async def _main(self) -> None:
        self._wake = asyncio.Event()
        link = Link(self._database, "heartbeat", self._metrics, STEADY_PLANS)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._beat_for_ever(link, self._wake))
                tasks.create_task(self._fence_for_ever())
        finally:
            await link.close()

    async def _beat_for_ever(self, link: Link, wake: asyncio.Event) -> None:
        next_beat = 0.0
        while True:
            try:
                session = Session(await link.connection(), self._database.schema)
                if wake.is_set() or time.monotonic() >= next_beat:
                    wake.clear()
                    await self._beat(session)
                    next_beat = time.monotonic() + self._interval_s
                else:
                    await self._look_for_cancels(session)
            except (*LOST, asyncpg.PostgresError) as error:
                self._tally.log(logging.WARNING, "beat", "a heartbeat failed: %s", describe(error))
                link.drop()
                await asyncio.sleep(FAILED_BEAT_PAUSE_S)
                continue
            patience_s = next_beat - time.monotonic()
            await wait_for_any(wake, max(0.0, patience_s if self._listening() else min(patience_s, CANCEL_POLL_S)))

    async def _beat(self, session: Session) -> None:
        began = time.monotonic()
        interval_s, staleness_s = self._pace(await store.beat_worker(session, self._worker, listening=self._bell.hung))
        fresh_s = min(interval_s, staleness_s - interval_s) / 2
        old = sorted(
            (flight for flight in self._flights if began - flight.renewed_at > fresh_s),
            key=lambda flight: flight.id,
        )
        if old:
            ours = await store.beat_jobs(session, [flight.id for flight in old], [flight.lease for flight in old])
            for flight in old:
                if flight.id not in ours:
                    self._tell(flight, Stop.LOST)
                    continue
                flight.renewed_at = began
                if ours[flight.id]:
                    self._tell(flight, Stop.CANCELLED)
        # Only now: by a shorter staleness, a lease that was not renewed yet would seem to have run out.
        self._interval_s, self._staleness_s = interval_s, staleness_s
        self._last_beat = began

    def _pace(self, shortest: timedelta | None) -> tuple[float, float]:
        """The interval and the staleness, as the shortest staleness of the worker's queues asks for."""
        if shortest is None or shortest.total_seconds() >= self._own_staleness_s:
            return self._own_interval_s, self._own_staleness_s
        staleness_s = shortest.total_seconds()
        return min(self._own_interval_s, staleness_s / 3), staleness_s

    async def _fence_for_ever(self) -> None:
        """Stops handlers whose lease is about to run out: somebody else may have their jobs soon."""
        while True:
            await asyncio.sleep(_margin_s(self._staleness_s) / 2)
            patience_s = self._staleness_s - _margin_s(self._staleness_s)
            now = time.monotonic()
            for flight in self._flights:
                if flight.stop is None and now > flight.renewed_at + patience_s:
                    sentence = "%s: no heartbeat got through, its lease runs out: stopping it"
                    self._tally.log(logging.ERROR, flight.kind, sentence, flight, extra=flight.fields())
                    self._tell(flight, Stop.FENCED)

    async def _look_for_cancels(self, session: Session) -> None:
        """Where notifications cannot be heard, cancels are looked for."""
        flights = list(self._flights)
        if flights:
            ids, leases = [flight.id for flight in flights], [flight.lease for flight in flights]
            unwanted = set(await store.list_cancel_requests(session, ids, leases))
            for flight in flights:
                if flight.id in unwanted:
                    self._tell(flight, Stop.CANCELLED)


def _margin_s(staleness_s: float) -> float:
    """How long before the end of its lease a handler is stopped."""
    return min(5.0, staleness_s / 10)
