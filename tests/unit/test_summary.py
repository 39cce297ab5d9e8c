"""The line that `systemctl status` shows."""

from prometheus_client import CollectorRegistry

from awa_py.observability.metrics import RUNNING, SLOTS, Metrics, ProcessStats, Reason
from awa_py.systemd.summary import Summary


def test_summary_shows_totals_and_rate() -> None:
    seen = iter([ProcessStats(running=3, done=0), ProcessStats(done=120, failed=1, is_leader=True)])
    summary = Summary(lambda: next(seen), "queues default, email")
    assert summary() == "3 running, 0 done (0.0/s); queues default, email"
    first, rest = summary().split(" (", 1)
    assert first == "0 running, 120 done"
    assert rest.split("/s)")[1] == ", 1 failed; queues default, email; leader"
    assert float(rest.split("/s)")[0]) > 0


def test_process_stats_are_totals_of_all_queues() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.completed.labels("default").inc(2)
    metrics.completed.labels("email").inc(3)
    metrics.failed.labels("email", Reason.ERROR).inc()
    metrics.worker.source = lambda: [(RUNNING, ("email",), 3), (SLOTS, (), 100), (RUNNING, ("default",), 1)]
    metrics.is_leader.set(1)
    assert metrics.stats() == ProcessStats(running=4, done=5, failed=1, is_leader=True)
    assert metrics.stats() + ProcessStats(running=1) == ProcessStats(running=5, done=5, failed=1, is_leader=True)
