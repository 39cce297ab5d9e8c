"""The Prometheus metrics of a process. There is one Metrics object per process, passed to everything that counts."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import GaugeMetricFamily

from awa_py.observability.histogram import Histogram

MAX_QUEUE_LABELS = 100  # a leader sees all queues: ten thousand label values would overload Prometheus
OTHER_QUEUES = "others, together"  # cannot be a queue: names of queues contain no comma

JOB_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600)
STATEMENT_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
LAG_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30)
BATCH_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class Reason(StrEnum):
    """Why an attempt failed."""

    ERROR = "error"  # the handler raised
    TIMEOUT = "timeout"  # the attempt exceeded its timeout
    ARGUMENTS = "arguments"  # they do not match the handler's signature
    RESULT = "result"  # the return value cannot be stored
    ASKED = "asked"  # the handler raised or returned awa.Retry or awa.Fail
    STEP = "step"  # a step cannot be recorded or repeated
    LOST = "lost"  # the worker died
    EXPIRED = "expired"  # the deadline passed before the attempt started
    INVALID = "invalid"  # the row has values that awa cannot work with


@dataclass(frozen=True, slots=True)
class GaugeSpec:
    """The name, help text and label names of a gauge."""

    name: str
    help: str
    labels: tuple[str, ...] = ()


Value: TypeAlias = tuple[GaugeSpec, tuple[str, ...], float]

RUNNING = GaugeSpec("awa_jobs_running", "Jobs that are running on this worker", ("queue",))
SLOTS = GaugeSpec("awa_worker_slots", "Number of jobs that this worker can run at once")
HEARTBEAT = GaugeSpec("awa_heartbeat_timestamp_seconds", "Time of this worker's last successful heartbeat")
LISTENING = GaugeSpec("awa_listening", "1 while this worker receives wake-ups, 0 while it only polls")
WORKER_GAUGES = (RUNNING, SLOTS, HEARTBEAT, LISTENING)

QUEUE_JOBS = GaugeSpec("awa_queue_jobs", "Jobs of a queue by state, except completed", ("queue", "state"))
QUEUE_WAITING = GaugeSpec(
    "awa_queue_oldest_waiting_seconds", "How long the oldest available job of the queue has been due", ("queue",)
)
QUEUE_PAUSED = GaugeSpec("awa_queue_paused", "1 while the queue is paused", ("queue",))
QUEUE_THROTTLED = GaugeSpec("awa_queue_throttled", "1 while the queue is throttled", ("queue",))
QUEUE_MAX_WORKERS = GaugeSpec(
    "awa_queue_max_workers", "Number of the queue's jobs that may run at once; absent without a limit", ("queue",)
)
QUEUE_WORKERS = GaugeSpec("awa_queue_workers", "Live workers that serve the queue", ("queue",))
WORKERS = GaugeSpec("awa_workers", "Live workers")
DUE_LAG = GaugeSpec("awa_due_lag_seconds", "How long the oldest due job has been waiting for promotion")
STALE_LAG = GaugeSpec("awa_stale_lag_seconds", "How long the rescue of the oldest stale job is overdue")
BACKLOG = GaugeSpec("awa_cleanup_backlog_jobs", "Jobs past their retention that are not deleted yet", ("table",))
COUNTED = GaugeSpec(
    "awa_queue_jobs_timestamp_seconds", "Time at which the jobs of a table were last counted", ("table",)
)
LEADER_GAUGES = (
    QUEUE_JOBS,
    QUEUE_WAITING,
    QUEUE_PAUSED,
    QUEUE_THROTTLED,
    QUEUE_MAX_WORKERS,
    QUEUE_WORKERS,
    WORKERS,
    DUE_LAG,
    STALE_LAG,
    BACKLOG,
    COUNTED,
)


class Gauges:
    """Gauges that are exposed only while a source provides their values, e.g. while a worker runs or leads."""

    def __init__(self, specs: Sequence[GaugeSpec]) -> None:
        self._specs = specs
        self.source: Callable[[], Iterable[Value]] | None = None

    def describe(self) -> Iterator[GaugeMetricFamily]:
        for gauge in self._specs:
            yield GaugeMetricFamily(gauge.name, gauge.help, labels=gauge.labels)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        source = self.source  # another thread may set it to None
        if source is None:
            return
        families = {family.name: family for family in self.describe()}
        for gauge, labels, value in source():
            families[gauge.name].add_metric(labels, value)
        yield from families.values()

    def total(self, gauge: GaugeSpec) -> float:
        """Return the sum over all labels; 0 without a source."""
        source = self.source
        return 0.0 if source is None else sum(value for spec, _, value in source() if spec is gauge)


@dataclass(frozen=True, slots=True)
class ProcessStats:
    """Totals of one process over all its queues."""

    running: int = 0
    done: int = 0
    failed: int = 0
    is_leader: bool = False

    def __add__(self, other: "ProcessStats") -> "ProcessStats":
        return ProcessStats(
            self.running + other.running,
            self.done + other.done,
            self.failed + other.failed,
            self.is_leader or other.is_leader,
        )


class Metrics:
    """The metrics of a worker and of a leader. Jobs are timed only if `timing` is set."""

    def __init__(self, registry: CollectorRegistry | None = None, *, timing: bool = False) -> None:
        self.registry = registry or CollectorRegistry()
        self.timing = timing

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(name, help_text, labels, registry=self.registry)

        def gauge(name: str, help_text: str, *labels: str) -> Gauge:
            return Gauge(name, help_text, labels, registry=self.registry)

        def histogram(name: str, help_text: str, bounds: Sequence[float], label: str | None = None) -> Histogram:
            registered = Histogram(name, help_text, bounds, label)
            self.registry.register(registered)
            return registered

        self.claimed = counter("awa_jobs_claimed_total", "Jobs that this worker claimed", "queue")
        self.completed = counter("awa_jobs_completed_total", "Jobs that completed on this worker", "queue")
        self.retried = counter(
            "awa_jobs_retried_total", "Attempts that failed and will be retried, by reason", "queue", "reason"
        )
        self.failed = counter(
            "awa_jobs_failed_total", "Jobs that failed without another attempt, by reason", "queue", "reason"
        )
        self.cancelled = counter("awa_jobs_cancelled_total", "Jobs that were cancelled on this worker", "queue")
        self.suspended = counter("awa_jobs_suspended_total", "Attempts that ended because the job waits", "queue")
        self.records = counter("awa_checkpoints_total", "Checkpoints of durable jobs that were recorded")
        self.replays = counter("awa_replays_total", "Attempts of durable jobs that went on from recorded checkpoints")
        self.snoozed = counter("awa_jobs_snoozed_total", "Attempts that ended with a snooze", "queue")
        self.advanced = counter("awa_jobs_advanced_total", "Attempts that ended with the job's next state", "queue")
        self.throttled = counter(
            "awa_jobs_throttled_total", "Attempts that throttled their queue and will be repeated", "queue"
        )
        self.released = counter(
            "awa_jobs_released_total",
            "Jobs that were returned to the queue unfinished: at shutdown, or prefetched and not started",
            "queue",
        )
        self.lost_leases = counter("awa_lost_leases_total", "Attempts that had lost their lease when they ended")
        self.timeline_dropped = counter(
            "awa_timeline_dropped_total",
            "Job events that were dropped: the buffer was full or the database unavailable",
        )
        self.wait = histogram(
            "awa_job_wait_seconds", "How long jobs had been due when they were claimed", JOB_BUCKETS_S, "queue"
        )
        self.run = histogram(
            "awa_job_run_seconds", "How long handlers ran; a batch of jobs counts as one call", JOB_BUCKETS_S, "kind"
        )
        self.claim_seconds = histogram("awa_claim_seconds", "Duration of claims", STATEMENT_BUCKETS_S)
        self.claim_jobs = histogram("awa_claim_jobs", "Number of jobs per claim, except empty claims", BATCH_BUCKETS)
        self.record_seconds = histogram(
            "awa_checkpoint_flush_seconds", "Duration of writing checkpoints", STATEMENT_BUCKETS_S
        )
        self.flush_seconds = histogram("awa_flush_seconds", "Duration of writing outcomes", STATEMENT_BUCKETS_S)
        self.flush_jobs = histogram("awa_flush_jobs", "Number of outcomes written at once", BATCH_BUCKETS)
        self.loop_lag = histogram("awa_event_loop_lag_seconds", "How late the event loop ran its timers", LAG_BUCKETS_S)
        self.loop_turned = gauge("awa_event_loop_timestamp_seconds", "Time at which the event loop last ran")
        self.reconnects = counter("awa_reconnects_total", "Lost connections that were re-established", "connection")
        self.fallbacks = counter(
            "awa_polling_fallbacks_total", "Times that the worker lost its wake-ups and fell back to polling"
        )
        self.malformed_notifications = counter(
            "awa_malformed_notifications_total", "Notifications that were ignored because awa did not send them"
        )
        self.worker = Gauges(WORKER_GAUGES)

        self.is_leader = gauge("awa_is_leader", "1 while this process is the leader")
        self.foreign_lock_holders = gauge(
            "awa_leader_lock_foreign_holders", "Sessions that hold the leader's lock and are no leader"
        )
        self.epoch = gauge("awa_leader_epoch", "The last epoch in which this process was the leader; 0 if it never was")
        self.elections = counter("awa_elections_total", "Elections that this process won")
        self.task_runs = counter("awa_task_runs_total", "Batches of a maintenance task", "task")
        self.task_rows = counter("awa_task_rows_total", "Rows that a maintenance task changed", "task")
        self.task_errors = counter("awa_task_errors_total", "Batches of a maintenance task that failed", "task")
        self.task_seconds = histogram(
            "awa_task_seconds", "Duration of a maintenance task's batches", STATEMENT_BUCKETS_S, "task"
        )
        self.unserved = counter(
            "awa_unserved_jobs_total", "Due jobs whose kind no live worker has a handler for", "queue"
        )
        self.leader = Gauges(LEADER_GAUGES)
        for gauges in (self.worker, self.leader):
            self.registry.register(gauges)

        # Run times by kind since the last flush; None if jobs are not timed.
        self.run_times: dict[str, list[float]] | None = defaultdict(list) if timing else None
        self._queues: set[str] = set()

    def queue_label(self, name: str) -> str:
        """Return the label of a queue that this process may not serve: only the first 100 queues get their own."""
        if name not in self._queues:
            if len(self._queues) >= MAX_QUEUE_LABELS:
                return OTHER_QUEUES
            self._queues.add(name)
        return name

    def observe_runs(self) -> None:
        """Move the collected run times into the histogram."""
        for kind, times in (self.run_times or {}).items():
            if times:
                self.run.labels(kind).observe_all(times)
                times.clear()

    def stats(self) -> ProcessStats:
        """Return the current totals. Safe from any thread."""
        return ProcessStats(
            running=int(self.worker.total(RUNNING)),
            done=_total(self.completed),
            failed=_total(self.failed),
            is_leader=bool(_total(self.is_leader)),
        )


def _total(metric: Counter | Gauge) -> int:
    samples = (sample for family in metric.collect() for sample in family.samples)
    return int(sum(sample.value for sample in samples if not sample.name.endswith("_created")))
