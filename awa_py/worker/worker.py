"""A whole worker: its parts, their start, and their end."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, Protocol
from uuid import UUID, uuid4

from awa_py.background import cancel_and_wait
from awa_py.db.database import STABLE_PLAN_SETTINGS, Database
from awa_py.db.listener import Listener, Topic
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.db.types import DedicatedConnection
from awa_py.errors import ConfigError
from awa_py.model.job import check_queue
from awa_py.model.registry import Registry
from awa_py.model.worker_name import WorkerName
from awa_py.observability.checks import HealthCheck, problems
from awa_py.observability.logs import current_worker
from awa_py.observability.metrics import HEARTBEAT, LISTENING, RUNNING, SLOTS, Metrics, Value
from awa_py.rate_limiter import RateLimiter, request_tokens_over
from awa_py.settings import Settings
from awa_py.store.claim import Claimant
from awa_py.store.heartbeat import WorkerInfo, lock_worker
from awa_py.store.session import Session
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.claiming.claim_loop import ClaimLoop
from awa_py.worker.claiming.wakeups import Wakeups
from awa_py.worker.completer import Completer
from awa_py.worker.directives import Directives
from awa_py.worker.event_log import EventLog
from awa_py.worker.executor import Executor
from awa_py.worker.heartbeat import Heartbeat
from awa_py.worker.in_flight import InFlightJobs
from awa_py.worker.loop_watchdog import LoopWatchdog
from awa_py.worker.outcomes import StopReason
from awa_py.worker.registration import Registration
from awa_py.worker.tracing_executor import executor_type

logger = logging.getLogger("awa.worker")

DEFAULT_CONCURRENCY = 100
NOT_REACHED = "the database is not reached yet, its schema not checked"
UNWIND_S = 5.0  # for handlers to end after they were cancelled at the end of the shutdown timeout


class Part(Protocol):
    """Something that lives as long as the worker works."""

    def start(self) -> None: ...
    async def stop(self) -> None: ...


class MonitoredService(Part, Protocol):
    """A part that can be asked how it is: the candidate for leadership, say."""

    def responds(self, within_s: float) -> bool: ...
    def checks(self) -> list[HealthCheck]: ...


class Worker:
    """Processes jobs of its queues until it is told to stop."""

    def __init__(
        self,
        database: Database,
        registry: Registry,
        settings: Settings,
        *,
        queues: Mapping[str, int],
        concurrency: int = DEFAULT_CONCURRENCY,
        metrics: Metrics | None = None,
        worker_id: UUID | None = None,
        name: WorkerName | None = None,
        services: Sequence[MonitoredService] = (),
    ) -> None:
        """`name` is how people call it; None: as the environment says."""
        _check(queues, concurrency)
        self._database = database
        self._registry = registry
        self._settings = settings
        self._queues = dict(queues)
        self._services = services
        self.metrics = metrics or Metrics()
        worker_id = worker_id or uuid4()
        self.info = WorkerInfo(
            id=worker_id,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            version=version("awa-py"),
            queues=tuple(queues),
            kinds=registry.kinds,
            concurrency=concurrency,
            label=(name or WorkerName.from_env()).label(worker_id),
            limits=tuple(queues.values()),
        )
        self.ready = asyncio.Event()  # in the registry, and about to claim
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self._quiet = False
        self._entry = Registration(database, self.metrics, self.info)
        self._heart: Heartbeat | None = None
        self._listener: Listener | None = None
        self.abandoned = 0  # handlers that were still at work in their threads when the worker ended

    @property
    def id(self) -> UUID:
        return self.info.id

    @property
    def label(self) -> str:
        """How people call it."""
        return self.info.label or str(self.id)

    @property
    def listening(self) -> bool:
        """Whether wake-ups are heard; without them the worker polls."""
        return self._listener is not None and self._listener.active

    def problems(self) -> list[str]:
        """What keeps the worker from its work, in sentences; nothing: it is ready. From any thread."""
        return problems(self.checks())

    def checks(self) -> list[HealthCheck]:
        """How it is. From any thread."""
        if self._stopping.is_set():
            return [HealthCheck("worker", "the worker is stopping")]
        heart = self._heart
        if heart is None:
            why = self._entry.trouble
            return [HealthCheck("database", f"the database is not reached yet: {why}" if why else NOT_REACHED)]
        silent = None if heart.healthy else "no heartbeat got through: the database is not reachable"
        deaf = None if self.listening else "not listening: no wake-up is heard, the worker polls"
        return [
            HealthCheck("database", silent, {"heartbeat_age_s": round(heart.silent_s, 3)}),
            HealthCheck("schema"),
            HealthCheck("listening", deaf),
            # Whoever cannot stand for election can work all the same.
            *(replace(check, required=False) for service in self._services for check in service.checks()),
        ]

    def responds(self, within_s: float) -> bool:
        """Whether the threads beside the event loop answer: the heartbeat's, and the candidate's."""
        heart_turns = self._heart is None or self._heart.responds(within_s)
        return all([heart_turns, *(service.responds(within_s) for service in self._services)])

    def stop(self) -> None:
        """Stops claiming and lets running jobs finish within the shutdown timeout; a second call ends them at once."""
        if self._stopping.is_set():
            self._hurried.set()
        self._stopping.set()
        if self._heart is not None:
            self._heart.send_now()  # the registry says that it is stopping

    async def run(self, *, until_idle: bool = False) -> None:
        """Works until `stop()`, or, with `until_idle`, until nothing is due."""
        token = current_worker.set(str(self.id))
        try:
            await self._run(until_idle=until_idle)
        finally:
            current_worker.reset(token)

    async def _run(self, *, until_idle: bool) -> None:
        async with self._registered() as registered:
            if not registered:
                return
            flights = InFlightJobs(self._queues, self.info.concurrency)
            bell = Wakeups()
            claims = ReconnectingConnection(
                self._database,
                "claims",
                self.metrics,
                {**STABLE_PLAN_SETTINGS, "synchronous_commit": "off"},
                on_connect=self._hold_place,  # as the heartbeat does: while one of the two lives, so does the worker
            )
            finishes = ReconnectingConnection(self._database, "finishes", self.metrics, STABLE_PLAN_SETTINGS)
            rates = ReconnectingConnection(
                self._database, "rates", self.metrics, {**STABLE_PLAN_SETTINGS, "synchronous_commit": "off"}
            )
            limiter = RateLimiter(request_tokens_over(rates, self._database.schema))
            timeline = EventLog(
                ReconnectingConnection(
                    self._database, "timeline", self.metrics, {**STABLE_PLAN_SETTINGS, "synchronous_commit": "off"}
                ),
                self._database.schema,
                flights,
                self.metrics,
                self.id,
                enabled=bool(self._settings.events_retention),
            )
            completer = Completer(
                finishes,
                self._database.schema,
                flights,
                self.metrics,
                timeline,
                self.id,
                keep_completed=bool(self._settings.completed_retention),
            )
            executor = executor_type()(
                self._registry,
                flights,
                threads=self.info.concurrency,
                max_result_bytes=self._settings.max_args_bytes,
                on_finished=completer.add,
                on_progress=completer.add_progress,
                rate_limits=limiter,
                run_times=self.metrics.run_times,
            )
            heart = self._heart = Heartbeat(
                self._database,
                self.info,
                self._settings,
                flights,
                self.metrics,
                bell=bell,
                listening=lambda: self.listening,
                stopping=self._stopping.is_set,
                tell=_teller(),
                orders=self._entry.orders,
                obey=_in_this_loop(lambda orders: self._obey(orders, fetcher)),
            )
            fetcher = ClaimLoop(
                claims,
                self._database.schema,
                flights,
                heart,
                self.metrics,
                claimant=Claimant(
                    worker_id=self.id,
                    kinds=self._registry.kinds,
                    detailed_kinds=self._registry.kinds
                    if executor.needs_details
                    else self._registry.kinds_with_context,
                    timed=self.metrics.timing,
                ),
                queues=list(self._queues),
                registry=self._registry,
                poll_s=self._settings.poll_interval.total_seconds(),
                staleness=self._settings.heartbeat_staleness,
                executor=executor,
                wakeups=bell,
                is_listening=lambda: self.listening,
            )

            fetcher.apply(self._entry.orders)

            flights.on_slot_free(executor.run_waiting)
            flights.on_slot_free(fetcher.slot_freed)

            listener = self._listener = Listener(
                self._database,
                self.metrics,
                on_notification=_hearer(self.info, fetcher, heart, flights),
                on_subscribed=fetcher.wake_all,
            )
            self.metrics.worker.source = partial(self._gauges, flights, heart)
            watch = LoopWatchdog(executor.call_in, self._settings.blocked_after.total_seconds())
            async with _running(heart, completer, listener, [watch, timeline, *self._services]):
                self.ready.set()
                try:
                    await self._until_stopped(fetcher.run(until_idle=until_idle))
                finally:
                    timeline.flush_soon()
                    await fetcher.release_unreported(UNWIND_S)
                    await claims.close()
                    limiter.stop_retrying()
                    await self._drain(flights, executor, completer)
                    executor.close()
                    await limiter.close()
                    await rates.close()
                    self.abandoned = flights.abandoned
                    self.metrics.worker.source = None

    def _detailed_kinds(self, executor: Executor) -> tuple[str, ...]:
        return self._registry.kinds if executor.needs_details else self._registry.kinds_with_context

    async def _hold_place(self, connection: DedicatedConnection) -> None:
        await lock_worker(Session(connection, self._database.schema), self.id)

    def _obey(self, orders: Directives, fetcher: ClaimLoop) -> None:
        if orders.stop and not self._stopping.is_set():
            logger.info("worker %s was told to stop", self.label)
            self.stop()
        if orders.quiet != self._quiet:
            logger.info("worker %s %s", self.label, "is quiet: it claims nothing" if orders.quiet else "goes on")
            self._quiet = orders.quiet
        fetcher.apply(orders)

    def _gauges(self, flights: InFlightJobs, heart: Heartbeat) -> Iterator[Value]:
        """What it is doing now. From any thread."""
        for queue in self._queues:
            yield RUNNING, (queue,), flights.held(queue)
        yield SLOTS, (), self.info.concurrency
        yield HEARTBEAT, (), time.time() - heart.silent_s
        yield LISTENING, (), self.listening

    @asynccontextmanager
    async def _registered(self) -> AsyncIterator[bool]:
        """In the registry before the first claim, out of it after the last finish. False: told to stop before that."""
        try:
            if not await self._until_stopped(self._entry.enter()):
                if self._entry.connected:  # it may have entered, and not yet have heard of it
                    await self._entry.leave(UNWIND_S)
                yield False
                return
            logger.info(
                "worker %s serves %s with %d slots and %d kinds",
                self.label,
                ", ".join(self._queues),
                self.info.concurrency,
                len(self.info.kinds),
            )
            await self._entry.close()
            try:
                yield True
            finally:
                await self._entry.leave(UNWIND_S)
                logger.info("worker %s has stopped", self.label)
        finally:
            await self._entry.close()

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Whether the work came to its end before somebody said stop."""
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            return working.done()
        finally:
            await cancel_and_wait(working, stopping)

    async def _drain(self, flights: InFlightJobs, executor: Executor, completer: Completer) -> None:
        """Lets running jobs finish, cancels the rest and gives it back unburned; heartbeats go on meanwhile."""
        executor.release_all_waiting()
        if not executor.idle.is_set():
            limit_s = self._settings.shutdown_timeout.total_seconds()
            logger.info("waiting up to %.3g s for %d running jobs", limit_s, executor.running)
            await self._wait_for(executor.idle, limit_s, unless=self._hurried)
        if not executor.idle.is_set():
            logger.warning("giving %d jobs back that did not finish in time", executor.running)
            executor.interrupt()
            await self._wait_for(executor.idle, UNWIND_S)
        try:
            async with asyncio.timeout(UNWIND_S):
                await completer.wait_flushed()
        except TimeoutError:
            logger.error("%d outcomes could not be written before the end: their jobs will be rescued", len(flights))

    @staticmethod
    async def _wait_for(idle: asyncio.Event, limit_s: float, unless: asyncio.Event | None = None) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (idle, unless) if event is not None]
        try:
            await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(*waits)


@asynccontextmanager
async def _running(
    heart: Heartbeat,
    completer: Completer,
    listener: Listener,
    companions: Sequence[Part],
) -> AsyncIterator[None]:
    """The parts that work beside the fetcher, ended in the order that loses nothing."""
    heart.start()
    for companion in companions:
        companion.start()
    listening = asyncio.create_task(listener.run(), name="awa listener")
    completer.start()
    try:
        yield
    finally:
        for companion in companions:
            await companion.stop()
        await cancel_and_wait(listening)
        await completer.stop()
        await heart.stop()


def _check(queues: Mapping[str, int], concurrency: int) -> None:
    if not queues:
        raise ConfigError("a worker needs at least one queue: -q NAME, or AWA_QUEUES")
    if concurrency < 1:
        raise ConfigError(f"concurrency is 1 or more, not {concurrency}")
    for queue, limit in queues.items():
        check_queue(queue)
        if limit < 1:
            raise ConfigError(f'queue "{queue}": its limit is 1 or more, not {limit}')


def _teller() -> Callable[[ClaimedJob, StopReason], None]:
    """Tells a handler to stop, from any thread."""
    loop = asyncio.get_running_loop()

    def tell(flight: ClaimedJob, reason: StopReason) -> None:
        loop.call_soon_threadsafe(flight.request_stop, reason)

    return tell


def _in_this_loop(function: Callable[[Directives], None]) -> Callable[[Directives], None]:
    """Calls the function in the loop of the caller, from any thread."""
    loop = asyncio.get_running_loop()

    def call(orders: Directives) -> None:
        loop.call_soon_threadsafe(function, orders)

    return call


def _hearer(
    info: WorkerInfo, fetcher: ClaimLoop, heart: Heartbeat, flights: InFlightJobs
) -> Callable[[str, str], None]:
    """What a worker does about each notification."""

    def heard(topic: str, subject: str) -> None:
        if topic == Topic.READY:
            fetcher.wake(subject)
        elif (topic == Topic.QUEUES and subject in info.queues) or (topic == Topic.WORKERS and subject == str(info.id)):
            heart.send_now()
        elif topic in (Topic.CANCEL, Topic.LOST):
            job_id, _, lease = subject.partition(":")
            flight = flights.get(int(job_id))
            if flight is not None and flight.lease == int(lease):
                flight.request_stop(StopReason.CANCELLED if topic == Topic.CANCEL else StopReason.LEASE_LOST)

    return heard
