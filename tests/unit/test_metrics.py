"""Metric names follow Prometheus' conventions, and the number of label values is bounded."""

import re
import shutil
import subprocess

import pytest
from prometheus_client import generate_latest

from awa_py.observability.metrics import LISTENING, MAX_QUEUE_LABELS, OTHER_QUEUES, RUNNING, Metrics, Reason
from tests.metric_specs import MetricSpec, all_metrics

LABELS = {"queue", "kind", "reason", "state", "task", "table", "connection", "process"}


@pytest.mark.parametrize("metric", all_metrics(), ids=lambda metric: metric.name)
def test_metric_name_follows_the_conventions(metric: MetricSpec) -> None:
    assert re.fullmatch(r"awa(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.type == "counter")
    assert not re.search(r"_(ms|millis|us|minutes|hours|s|sec|kb|mb)(_total)?$", metric.name)
    assert not re.search(r"_(count|sum|bucket|gauge|counter|histogram)$", metric.name)
    assert metric.help.strip()
    assert set(metric.labels) <= LABELS


def test_metric_names_are_unique() -> None:
    names = [metric.name for metric in all_metrics()]
    assert len(names) == len(set(names)) > 35


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: Debian's package prometheus")
def test_promtool_accepts_all_metrics() -> None:
    metrics = Metrics(timing=True)
    for value in vars(metrics).values():
        names = getattr(value, "_labelnames", ())
        if names:
            value.labels(*names).inc()
    metrics.wait.labels("email").observe(1.0)
    metrics.run.labels("send").observe(1.0)
    metrics.task_seconds.labels("promote").observe(1.0)
    for gauges in (metrics.worker, metrics.leader):
        gauges.source = lambda gauges=gauges: [(gauge, gauge.labels, 1.0) for gauge in gauges._specs]
    text = generate_latest(metrics.registry)
    assert {metric.name for metric in all_metrics() if not metric.name.startswith("awa_process")} <= {
        line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE")
    }
    answer = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60)
    assert (answer.returncode, answer.stdout + answer.stderr) == (0, b"")


def test_gauges_are_exposed_only_while_they_have_a_source() -> None:
    metrics = Metrics()
    assert b"awa_listening" not in generate_latest(metrics.registry)
    metrics.worker.source = lambda: [(LISTENING, (), True), (RUNNING, ("email",), 3)]
    text = generate_latest(metrics.registry)
    assert b"\nawa_listening 1.0\n" in text
    assert b'\nawa_jobs_running{queue="email"} 3.0\n' in text
    metrics.worker.source = None
    assert b"awa_jobs_running" not in generate_latest(metrics.registry)


def test_leader_labels_100_queues_and_sums_the_others() -> None:
    metrics = Metrics()
    for n in range(10_000):
        metrics.failed.labels(metrics.queue_label(f"q{n}"), Reason.LOST).inc()
    names = [line for line in generate_latest(metrics.registry).decode().splitlines() if "jobs_failed_total{" in line]
    assert len(names) == MAX_QUEUE_LABELS + 1
    assert f'awa_jobs_failed_total{{queue="{OTHER_QUEUES}",reason="lost"}} 9900.0' in names
    assert metrics.queue_label("q7") == "q7"


def test_jobs_are_timed_only_if_timing_is_set() -> None:
    assert Metrics().run_times is None
    metrics = Metrics(timing=True)
    assert metrics.run_times is not None
    metrics.run_times["send"].append(0.5)
    metrics.observe_runs()
    metrics.observe_runs()
    assert metrics.registry.get_sample_value("awa_job_run_seconds_count", {"kind": "send"}) == 1
