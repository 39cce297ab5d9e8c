"""What Prometheus sees. One object a process, handed to whoever counts."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import GaugeMetricFamily

from awa_py.observability.histogram import Histogram

MAX_QUEUE_LABELS = 100  # a leader sees queues that it does not serve: ten thousand would be too much for Prometheus
OTHER_QUEUES = "others, together"  # no queue is called so: a queue's name cannot hold a comma

JOB_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600)
STATEMENT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
LAG_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30)
BATCH_JOBS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class Reason(StrEnum):
    """Why an attempt failed."""

    ERROR = "error"  # the handler raised
    TIMEOUT = "timeout"  # it overran its time
    ARGUMENTS = "arguments"  # they do not fit the handler
    RESULT = "result"  # what it returned cannot be stored
    ASKED = "asked"  # the handler said so: awa.Retry, awa.Fail
    LOST = "lost"  # its worker died
    EXPIRED = "expired"  # its deadline passed before it could begin


@dataclass(frozen=True, slots=True)
class GaugeSpec:
    """A gauge: its name, what it says, its labels."""

    name: str
    text: str
    labels: tuple[str, ...] = ()


Value: TypeAlias = tuple[GaugeSpec, tuple[str, ...], float]

RUNNING = GaugeSpec("awa_jobs_running", "Jobs that run on this worker now", ("queue",))
SLOTS = GaugeSpec("awa_worker_slots", "How many jobs this worker runs at once")
HEARTBEAT = GaugeSpec("awa_heartbeat_timestamp_seconds", "When this worker's last heartbeat got through")
LISTENING = GaugeSpec("awa_listening", "1 while this worker hears wake-ups, 0 while it only polls")
WORKER_GAUGES = (RUNNING, SLOTS, HEARTBEAT, LISTENING)

QUEUE_JOBS = GaugeSpec("awa_queue_jobs", "Jobs of a queue in each state that is not completed", ("queue", "state"))
QUEUE_WAITING = GaugeSpec("awa_queue_oldest_waiting_seconds", "How long the first job of the queue is due", ("queue",))
QUEUE_PAUSED = GaugeSpec("awa_queue_paused", "1 while the queue is paused", ("queue",))
QUEUE_THROTTLED = GaugeSpec("awa_queue_throttled", "1 while the queue rests, since a handler was throttled", ("queue",))
QUEUE_MAX_WORKERS = GaugeSpec(
    "awa_queue_max_workers", "How many of the queue's jobs may run at once, where it has such a limit", ("queue",)
)
QUEUE_WORKERS = GaugeSpec("awa_queue_workers", "Live workers that serve the queue", ("queue",))
WORKERS = GaugeSpec("awa_workers", "Live workers")
DUE_LAG = GaugeSpec("awa_due_lag_seconds", "How long the oldest due job waits for its promotion")
STALE_LAG = GaugeSpec("awa_stale_lag_seconds", "For how long the oldest stale job should have been rescued")
BACKLOG = GaugeSpec("awa_cleanup_backlog_jobs", "Jobs past their retention that are still there", ("table",))
COUNTED = GaugeSpec("awa_queue_jobs_timestamp_seconds", "When the jobs of a table were last counted", ("table",))
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
    """Gauges that are there only while somebody vouches for them: a worker at work, a leader."""

    def __init__(self, declared: Sequence[GaugeSpec]) -> None:
        self._declared = declared
        self.source: Callable[[], Iterable[Value]] | None = None

    def describe(self) -> Iterator[GaugeMetricFamily]:
        for gauge in self._declared:
            yield GaugeMetricFamily(gauge.name, gauge.text, labels=gauge.labels)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        source = self.source  # somebody else's thread may take it away
        if source is None:
            return
        families = {family.name: family for family in self.describe()}
        for gauge, labels, value in source():
            families[gauge.name].add_metric(labels, value)
        yield from families.values()

    def total(self, gauge: GaugeSpec) -> float:
        """Of all its labels; 0 where nobody vouches for it."""
        source = self.source
        return 0.0 if source is None else sum(value for declared, _, value in source() if declared is gauge)


@dataclass(frozen=True, slots=True)
class ProcessStats:
    """How a process is, in a few numbers, over all its queues."""

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
    """The counters of a worker and of a leader. Jobs are timed only where somebody is `timing`."""

    def __init__(self, registry: CollectorRegistry | None = None, *, timing: bool = False) -> None:
        self.registry = registry or CollectorRegistry()
        self.timing = timing

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=self.registry)

        def histogram(name: str, text: str, bounds: Sequence[float], label: str | None = None) -> Histogram:
            made = Histogram(name, text, bounds, label)
            self.registry.register(made)
            return made

        self.claimed = counter("awa_jobs_claimed_total", "Jobs that this worker claimed", "queue")
        self.completed = counter("awa_jobs_completed_total", "Jobs that completed here", "queue")
        self.retried = counter(
            "awa_jobs_retried_total", "Attempts that failed and will be repeated, by reason", "queue", "reason"
        )
        self.failed = counter("awa_jobs_failed_total", "Jobs that failed for good, by reason", "queue", "reason")
        self.cancelled = counter("awa_jobs_cancelled_total", "Jobs that ended cancelled here", "queue")
        self.snoozed = counter("awa_jobs_snoozed_total", "Attempts that were put off", "queue")
        self.throttled = counter(
            "awa_jobs_throttled_total", "Attempts after which the queue had to rest, and that are repeated", "queue"
        )
        self.released = counter(
            "awa_jobs_released_total",
            "Jobs that were given back unfinished: at shutdown, or claimed ahead in vain",
            "queue",
        )
        self.lost_leases = counter("awa_lost_leases_total", "Attempts that were no longer ours when they ended")
        self.timeline_dropped = counter(
            "awa_timeline_dropped_total", "Events of the timeline that were not noted: too many, or no database"
        )
        self.wait = histogram("awa_job_wait_seconds", "How long jobs were due when they were claimed", JOB_S, "queue")
        self.run = histogram(
            "awa_job_run_seconds", "How long handlers ran; a call with a batch of jobs counts once", JOB_S, "kind"
        )
        self.claim_seconds = histogram("awa_claim_seconds", "How long claims took", STATEMENT_S)
        self.claim_jobs = histogram("awa_claim_jobs", "How many jobs a claim brought, where it brought any", BATCH_JOBS)
        self.flush_seconds = histogram("awa_flush_seconds", "How long it took to write outcomes", STATEMENT_S)
        self.flush_jobs = histogram("awa_flush_jobs", "How many outcomes were written together", BATCH_JOBS)
        self.loop_lag = histogram("awa_event_loop_lag_seconds", "How late the event loop turned to what was due", LAG_S)
        self.loop_turned = gauge("awa_event_loop_timestamp_seconds", "When the event loop last turned")
        self.reconnects = counter("awa_reconnects_total", "Lost connections that were made again", "connection")
        self.fallbacks = counter(
            "awa_polling_fallbacks_total", "Times that wake-ups were no longer heard, and the worker only polled"
        )
        self.worker = Gauges(WORKER_GAUGES)

        self.is_leader = gauge("awa_is_leader", "1 while this process is the leader")
        self.epoch = gauge("awa_leader_epoch", "The last epoch in which this process led, 0 before")
        self.elections = counter("awa_elections_total", "Elections that this process won")
        self.task_runs = counter("awa_task_runs_total", "Batches of a maintenance task", "task")
        self.task_rows = counter("awa_task_rows_total", "Rows that a maintenance task changed", "task")
        self.task_errors = counter("awa_task_errors_total", "Batches of a maintenance task that failed", "task")
        self.task_seconds = histogram(
            "awa_task_seconds", "How long batches of a maintenance task took", STATEMENT_S, "task"
        )
        self.unserved = counter("awa_unserved_jobs_total", "Due jobs whose kind no live worker knew", "queue")
        self.leader = Gauges(LEADER_GAUGES)
        for gauges in (self.worker, self.leader):
            self.registry.register(gauges)

        # Run times by kind, until the next flush; None: nobody is timing.
        self.run_times: dict[str, list[float]] | None = defaultdict(list) if timing else None
        self._queues: set[str] = set()

    def queue_label(self, name: str) -> str:
        """The label of a queue that is not one of the worker's own: the first hundred have their names."""
        if name not in self._queues:
            if len(self._queues) >= MAX_QUEUE_LABELS:
                return OTHER_QUEUES
            self._queues.add(name)
        return name

    def observe_runs(self) -> None:
        """Takes the run times that have gathered."""
        for kind, times in (self.run_times or {}).items():
            if times:
                self.run.labels(kind).observe_all(times)
                times.clear()

    def stats(self) -> ProcessStats:
        """The totals of now, from any thread."""
        return ProcessStats(
            running=int(self.worker.total(RUNNING)),
            done=_total(self.completed),
            failed=_total(self.failed),
            is_leader=bool(_total(self.is_leader)),
        )


def _total(metric: Counter | Gauge) -> int:
    samples = (sample for family in metric.collect() for sample in family.samples)
    return int(sum(sample.value for sample in samples if not sample.name.endswith("_created")))
