"""A worker: claims jobs of its queues, runs their handlers, and writes the outcomes.

Its life: register, start the background services, claim and run jobs until told to stop, drain, stop the services in
reverse order, and remove itself from the list of workers. `parts` builds what it consists of.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any
from uuid import UUID, uuid4

from awa_py.background import cancel_and_wait
from awa_py.db.database import Database
from awa_py.errors import AwaError, ConfigError
from awa_py.model.declarations import Declarations
from awa_py.model.names import check_queue
from awa_py.model.registry import Registry
from awa_py.model.worker_name import WorkerName
from awa_py.observability.checks import HealthCheck, problems
from awa_py.observability.logs import current_worker
from awa_py.observability.metrics import HEARTBEAT, LISTENING, RUNNING, SLOTS, Metrics, Value
from awa_py.settings import Settings
from awa_py.store.heartbeat import WorkerInfo
from awa_py.worker.directives import Directives
from awa_py.worker.parts import WorkerParts
from awa_py.worker.registration import Registration
from awa_py.worker.services import BackgroundService, MonitoredService, running

logger = logging.getLogger("awa.worker")

DEFAULT_CONCURRENCY = 100
CLEANUP_TIMEOUT_S = 5.0  # for each step after the shutdown timeout: interrupted handlers, the last outcomes, …


class Worker:
    """Runs jobs of its queues until it is told to stop."""

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
        declarations: Declarations | None = None,
        services: Sequence[MonitoredService] = (),
    ) -> None:
        """Create a worker.

        `queues` maps each queue to the number of its jobs that may run at once. `name` is the worker's label; it
        defaults to AWA_WORKER_PREFIX, AWA_WORKER_VERSION and AWA_WORKER_ID. `declarations` are written at the start.
        `services` run for as long as the worker.
        """
        _check_limits(queues, concurrency)
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
        self.ready = asyncio.Event()  # registered, and about to claim
        self.abandoned = 0  # threads of handlers and steps that still ran when the worker ended
        self._registration = Registration(database, self.metrics, self.info, settings.share_staleness, declarations)
        self._parts: WorkerParts | None = None  # after the registration
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._quiet = False

    @property
    def id(self) -> UUID:
        return self.info.id

    @property
    def label(self) -> str:
        """Return the name that people see."""
        return self.info.label or str(self.id)

    @property
    def listening(self) -> bool:
        """Return False if notifications do not arrive, so that the worker polls."""
        return self._parts is not None and self._parts.listener.active

    def problems(self) -> list[str]:
        """Return what keeps the worker from working, in sentences. Call from any thread."""
        return problems(self.checks())

    def checks(self) -> list[HealthCheck]:
        """Return the health of the worker. Call from any thread."""
        if self._stopping.is_set():
            return [HealthCheck("worker", "the worker is stopping")]
        if self._parts is None:
            problem = self._registration.problem
            text = "the database has not been reached yet"
            return [HealthCheck("database", f"{text}: {problem}" if problem else text)]
        return [
            *self._parts.heartbeat.checks(),
            HealthCheck("schema"),
            *self._parts.claim_loop.checks(),
            *self._parts.listener.checks(),
            # The worker can run jobs without them, e.g. without a part in the election.
            *(replace(check, required=False) for service in self._services for check in service.checks()),
        ]

    def responds(self, within_s: float) -> bool:
        """Return False if the thread of the heartbeat or of another service has been blocked for that long."""
        monitored = [*self._services] if self._parts is None else [self._parts.heartbeat, *self._services]
        answers = [service.responds(within_s) for service in monitored]  # each is asked, also after one that hangs
        return all(answers)

    def stop(self) -> None:
        """Stop claiming, and let running jobs finish within the shutdown timeout. A second call interrupts them."""
        if self._stopping.is_set():
            self._hurrying.set()
        self._stopping.set()
        if self._parts is not None:
            self._parts.heartbeat.send_now()  # operators see that it is stopping

    @property
    def claims(self) -> bool:
        """Return whether the worker runs, and is not stopping."""
        return self._parts is not None and not self._parts.claim_loop.is_closed

    async def take_over(self) -> int:
        """Move stale jobs of dead workers to this one, as many as it has free slots. Return how many.

        Call it in the worker's event loop.
        """
        if self._parts is None or not self.claims:
            raise AwaError("the worker does not run: only a running one can take over jobs")
        return await self._parts.claim_loop.take_over()

    async def run(self, *, until_idle: bool = False) -> None:
        """Run jobs until `stop()` is called or, with `until_idle`, until no job is due."""
        token = current_worker.set(str(self.id))
        try:
            await self._register_and_run(until_idle=until_idle)
        finally:
            await self._registration.close()
            current_worker.reset(token)

    async def _register_and_run(self, *, until_idle: bool) -> None:
        registration = self._registration
        if not await self._until_stopped(registration.enter()):
            if registration.connected:  # the entry may have been written, and its answer not yet read
                await registration.leave(CLEANUP_TIMEOUT_S)
            return
        await registration.close()
        logger.info(
            "worker %s serves %s with %d slots and %d kinds",
            self.label,
            ", ".join(self._queues),
            self.info.concurrency,
            len(self.info.kinds),
        )
        try:
            await self._run_jobs(until_idle=until_idle)
        finally:
            await registration.leave(CLEANUP_TIMEOUT_S)
            logger.info("worker %s has stopped", self.label)

    async def _run_jobs(self, *, until_idle: bool) -> None:
        parts = self._parts = self._build_parts()
        self.metrics.worker.source = self._gauges
        # Stopped in reverse order: leases are renewed until the last outcome is written.
        services: list[BackgroundService] = [
            parts.heartbeat,
            parts.completer,
            parts.listener,
            *self._services,
            parts.event_log,
            parts.watchdog,
        ]
        async with running(services), parts.handler_threads:
            self.ready.set()
            try:
                await self._until_stopped(parts.claim_loop.run(until_idle=until_idle))
            finally:
                parts.claim_loop.close()
                parts.event_log.flush_soon()
                await parts.claim_loop.release_unreported(CLEANUP_TIMEOUT_S)
                await parts.claim_connection.close()
                parts.rate_limiter.stop_retrying()
                await self._drain(parts)
                await parts.close_durable()
                await parts.rate_limiter.close()
                await parts.rate_limit_connection.close()
                self.abandoned = parts.in_flight.abandoned + parts.step_threads.abandoned
                self.metrics.worker.source = None

    def _build_parts(self) -> WorkerParts:
        parts = WorkerParts(
            self._database,
            self._registry,
            self._settings,
            self.metrics,
            self.info,
            queues=self._queues,
            directives=self._registration.directives,
            stopping=self._stopping,
        )
        parts.register_callbacks(on_directives=self._apply)
        return parts

    def _apply(self, directives: Directives) -> None:
        if directives.stop and not self._stopping.is_set():
            logger.info("worker %s was told to stop", self.label)
            self.stop()
        if directives.quiet != self._quiet:
            change = "is quiet: it claims no jobs" if directives.quiet else "claims jobs again"
            logger.info("worker %s %s", self.label, change)
            self._quiet = directives.quiet

    def _gauges(self) -> Iterator[Value]:
        """Return the worker's current gauges. Call from any thread."""
        parts = self._parts
        assert parts is not None
        for queue in self._queues:
            yield RUNNING, (queue,), parts.in_flight.slots(queue).held
        yield SLOTS, (), self.info.concurrency
        yield HEARTBEAT, (), time.time() - parts.heartbeat.age_s
        yield LISTENING, (), self.listening

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run the work until it ends or the worker is told to stop. Return True if it ended."""
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            return working.done()
        finally:
            await cancel_and_wait(working, stopping)

    async def _drain(self, parts: WorkerParts) -> None:
        """Let running jobs finish, interrupt and release the rest. Heartbeats go on meanwhile."""
        executor = parts.executor
        executor.release_all_waiting()
        if not executor.idle.is_set():
            timeout_s = self._settings.shutdown_timeout.total_seconds()
            logger.info("waiting up to %.3g s for %d running jobs", timeout_s, executor.running)
            await _wait_for_any(executor.idle, self._hurrying, timeout_s=timeout_s)
        if not executor.idle.is_set():
            logger.warning("releasing %d jobs that did not finish in time", executor.running)
            executor.interrupt()
            await _wait_for_any(executor.idle, timeout_s=CLEANUP_TIMEOUT_S)
        try:
            async with asyncio.timeout(CLEANUP_TIMEOUT_S):
                await parts.completer.wait_flushed()
        except TimeoutError:
            message = "%d outcomes could not be written before the end: their jobs will be rescued"
            logger.error(message, len(parts.in_flight))


async def _wait_for_any(*events: asyncio.Event, timeout_s: float) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(*waits)


def _check_limits(queues: Mapping[str, int], concurrency: int) -> None:
    if not queues:
        raise ConfigError("a worker needs at least one queue: -q NAME, or AWA_QUEUES")
    if concurrency < 1:
        raise ConfigError(f"concurrency must be 1 or more, not {concurrency}")
    for queue, limit in queues.items():
        check_queue(queue)
        if limit < 1:
            raise ConfigError(f'queue "{queue}": the limit must be 1 or more, not {limit}')
