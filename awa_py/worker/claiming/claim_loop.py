"""Claim jobs as slots become free: at once after a wake-up, otherwise by polling."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

import asyncpg

from awa_py.background import wait_for_event
from awa_py.connections import Record
from awa_py.db.errors import CONNECTION_LOST, INVALID_DATA
from awa_py.db.listener import Listener
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.db.schema import Schema
from awa_py.errors import AwaError
from awa_py.invalid_jobs import InvalidJobs
from awa_py.model.registry import Registry
from awa_py.observability.checks import HealthCheck
from awa_py.observability.logs import LogThrottle
from awa_py.observability.metrics import Metrics
from awa_py.store import claim as store
from awa_py.store import heartbeat, maintenance
from awa_py.store.claim import Claimant
from awa_py.store.full_scan import COST_RATIO
from awa_py.store.session import Session
from awa_py.text import describe
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.claiming.queue_claimer import MAX_BATCH, QueueClaimer
from awa_py.worker.claiming.wakeups import BUSY_POLL_S, Wakeups
from awa_py.worker.directives import Directives
from awa_py.worker.executor import Executor
from awa_py.worker.heartbeat import Heartbeat
from awa_py.worker.in_flight import InFlightJobs
from awa_py.worker.outcomes import StopReason

logger = logging.getLogger("awa.worker")

BUSY_POLL_INTERVAL_S = 0.1  # how often a busy worker polls its other queues, but at most 1/COST_RATIO of the time
SUBSCRIBED_POLL_FACTOR = 4  # polling is only a safety net while wake-ups arrive
POLLS_AFTER_SUBSCRIBING_S = (0.005, 0.02, 0.1, 0.5, 2.0)  # a producer that commits now may not see the subscription
PREFETCH_TIMEOUT_S = 1.0  # a claimed job that gets no slot within this time is released
FAILED_CLAIM_DELAYS_S = (1.0, 2.0, 5.0)


class ClaimLoop:
    """Keeps the slots of a worker filled."""

    def __init__(
        self,
        connection: ReconnectingConnection,
        schema: Schema,
        in_flight: InFlightJobs,
        heartbeat: Heartbeat,
        metrics: Metrics,
        *,
        claimant: Claimant,
        queues: Sequence[str],
        registry: Registry,
        poll_s: float,
        staleness: timedelta,
        executor: Executor,
        wakeups: Wakeups,
        listener: Listener,
        wait_flushed: Callable[[], Awaitable[None]],
    ) -> None:
        """`wait_flushed` waits until the outcomes are written, and the parents of jobs that ended are woken."""
        self._connection = connection
        self._schema = schema
        self._in_flight = in_flight
        self._heartbeat = heartbeat
        self._metrics = metrics
        self._claimant = claimant
        self._registry = registry
        self._poll_s = poll_s
        self._staleness = staleness
        self._executor = executor
        self._wakeups = wakeups
        self._listener = listener
        self._wait_flushed = wait_flushed
        self._claimers: Mapping[str, QueueClaimer] = {
            queue: QueueClaimer(queue, claimant, in_flight, poll_s=poll_s) for queue in queues
        }
        self._quiet = False
        self._woken = asyncio.Event()
        self._claim_may_be_unreported = False  # a claim may be committed although its answer was lost
        self._took_over = False
        self._take_overs: list[asyncio.Future[int]] = []  # those that were asked for
        self.is_closed = False
        self._invalid_jobs = InvalidJobs(metrics, silence=staleness)
        self._may_have_invalid_jobs = False  # a claim failed because of a row
        self._problem: str | None = None
        self._poll_others_at = 0.0
        self._polls_after_subscribing_s: list[float] = []
        self._log_throttle = LogThrottle(logger)

    def checks(self) -> list[HealthCheck]:
        """Return whether claims work. Call from any thread."""
        return [HealthCheck("claims", self._problem), self._invalid_jobs.check()]

    def wake(self, queue: str) -> None:
        """Claim from a queue that has new jobs."""
        if queue in self._claimers:
            self._wakeups.received()
            self._claimers[queue].wake()
            self._woken.set()

    def wake_all(self) -> None:
        """Claim from all queues: their jobs or limits may have changed."""
        for claimer in self._claimers.values():
            claimer.wake()
        self._woken.set()

    def apply(self, directives: Directives) -> None:
        """Follow these directives from now on. Running jobs go on."""
        self._quiet = directives.quiet
        for queue, of_queue in directives.queues.items():
            self._claimers[queue].apply(of_queue)
        self.wake_all()

    def slot_freed(self) -> None:
        """Claim again if a queue waits for a slot or for room in its limits."""
        for claimer in self._claimers.values():
            claimer.slot_freed()
        if any(claimer.due_at < math.inf for claimer in self._claimers.values()):
            self._woken.set()

    async def run(self, *, until_idle: bool) -> None:
        """Claim until cancelled, or, with `until_idle`, until no job is due."""
        failures = 0
        while True:
            self._woken.clear()
            self._executor.release_waiting_since(time.monotonic() - PREFETCH_TIMEOUT_S)
            try:
                claimed = await self._claim_from_all()
                if claimed and time.monotonic() >= self._poll_others_at:
                    await self._poll()
                if not claimed and until_idle and await self._is_idle():
                    return
                failures = 0
                self._problem = None
            except (*CONNECTION_LOST, *INVALID_DATA, asyncpg.PostgresError) as error:
                self._problem = f"claims fail: {describe(error)}"
                self._log_throttle.log(logging.WARNING, "claim", "a claim failed: %s", describe(error))
                self._may_have_invalid_jobs |= isinstance(error, INVALID_DATA)
                self._connection.drop()
                self._claim_may_be_unreported = True
                self._wakeups.subscribed = False  # unknown: subscribe again
                await asyncio.sleep(FAILED_CLAIM_DELAYS_S[min(failures, len(FAILED_CLAIM_DELAYS_S) - 1)])
                failures += 1
                continue
            if not claimed:
                await self._wait()

    async def take_over(self) -> int:
        """Take over stale jobs now, as at the start, as many as there are free slots. Return how many."""
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._take_overs.append(asked)
        self._woken.set()
        return await asked

    def close(self) -> None:
        """Refuse what was asked for and has not happened."""
        self.is_closed = True
        for asked in self._take_overs:
            if not asked.done():
                asked.set_exception(AwaError("the worker stopped before it could take over jobs"))

    async def release_unreported(self, timeout_s: float) -> None:
        """Release the jobs of a claim whose answer was lost, before the worker ends. A rescue does it if this fails."""
        if self._claim_may_be_unreported:
            with suppress(*CONNECTION_LOST, asyncpg.PostgresError):
                async with asyncio.timeout(timeout_s):
                    # The connection of that claim, if it still exists, runs this after the claim has ended.
                    await self._release_orphans(await self._session())

    async def _session(self) -> Session:
        return Session(await self._connection.get(), self._schema)

    async def _claim_from_all(self) -> int:
        """Claim once from each queue that is due and has a free slot. Return the number of jobs."""
        if self._claim_may_be_unreported:  # a quiet worker does this too: nothing renews the leases of these jobs
            await self._release_orphans(await self._session())
        if not self._heartbeat.healthy or self._quiet:
            if self._quiet:
                self._answer_take_overs(0)
            return 0
        session = await self._session()
        if self._may_have_invalid_jobs:
            await self._invalid_jobs.discard_all(session)
            self._may_have_invalid_jobs = False
        if not self._took_over or self._take_overs:
            self._answer_take_overs(await self._take_over(session))
            self._took_over = True
        now = time.monotonic()
        due = [claimer for claimer in self._claimers.values() if claimer.due_at <= now]
        claimed = 0
        for claimer in sorted(due, key=lambda claimer: claimer.last_claim_at):
            if wanted := claimer.wanted_jobs:
                claimed += await self._claim(session, claimer, wanted)
        return claimed

    async def _claim(self, session: Session, claimer: QueueClaimer, limit: int) -> int:
        began = time.monotonic()
        self._claim_may_be_unreported = True
        rows = await claimer.claim(session, limit)
        self._claim_may_be_unreported = False
        self._observe(claimer.queue, rows, time.monotonic() - began)
        self._start(claimer.queue, rows, began)
        self._wakeups.claimed(len(rows))
        if len(rows) < limit:  # let these start now; after a full claim, the next claim overlaps with them
            await asyncio.sleep(0)
        return len(rows)

    def _start(self, queue: str, rows: Sequence[Record], claimed_at: float) -> None:
        if not rows:
            return
        handler_of = self._registry.handlers.get
        jobs = [ClaimedJob(row, queue, handler_of(row["kind"]), claimed_at) for row in rows]
        for former in self._in_flight.add(queue, jobs):
            former.request_stop(StopReason.LEASE_LOST)
        self._executor.submit(queue, jobs)

    def _observe(self, queue: str, rows: Sequence[Record], took_s: float) -> None:
        self._metrics.claim_seconds.observe(took_s)
        if rows:
            self._metrics.claimed.labels(queue).inc(len(rows))
            self._metrics.claim_jobs.observe(len(rows))
            if self._metrics.timing:
                self._metrics.wait.labels(queue).observe_all([row["waited_s"] for row in rows])

    async def _take_over(self, session: Session) -> int:
        """Take over stale jobs: a worker that returns after a crash need not wait for the rescue. Return how many."""
        taken = 0
        for queue in self._claimers:
            began = time.monotonic()
            self._claim_may_be_unreported = True
            rows = await store.take_over_jobs(
                session,
                self._claimant,
                queues=[queue],
                staleness=self._staleness,
                limit=self._in_flight.free_slots(queue),
            )
            self._claim_may_be_unreported = False
            if rows:
                logger.warning("took over %d jobs of queue %s from dead workers", len(rows), queue)
            self._start(queue, rows, began)
            taken += len(rows)
        return taken

    def _answer_take_overs(self, taken: int) -> None:
        for asked in self._take_overs:
            if not asked.done():
                asked.set_result(taken)
        self._take_overs.clear()

    async def _release_orphans(self, session: Session) -> None:
        known = {(job.id, job.lease) for job in self._in_flight}
        released = await store.release_orphans(session, worker_id=self._claimant.worker_id, known=known)
        if released:
            logger.warning("released %d jobs of a claim whose answer was lost", released)
        self._claim_may_be_unreported = False

    async def _wait(self) -> None:
        """Wait for a wake-up, a due claim, or the next poll."""
        try:
            if await self._choose_wakeups():
                return
            if not await wait_for_event(self._woken, self._wait_s()):
                await self._poll()
        except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
            self._log_throttle.log(logging.WARNING, "poll", "a poll failed: %s", describe(error))
            self._connection.drop()

    def _wait_s(self) -> float:
        now = time.monotonic()
        due_at = [claimer.due_at for claimer in self._claimers.values()]
        waits_for_slot = min(due_at) <= now
        poll_s = self._poll_s if waits_for_slot else self._poll_interval_s()
        return min([poll_s, *(moment - now for moment in due_at if moment > now)])

    def _poll_interval_s(self) -> float:
        wakeups = self._wakeups
        if not wakeups.subscribed and not wakeups.prefers_wakeups:
            return min(BUSY_POLL_S, self._poll_s)
        if self._polls_after_subscribing_s:
            return min(self._polls_after_subscribing_s.pop(0), self._poll_s)
        return SUBSCRIBED_POLL_FACTOR * self._poll_s if wakeups.subscribed and self._listener.active else self._poll_s

    async def _poll(self) -> None:
        """Find the queues that have jobs, in case a wake-up was lost or not wanted."""
        began = time.monotonic()
        others = [queue for queue, claimer in self._claimers.items() if claimer.due_at > began]
        if len(self._claimers) == 1:
            found = set(others)
        elif others:
            found = await store.queues_with_work(await self._session(), queues=others, kinds=self._claimant.kinds)
        else:
            found = set()
        for queue in found:
            self._claimers[queue].wake()
        ended = time.monotonic()
        self._poll_others_at = ended + max(BUSY_POLL_INTERVAL_S, COST_RATIO * (ended - began))

    async def _choose_wakeups(self) -> bool:
        """Subscribe to wake-ups when idle, unsubscribe under load. Return True if the caller should claim at once."""
        wakeups = self._wakeups
        if wakeups.subscribed and wakeups.prefers_polling:
            await heartbeat.stop_listening(await self._session(), self._claimant.worker_id)
            wakeups.subscribed = False
        elif not wakeups.subscribed and wakeups.prefers_wakeups and self._listener.active and not self._has_due_queue():
            await heartbeat.listen_for_jobs(await self._session(), self._claimant.worker_id, list(self._claimers))
            wakeups.subscribed = True
            self._polls_after_subscribing_s = list(POLLS_AFTER_SUBSCRIBING_S)
            self.wake_all()
            return True
        return False

    def _has_due_queue(self) -> bool:
        now = time.monotonic()
        return any(claimer.due_at <= now for claimer in self._claimers.values())

    async def _is_idle(self) -> bool:
        """Whether nothing is in flight, due or available."""
        if len(self._in_flight):
            return False
        await self._wait_flushed()
        session = await self._session()
        promoted, _ = await maintenance.promote_jobs(session, limit=MAX_BATCH)
        waiting = await store.queues_with_work(session, queues=list(self._claimers), kinds=self._claimant.kinds)
        for queue in waiting:
            self._claimers[queue].wake()
        return not promoted and not waiting
