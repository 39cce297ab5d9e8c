"""Claims jobs as slots come free: at once when woken, and by polling as the net."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

import asyncpg

from awa_py.background import wait_for_event
from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.db.schema import Schema
from awa_py.db.types import Record
from awa_py.model.registry import Registry
from awa_py.observability.logs import LogThrottle
from awa_py.observability.metrics import Metrics
from awa_py.store import claim, heartbeat, maintenance
from awa_py.store.claim import WAITED_S
from awa_py.store.session import Session
from awa_py.text import describe
from awa_py.worker.claimed_job import ClaimedJob, StopReason
from awa_py.worker.claiming.cursor import Cursor
from awa_py.worker.claiming.prospects import Prospects
from awa_py.worker.claiming.taker import Taker
from awa_py.worker.directives import Directives
from awa_py.worker.executor import Executor
from awa_py.worker.heartbeat import Heartbeat
from awa_py.worker.in_flight import InFlightJobs
from awa_py.worker.wakeups import BUSY_POLL_S, Wakeups

logger = logging.getLogger("awa.worker")

MAX_BATCH = 500
FEW = 10
PROMOTE_BATCH = 1_000
LOOK_AROUND_S = 0.1  # while some queue keeps it busy, a worker looks so often whether others have work …
LOOK_AROUND_SHARE = 20  # … but for no more than such a part of the time
WOKEN_POLLS = 4  # where wake-ups are heard, polling is only the net: it is done so many times less often
LOOKS_AFTER_HANGING_S = (0.005, 0.02, 0.1, 0.5, 2.0)
PATIENCE_S = 1.0  # a job that was claimed ahead and got no slot for so long goes back
FAILED_CLAIM_PAUSES_S = (1.0, 2.0, 5.0)


class Fetcher:
    """Keeps the slots of a worker filled."""

    def __init__(
        self,
        link: ReconnectingConnection,
        schema: Schema,
        flights: InFlightJobs,
        heart: Heartbeat,
        metrics: Metrics,
        *,
        queues: Sequence[str],
        registry: Registry,
        worker_id: UUID,
        poll_s: float,
        staleness: timedelta,
        executor: Executor,
        bell: Wakeups,
        listening: Callable[[], bool],
    ) -> None:
        self._link = link
        self._schema = schema
        self._flights = flights
        self._heart = heart
        self._metrics = metrics
        self._registry = registry
        self._kinds = list(registry.kinds)
        self._worker_id = worker_id
        self._poll_s = poll_s
        self._staleness = staleness
        self._executor = executor
        self._cursors = {queue: Cursor() for queue in queues}
        shown_kinds = registry.kinds if executor.needs_details else registry.kinds_with_context
        self._taker = Taker(
            queues, kinds=self._kinds, shown_kinds=list(shown_kinds), worker_id=worker_id, timed=metrics.timing
        )
        self._prospects = Prospects(queues, self._taker, flights)
        self._look_around_at = 0.0
        self._wake = asyncio.Event()
        self._unsure = False  # a claim may have been committed without our hearing of it
        self._fresh = True
        self._bell = bell
        self._listening = listening
        self._looks_s: list[float] = []
        self._log_throttle = LogThrottle(logger)

    def queue_is_ready(self, queue: str) -> None:
        """Something can be claimed there."""
        if queue in self._cursors:
            self._bell.rang()
            self._prospects.has_new_jobs(queue)
            self._wake.set()

    def all_may_be_ready(self) -> None:
        """Nobody knows what happened meanwhile: look everywhere."""
        self._prospects.promising.update(self._cursors)
        self._wake.set()

    def obey(self, orders: Directives) -> None:
        """Claims by these orders from now on. What runs goes on."""
        self._taker.orders = orders
        for queue, told in orders.queues.items():
            self._flights.share(queue, told.slots)
        self.all_may_be_ready()

    def slot_is_free(self) -> None:
        if self._prospects.slot_is_free():
            self._wake.set()

    async def run(self, *, until_idle: bool) -> None:
        """Claims until it is cancelled, or until nothing is due."""
        failures = 0
        while True:
            self._wake.clear()
            self._executor.release_waiting_since(time.monotonic() - PATIENCE_S)
            try:
                claimed = await self._claim_everywhere()
                if claimed and time.monotonic() >= self._look_around_at:
                    await self._look_around()
                if not claimed and until_idle and await self._nothing_is_due():
                    return
                failures = 0
            except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
                self._log_throttle.log(logging.WARNING, "claim", "a claim failed: %s", describe(error))
                self._link.drop()
                self._unsure = True
                self._bell.hung = False  # whether it is, nobody knows
                await asyncio.sleep(FAILED_CLAIM_PAUSES_S[min(failures, len(FAILED_CLAIM_PAUSES_S) - 1)])
                failures += 1
                continue
            if not claimed:
                await self._rest()

    async def give_back_unheard(self, limit_s: float) -> None:
        """At the end: gives back what the claim brought that was cut off. Leaves it to a rescue where that fails."""
        if self._unsure:
            with suppress(*CONNECTION_LOST, asyncpg.PostgresError):
                async with asyncio.timeout(limit_s):
                    # On the connection of that claim, where there is one: after its end, whatever that was.
                    await self._release_orphans(Session(await self._link.get(), self._schema))

    async def _rest(self) -> None:
        """Waits for a wake-up, or for the next look around."""
        try:
            if await self._tend_bell():
                return
            if not await wait_for_event(self._wake, self._prospects.due_in_s(self._usual_patience_s())):
                await self._look_around()
        except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
            self._log_throttle.log(logging.WARNING, "poll", "a poll failed: %s", describe(error))
            self._link.drop()

    async def _look_around(self) -> None:
        """Finds the queues that have work: nobody may have told us."""
        began = time.monotonic()
        others = [queue for queue in self._cursors if queue not in self._prospects.promising]
        if len(self._cursors) == 1:
            self._prospects.promising.update(others)
        elif others:
            session = Session(await self._link.get(), self._schema)
            self._prospects.promising |= await claim.queues_with_work(session, queues=others, kinds=self._kinds)
        ended = time.monotonic()
        self._look_around_at = ended + max(LOOK_AROUND_S, LOOK_AROUND_SHARE * (ended - began))

    async def _tend_bell(self) -> bool:
        """Hangs the bell up or takes it down, as the load asks for. Whether to look around at once."""
        if self._bell.hung and self._bell.annoys:
            session = Session(await self._link.get(), self._schema)
            await heartbeat.stop_listening(session, self._worker_id)
            self._bell.hung = False
        elif not self._bell.hung and self._bell.is_missed and not self._prospects.promising and self._listening():
            session = Session(await self._link.get(), self._schema)
            await heartbeat.listen_for_jobs(session, self._worker_id, list(self._cursors))
            self._bell.hung = True
            # Whoever is about to commit may not have seen the bell.
            self._looks_s = list(LOOKS_AFTER_HANGING_S)
            self.all_may_be_ready()
            return True
        return False

    def _usual_patience_s(self) -> float:
        if self._prospects.promising:  # it waits for a slot
            return self._poll_s
        if not self._bell.hung and not self._bell.is_missed:
            return min(BUSY_POLL_S, self._poll_s)
        if self._looks_s:
            return min(self._looks_s.pop(0), self._poll_s)
        return WOKEN_POLLS * self._poll_s if self._bell.hung and self._listening() else self._poll_s

    async def _claim_everywhere(self) -> int:
        """One claim for each queue that may have work and has a free slot. How many jobs that gave."""
        if not self._heart.healthy or self._taker.orders.quiet:
            return 0
        session = Session(await self._link.get(), self._schema)
        if self._unsure:
            await self._release_orphans(session)
        if self._fresh:
            await self._take_over(session)
        claimed = 0
        self._prospects.promise_what_is_due()
        for queue in sorted(self._prospects.promising, key=lambda queue: self._cursors[queue].last_claim):
            if not self._prospects.may_claim(queue):
                continue
            limit = min(self._flights.room(queue), MAX_BATCH)
            if limit >= self._flights.chunk(queue):
                claimed += await self._claim(session, queue, limit)
            elif self._prospects.may_borrow(queue):
                claimed += await self._claim(session, queue, 1)
        return claimed

    async def _claim(self, session: Session, queue: str, limit: int) -> int:
        self._prospects.claim_begins(queue)
        rows, full = await self._scan(session, queue, limit)
        if not rows and not full and self._may_look_further(queue):
            rows, full = await self._scan(session, queue, limit)
        self._prospects.claim_gave(queue, len(rows), limit)
        return len(rows)

    def _may_look_further(self, queue: str) -> bool:
        """Whether it is worth it to claim again at once, where the last claim has not looked everywhere."""
        now = time.monotonic()
        if self._taker.is_careful(queue, now) and not self._taker.looks_elsewhere(queue, now):
            return False  # it would look at the same jobs again
        return self._cursors[queue].may_scan_fully(now)

    async def _scan(self, session: Session, queue: str, limit: int) -> tuple[list[Record], bool]:
        cursor = self._cursors[queue]
        began = time.monotonic()
        self._unsure = True
        rows, full, aside = await self._taker.take(session, queue, cursor, limit, began)
        self._unsure = False
        self._count(queue, rows, time.monotonic() - began)
        self._take_off(queue, rows, began)
        if len(rows) <= FEW:  # they begin now; of many, the next claim overlaps with them
            await asyncio.sleep(0)
        cursor.saw(rows, full=full, began=began, ended=time.monotonic(), aside=aside)
        self._bell.claimed(len(rows))
        return rows, full

    def _count(self, queue: str, rows: Sequence[Record], took_s: float) -> None:
        self._metrics.claim_seconds.observe(took_s)
        if rows:
            self._metrics.claimed.labels(queue).inc(len(rows))
            self._metrics.claim_jobs.observe(len(rows))
            if self._metrics.timing:
                self._metrics.wait.labels(queue).observe_all([row[WAITED_S] for row in rows])

    async def _take_over(self, session: Session) -> None:
        """Once, at the start: a worker that comes back after a crash need not wait for the leader's rescue."""
        for queue in self._cursors:
            began = time.monotonic()
            self._unsure = True
            rows = await claim.take_over_jobs(
                session,
                queues=[queue],
                kinds=self._kinds,
                staleness=self._staleness,
                limit=self._flights.room(queue),
                worker_id=self._worker_id,
            )
            self._unsure = False
            if rows:
                logger.warning("took over %d jobs of queue %s from dead workers", len(rows), queue)
            self._take_off(queue, rows, began)
        self._fresh = False

    def _take_off(self, queue: str, rows: Sequence[Record], asked_at: float) -> None:
        if not rows:
            return
        handler_of = self._registry.handlers.get
        flights = [ClaimedJob(row, queue, handler_of(row[2]), asked_at) for row in rows]
        for former in self._flights.add(queue, flights):
            former.request_stop(StopReason.LEASE_LOST)
        self._executor.submit(queue, flights)

    async def _release_orphans(self, session: Session) -> None:
        known = [flight.id for flight in self._flights]
        released = await claim.release_orphans(session, worker_id=self._worker_id, known=known)
        if released:
            logger.warning("gave back %d jobs whose claim was cut off", released)
        self._unsure = False

    async def _nothing_is_due(self) -> bool:
        """Whether a worker that only drains may go home: nothing in flight, nothing due, nothing to claim."""
        if len(self._flights):
            return False
        session = Session(await self._link.get(), self._schema)
        promoted, _ = await maintenance.promote_jobs(session, limit=PROMOTE_BATCH)
        waiting = await claim.queues_with_work(session, queues=list(self._cursors), kinds=self._kinds)
        self._prospects.promising |= waiting
        return not promoted and not waiting
