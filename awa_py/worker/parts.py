"""The parts of a running worker, built in the order of their dependencies.

    claim loop ──jobs──► executor ──outcomes──► completer ──► database
        ▲                                           └──events──► event log ──► database
        └── listener (notifications) and heartbeat (directives) wake it and configure it

Parts that need each other in both directions are connected by callbacks, all of them in `register_callbacks`.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta

from awa_py.connections import DedicatedConnection
from awa_py.db.database import ASYNC_COMMIT_SETTINGS, Database
from awa_py.db.listener import Listener
from awa_py.db.reconnecting import ReconnectingConnection
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
from awa_py.worker.durable.recorder import Recorder
from awa_py.worker.durable.run import DurableRun, DurableServices
from awa_py.worker.durable.step_threads import StepThreads
from awa_py.worker.durable.transactions import Transactions
from awa_py.worker.event_log import EventLog
from awa_py.worker.executor import Executor
from awa_py.worker.handler_calls import HandlerCalls
from awa_py.worker.handler_threads import HandlerThreads
from awa_py.worker.heartbeat import Heartbeat
from awa_py.worker.in_flight import InFlightJobs
from awa_py.worker.loop_watchdog import LoopWatchdog
from awa_py.worker.notifications import NotificationDispatcher
from awa_py.worker.tracing_calls import handler_calls_type

MAX_FROZEN = timedelta(minutes=5)  # with an open transaction


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
        self.recorder = self._build_recorder()
        self.step_threads = StepThreads(worker.concurrency)
        self.transactions = Transactions(database, worker.id)
        self._durable = self._build_durable_services(stopping)
        self.handler_threads = HandlerThreads(self.in_flight)
        self._calls = self._build_handler_calls()
        self.executor = Executor(
            registry,
            self.in_flight,
            self._calls,
            on_finished=self.completer.add,
            run_times=metrics.run_times,
        )
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

    def _build_recorder(self) -> Recorder:
        # If the worker freezes while it spawns children, the locks of its transaction must not keep jobs from a rescue.
        timeout = min(self._settings.heartbeat_staleness, MAX_FROZEN)
        settings = {"idle_in_transaction_session_timeout": str(int(timeout.total_seconds() * 1000))}
        connection = ReconnectingConnection(self._database, "records", self._metrics, settings)
        return Recorder(connection, self._database.schema, self._metrics, self._worker.id)

    def _build_durable_services(self, stopping: asyncio.Event) -> DurableServices:
        return DurableServices(
            loop=asyncio.get_running_loop(),
            loop_thread=threading.get_ident(),
            recorder=self.recorder,
            transactions=self.transactions,
            threads=self.step_threads,
            is_draining=stopping.is_set,
            max_step_bytes=self._settings.max_step_bytes,
            max_result_bytes=self._settings.max_args_bytes,
            max_steps=self._settings.max_steps,
        )

    async def close_durable(self) -> None:
        """Close what durable jobs used."""
        self.step_threads.close()
        await self.transactions.close()
        await self.recorder.stop()

    def _build_handler_calls(self) -> HandlerCalls:
        return handler_calls_type()(
            self._registry,
            self.in_flight,
            self.handler_threads,
            max_result_bytes=self._settings.max_args_bytes,
            on_progress=self.completer.progress_writer.add,
            rate_limits=self.rate_limiter,
            begin_run=lambda job: DurableRun(job, self._durable),
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
                detailed_kinds=registry.kinds if self._calls.needs_details else registry.kinds_with_context,
                timed=self._metrics.timing,
            ),
            queues=list(self._worker.queues),
            registry=registry,
            poll_s=self._settings.poll_interval.total_seconds(),
            staleness=self._settings.heartbeat_staleness,
            executor=self.executor,
            wakeups=wakeups,
            listener=self.listener,
            wait_flushed=self.completer.wait_flushed,
        )

    async def _lock_worker(self, connection: DedicatedConnection) -> None:
        await lock_worker(Session(connection, self._database.schema), self._worker.id)
