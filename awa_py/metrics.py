"""What Prometheus sees. One object a process, handed to whoever counts."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge


@dataclass(frozen=True, slots=True)
class Figures:
    """How a process is, in a few numbers, over all its queues."""

    running: int = 0
    done: int = 0
    failed: int = 0
    leads: bool = False

    def __add__(self, other: "Figures") -> "Figures":
        return Figures(
            self.running + other.running,
            self.done + other.done,
            self.failed + other.failed,
            self.leads or other.leads,
        )


class Metrics:
    """The counters of a worker and of a leader."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=self.registry)

        self.claimed = counter("awa_jobs_claimed_total", "Jobs that this worker claimed", "queue")
        self.completed = counter("awa_jobs_completed_total", "Jobs that completed here", "queue")
        self.retried = counter("awa_jobs_retried_total", "Attempts that failed and will be repeated", "queue")
        self.failed = counter("awa_jobs_failed_total", "Jobs that failed for good here", "queue")
        self.cancelled = counter("awa_jobs_cancelled_total", "Jobs that ended cancelled here", "queue")
        self.snoozed = counter("awa_jobs_snoozed_total", "Attempts that were put off", "queue")
        self.released = counter(
            "awa_jobs_released_total",
            "Jobs that were given back unfinished: at shutdown, or claimed ahead in vain",
            "queue",
        )
        self.lost_leases = counter("awa_lost_leases_total", "Attempts that were no longer ours when they ended")
        self.running = gauge("awa_jobs_running", "Jobs that run on this worker now", "queue")
        self.is_leader = gauge("awa_is_leader", "1 while this process is the leader")
        self.elections = counter("awa_elections_total", "Elections that this process won")
        self.task_runs = counter("awa_task_runs_total", "Batches of a maintenance task", "task")
        self.task_rows = counter("awa_task_rows_total", "Rows that a maintenance task changed", "task")
        self.task_errors = counter("awa_task_errors_total", "Batches of a maintenance task that failed", "task")
        self.unserved = counter("awa_unserved_jobs_total", "Due jobs whose kind no live worker knew", "queue")

    def figures(self) -> Figures:
        """The totals of now, from any thread."""
        return Figures(
            running=_total(self.running),
            done=_total(self.completed),
            failed=_total(self.failed),
            leads=bool(_total(self.is_leader)),
        )


def _total(metric: Counter | Gauge) -> int:
    samples = (sample for family in metric.collect() for sample in family.samples)
    return int(sum(sample.value for sample in samples if not sample.name.endswith("_created")))
