"""The heartbeat: a thread of its own with its own connection, so that a handler that blocks the event loop does not
look dead.

Every two seconds it says in the registry that the worker is there, and hears what the worker has to do. Leases are
renewed every interval, which is longer.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import asyncpg

from awa_py.background import LoopThread, wait_for_event
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.db.types import DedicatedConnection, Record
from awa_py.observability.logs import LogThrottle
from awa_py.observability.metrics import Metrics
from awa_py.settings import Settings
from awa_py.store import heartbeat as store
from awa_py.store.heartbeat import WorkerInfo
from awa_py.store.session import Session
from awa_py.text import describe
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.claiming.wakeups import Wakeups
from awa_py.worker.directives import Directives, directives_from
from awa_py.worker.in_flight import InFlightJobs
from awa_py.worker.outcomes import StopReason

logger = logging.getLogger("awa.heartbeat")

LOOK_S = 2.0
DEAF_LOOK_S = 1.0  # where notifications cannot be heard
FAILED_BEAT_PAUSE_S = 1.0
LONGEST_KEEPALIVE_S = 32_767  # what Linux allows


class Heartbeat:
    """Keeps the worker's place in the registry, and learns its orders from there. Renews the leases of all jobs in
    flight, and learns which are lost and which are to be cancelled.

    A worker that cannot beat stops claiming, and stops its handlers before their leases run out.
    """

    def __init__(
        self,
        database: Database,
        worker: WorkerInfo,
        settings: Settings,
        flights: InFlightJobs,
        metrics: Metrics,
        *,
        bell: Wakeups,
        listening: Callable[[], bool],
        stopping: Callable[[], bool],
        tell: Callable[[ClaimedJob, StopReason], None],
        orders: Directives,
        obey: Callable[[Directives], None],
    ) -> None:
        """`orders` are those that the worker has; it is told to `obey`, in this thread, when others come."""
        self._database = database
        self._worker = worker
        self._flights = flights
        self._metrics = metrics
        self._bell = bell
        self._listening = listening
        self._stopping = stopping
        self._tell = tell
        self._orders = orders
        self._obey = obey
        self._session_of_lock: DedicatedConnection | None = None
        self._locked_on: datetime | None = None
        self._log_throttle = LogThrottle(logger)
        self._own_interval_s = self._interval_s = settings.heartbeat_interval.total_seconds()
        self._own_staleness_s = self._staleness_s = settings.heartbeat_staleness.total_seconds()
        self._last_beat = time.monotonic()
        self._last_renewal = -math.inf
        self._thread = LoopThread("awa-heartbeat", self._main)
        self._wake: asyncio.Event | None = None

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        await self._thread.stop()

    def responds(self, within_s: float) -> bool:
        """Whether its thread answers. Without a database it does."""
        return self._thread.responds(within_s)

    def send_now(self) -> None:
        """Beats at once: what the worker has to know may have changed."""
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
        # Whoever is cut off keeps its lock for as long as its handlers may run: by then, its leases have run out.
        idle_s = min(math.ceil(self._own_staleness_s), LONGEST_KEEPALIVE_S)
        patience = {"tcp_keepalives_idle": str(idle_s), "tcp_user_timeout": "0"}
        link = ReconnectingConnection(self._database, "heartbeat", self._metrics, {**STABLE_PLAN_SETTINGS, **patience})
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._beat_for_ever(link, self._wake))
                tasks.create_task(self._fence_for_ever())
        finally:
            await link.close()

    async def _beat_for_ever(self, link: ReconnectingConnection, wake: asyncio.Event) -> None:
        while True:
            try:
                connection = await link.get()
                wake.clear()
                async with asyncio.timeout(self._staleness_s / 2):  # somebody in between may swallow the answer
                    await self._beat(connection)
            except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
                self._log_throttle.log(logging.WARNING, "beat", "a heartbeat failed: %s", describe(error))
                link.drop()
                await asyncio.sleep(FAILED_BEAT_PAUSE_S)
                continue
            due_s = self._last_renewal + self._interval_s - time.monotonic()
            look_s = LOOK_S if self._listening() else DEAF_LOOK_S
            await wait_for_event(wake, max(0.0, min(look_s, due_s)))

    async def _beat(self, connection: DedicatedConnection) -> None:
        """Says that the worker is there, does what is due, and hands its orders on."""
        session = Session(connection, self._database.schema)
        began = time.monotonic()
        was_away = self._session_of_lock is not None and connection is not self._session_of_lock
        await self._hold_place(connection, session)
        rows = await store.heartbeat_worker(
            session,
            self._worker,
            listening=self._bell.subscribed,
            locked_on=self._locked_on,
            quiet=self._orders.quiet,
            stopping=self._stopping(),
        )
        interval_s, staleness_s = self._pace(rows)
        if was_away or began >= self._last_renewal + interval_s or staleness_s < self._staleness_s:
            # Whoever was away may have lost any of them.
            fresh_s = 0.0 if was_away else min(interval_s, staleness_s - interval_s) / 2
            await self._renew(session, began, fresh_s=fresh_s)
            self._last_renewal = began
        elif not self._listening():
            await self._look_for_cancels(session)
        # Only now: by a shorter staleness, a lease that was not renewed yet would seem to have run out.
        self._interval_s, self._staleness_s = interval_s, staleness_s
        self._last_beat = began
        orders = directives_from(rows, self._orders)
        if orders != self._orders:
            self._orders = orders
            self._obey(orders)

    async def _hold_place(self, connection: DedicatedConnection, session: Session) -> None:
        """Takes the worker's lock, before the first beat of each session, so that its end is seen."""
        if connection is not self._session_of_lock or self._locked_on is None:
            self._locked_on = await store.lock_worker(session, self._worker.id)
            self._session_of_lock = connection

    async def _renew(self, session: Session, began: float, *, fresh_s: float) -> None:
        """Renews the leases that are not fresh."""
        old = sorted(
            (flight for flight in self._flights if began - flight.renewed_at > fresh_s),
            key=lambda flight: flight.id,
        )
        if not old:
            return
        ids, leases = [flight.id for flight in old], [flight.lease for flight in old]
        ours = await store.renew_leases(session, self._worker.id, ids, leases)
        for flight in old:
            if flight.id not in ours:
                self._tell(flight, StopReason.LEASE_LOST)
                continue
            flight.renewed_at = began
            if ours[flight.id]:
                self._tell(flight, StopReason.CANCELLED)

    def _pace(self, rows: Iterable[Record]) -> tuple[float, float]:
        """The interval and the staleness, as the shortest staleness of the worker's queues asks for."""
        shortest: timedelta | None = min((row["staleness"] for row in rows if row["staleness"]), default=None)
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
                    self._log_throttle.log(logging.ERROR, flight.kind, sentence, flight, extra=flight.fields())
                    self._tell(flight, StopReason.LEASE_EXPIRED)

    async def _look_for_cancels(self, session: Session) -> None:
        """Where notifications cannot be heard, cancels are looked for."""
        flights = list(self._flights)
        if flights:
            ids, leases = [flight.id for flight in flights], [flight.lease for flight in flights]
            unwanted = set(await store.list_cancel_requests(session, self._worker.id, ids, leases))
            for flight in flights:
                if flight.id in unwanted:
                    self._tell(flight, StopReason.CANCELLED)


def _margin_s(staleness_s: float) -> float:
    """How long before the end of its lease a handler is stopped."""
    return min(5.0, staleness_s / 10)
