"""The parts of a running worker, built in the order of their dependencies.

    claim loop ──jobs──► executor ──outcomes──► completer ──► database
        ▲                                           └──events──► event log ──► database
        └── listener (notifications) and heartbeat (directives) wake it and configure it

Parts that need each other in both directions are connected by callbacks, all of them in `register_callbacks`.
"""

import asyncio
from collections.abc import Callable, Mapping

from awa_py.db.database import ASYNC_COMMIT_SETTINGS, Database
from awa_py.db.listener import Listener
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.db.types import DedicatedConnection
from awa_py.model.registry import Registry
from awa_py.observability.metrics import Metrics
from awa_py.rate_limiter import RateLimiter, request_tokens_over
from awa_py.settings import Settings
from awa_py.store.claim import Claimant
from awa_py.store.heartbeat import WorkerInfo, lock_worker
from awa_py.store.session import Session
from awa_py.worker.claiming.claim_loop import ClaimLoop
from awa_py.worker.claiming.wakeups import Wakeups
from awa_py.worker.completer import Completer
from awa_py.worker.directives import Directives
from awa_py.worker.event_log import EventLog
from awa_py.worker.executor import Executor
from awa_py.worker.heartbeat import Heartbeat
from awa_py.worker.in_flight import InFlightJobs
from awa_py.worker.loop_watchdog import LoopWatchdog
from awa_py.worker.notifications import NotificationDispatcher
from awa_py.worker.tracing_executor import executor_type


class WorkerParts:
    """Builds the parts and connects them. Create it in the worker's event loop."""

    def __init__(
        self,
        database: Database,
        registry: Registry,
        settings: Settings,
        metrics: Metrics,
        worker: WorkerInfo,
        *,
        queues: Mapping[str, int],
        directives: Directives,
        stopping: asyncio.Event,
    ) -> None:
        self._database = database
        self._registry = registry
        self._settings = settings
        self._metrics = metrics
        self._worker = worker
        self.in_flight = InFlightJobs(queues, worker.concurrency)
        self.listener = Listener(database, metrics)
        self.event_log = self._build_event_log()
        self.completer = self._build_completer()
        self.rate_limit_connection = ReconnectingConnection(database, "rates", metrics, ASYNC_COMMIT_SETTINGS)
        self.rate_limiter = RateLimiter(request_tokens_over(self.rate_limit_connection, database.schema))
        self.executor = self._build_executor()
        self.watchdog = LoopWatchdog(self.executor.call_in, settings.blocked_after.total_seconds())
        wakeups = Wakeups()
        self.heartbeat = Heartbeat(
            database,
            worker,
            settings,
            self.in_flight,
            metrics,
            wakeups=wakeups,
            listener=self.listener,
            stopping=stopping,
            directives=directives,
        )
        self.claim_connection = ReconnectingConnection(
            database,
            "claims",
            metrics,
            ASYNC_COMMIT_SETTINGS,
            on_connect=self._lock_worker,  # like the heartbeat: the worker counts as alive while one of the two lives
        )
        self.claim_loop = self._build_claim_loop(wakeups)
        self.claim_loop.apply(directives)

    def register_callbacks(self, on_directives: Callable[[Directives], None]) -> None:
        """Connect the parts. Callbacks are called in the order of their registration."""
        self.in_flight.on_slot_free(self.executor.run_waiting)
        self.in_flight.on_slot_free(self.claim_loop.slot_freed)
        self.heartbeat.on_directives(on_directives)
        self.heartbeat.on_directives(self.claim_loop.apply)
        dispatcher = NotificationDispatcher(self._worker, self.claim_loop, self.heartbeat, self.in_flight)
        self.listener.on_notification(dispatcher.dispatch)
        self.listener.on_subscribed(self.claim_loop.wake_all)

    def _build_event_log(self) -> EventLog:
        return EventLog(
            ReconnectingConnection(self._database, "timeline", self._metrics, ASYNC_COMMIT_SETTINGS),
            self._database.schema,
            self.in_flight,
            self._metrics,
            self._worker.id,
            enabled=bool(self._settings.events_retention),
        )

    def _build_completer(self) -> Completer:
        return Completer(
            ReconnectingConnection(self._database, "finishes", self._metrics),
            self._database.schema,
            self.in_flight,
            self._metrics,
            self.event_log,
            self._worker.id,
            keep_completed=bool(self._settings.completed_retention),
        )

    def _build_executor(self) -> Executor:
        return executor_type()(
            self._registry,
            self.in_flight,
            threads=self._worker.concurrency,
            max_result_bytes=self._settings.max_args_bytes,
            on_finished=self.completer.add,
            on_progress=self.completer.add_progress,
            rate_limits=self.rate_limiter,
            run_times=self._metrics.run_times,
        )

    def _build_claim_loop(self, wakeups: Wakeups) -> ClaimLoop:
        registry = self._registry
        return ClaimLoop(
            self.claim_connection,
            self._database.schema,
            self.in_flight,
            self.heartbeat,
            self._metrics,
            claimant=Claimant(
                worker_id=self._worker.id,
                kinds=registry.kinds,
                detailed_kinds=registry.kinds if self.executor.needs_details else registry.kinds_with_context,
                timed=self._metrics.timing,
            ),
            queues=list(self._worker.queues),
            registry=registry,
            poll_s=self._settings.poll_interval.total_seconds(),
            staleness=self._settings.heartbeat_staleness,
            executor=self.executor,
            wakeups=wakeups,
            listener=self.listener,
        )

    async def _lock_worker(self, connection: DedicatedConnection) -> None:
        await lock_worker(Session(connection, self._database.schema), self._worker.id)
