"""A real Prometheus scrapes a worker and a leader, and the shipped alerts fire and stop."""

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import awa_py as awa
from tests.chaos import jobs
from tests.processes import FAST, ROOT, Processes, eventually, processes

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="prometheus is not installed: Debian's package of that name"
    ),
]

# Scrape every second, with rules whose minutes and hours are shortened to seconds.
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [awa.rules.yml]
scrape_configs:
  - job_name: awa
    static_configs:
      - targets: ["127.0.0.1:{worker}", "127.0.0.1:{leader}"]
"""
JOBS = 40
TIMEOUT_S = 90.0


def shortened(rules: str) -> str:
    return re.sub(r"\b(\d+)[mh]\b", r"\1s", rules)


def free_ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


class Prometheus:
    """A Prometheus server."""

    def __init__(self, directory: Path, *, worker: int, leader: int) -> None:
        (directory / "prometheus.yml").write_text(CONFIG.format(worker=worker, leader=leader))
        rules = (ROOT / "monitoring" / "awa.rules.yml").read_text()
        (directory / "awa.rules.yml").write_text(shortened(rules))
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}/api/v1"
        self._log = (directory / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _get(self, path: str, **values: str) -> Any:
        query = f"{self._url}/{path}?{urllib.parse.urlencode(values)}"
        try:
            with urllib.request.urlopen(query, timeout=10) as response:
                return json.load(response)["data"]
        except OSError:
            return {}  # it has not started yet

    def value(self, query: str) -> float | None:
        """Return the value of a query that has one result."""
        results = self._get("query", query=query).get("result", [])
        return float(results[0]["value"][1]) if results else None

    def fires(self, alert: str) -> bool:
        alerts = self._get("alerts").get("alerts", [])
        return any(each["labels"]["alertname"] == alert and each["state"] == "firing" for each in alerts)


@pytest.fixture
def ports() -> list[int]:
    return free_ports(2)


@pytest.fixture
def prometheus(tmp_path: Path, ports: list[int]) -> Iterator[Prometheus]:
    directory = tmp_path / "prometheus"
    directory.mkdir()
    server = Prometheus(directory, worker=ports[0], leader=ports[1])
    yield server
    server.stop()


@pytest.fixture
def started(database_url: str, tmp_path: Path) -> Iterator[Processes]:
    with processes(tmp_path, database_url, {**FAST, "AWA_METRICS_INTERVAL": "1s"}) as started:
        yield started


def test_only_durations_are_shortened() -> None:
    rules = shortened('delta(x{le="1.0"}[10m]) > 100\nfor: 2m\nfor: 1h\nsummary: "in 15 minutes"')
    assert rules == 'delta(x{le="1.0"}[10s]) > 100\nfor: 2s\nfor: 1s\nsummary: "in 15 minutes"'


async def test_alerts_fire_for_a_stopped_worker_and_a_growing_queue(
    prometheus: Prometheus, started: Processes, ports: list[int], client: awa.App
) -> None:
    worker_options = ("--no-maintenance", "--metrics-port", str(ports[0]))
    worker = started.worker(*worker_options)
    started.start("maintenance", "--metrics-port", str(ports[1]))
    await eventually("both are scraped", lambda: prometheus.value('sum(up{job="awa"})') == 2, TIMEOUT_S)
    await client.enqueue_many([jobs.quick.new() for _ in range(JOBS)])
    await eventually("jobs are completed", lambda: prometheus.value("sum(awa_jobs_completed_total)") == JOBS, TIMEOUT_S)
    await eventually("there is a leader", lambda: prometheus.value("sum(awa_is_leader)") == 1, TIMEOUT_S)
    await eventually("the leader sees the worker", lambda: prometheus.value("awa_workers") == 1, TIMEOUT_S)
    alerts = ("AwaDown", "AwaNoLeader", "AwaNoWorkers", "AwaQueueGrows", "AwaQueueUnserved")
    await eventually("no alert fires", lambda: not any(map(prometheus.fires, alerts)), TIMEOUT_S)

    worker.send(signal.SIGTERM)
    worker.wait()
    await eventually("the worker is down", lambda: prometheus.fires("AwaDown"), TIMEOUT_S)
    await eventually("there are no workers", lambda: prometheus.fires("AwaNoWorkers"), TIMEOUT_S)

    async def grows() -> bool:
        await client.enqueue_many([jobs.quick.new() for _ in range(JOBS)])
        await asyncio.sleep(0.2)
        return prometheus.fires("AwaQueueGrows")

    await eventually("the queue grows", grows, TIMEOUT_S)
    assert prometheus.fires("AwaQueueUnserved")

    started.worker(*worker_options)
    await eventually("no alert fires again", lambda: not any(map(prometheus.fires, alerts)), TIMEOUT_S)
    waiting = 'sum(awa_queue_jobs{state="available"})'
    await eventually("the queue is empty", lambda: prometheus.value(waiting) == 0, TIMEOUT_S)
