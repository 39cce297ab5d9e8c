"""Metrics and health of a supervisor's processes behind one port.

Each process serves its own on a loopback socket, and is asked for them at each request. Its metrics are passed on with
its number as a label. Nothing is summed here: Prometheus can do that.
"""

import http.client
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from awa_py.background import BLOCKED_S
from awa_py.observability.checks import HealthCheck
from awa_py.observability.http.health import Health
from awa_py.worker.processes.child_process import ChildProcess
from awa_py.worker.processes.supervisor import Supervisor

LABEL = "process"
TIMEOUT_S = 2.0
UP = ("awa_process_up", "1 while this process runs and answers")
STARTS = ("awa_process_starts_total", "Number of times that this process was started")


class ProcessAggregate:
    """Combines the metrics and health of all processes of a supervisor."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._children = supervisor.children
        self._threads = ThreadPoolExecutor(len(self._children))  # for all requests: their number is bounded
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield each metric family once, with the samples of all processes."""
        up = GaugeMetricFamily(*UP, labels=[LABEL])
        starts = CounterMetricFamily(*STARTS, labels=[LABEL])
        families: dict[str, Metric] = {}
        for child, text in self._ask_all("/metrics"):
            name = str(child.number)
            up.add_metric([name], text is not None)
            starts.add_metric([name], child.starts)
            for family in text_string_to_metric_families(text or ""):
                combined = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                combined.samples += [
                    sample._replace(labels={LABEL: name, **sample.labels}) for sample in family.samples
                ]
        yield from (up, starts, *families.values())

    def ready(self) -> Health:
        """Report whether all processes are ready."""
        return Health([_readiness(child, text) for child, text in self._ask_all("/readyz")])

    def live(self) -> Health:
        """Report whether a process is blocked. One that died does not count, since the supervisor restarts it."""
        return Health([_liveness(child, text) for child, text in self._ask_all("/healthz")])

    def _ask_all(self, path: str) -> Iterator[tuple[ChildProcess, str | None]]:
        """Ask all processes in parallel. Yield each with its answer, or None without one."""
        yield from zip(self._children, self._threads.map(partial(_get, path), self._children), strict=True)


def _get(path: str, child: ChildProcess) -> str | None:
    if child.process is None or child.metrics_socket is None:
        return None
    host, port = child.metrics_socket.getsockname()
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _readiness(child: ChildProcess, text: str | None) -> HealthCheck:
    if child.process is None:
        return _check(child, ["it is not running"])
    return _check(child, ["it does not answer"]) if text is None else _check(child, **json.loads(text))


def _liveness(child: ChildProcess, text: str | None) -> HealthCheck:
    if child.process is None or (text is None and child.age_s < BLOCKED_S):
        return _check(child, [])
    return _check(child, ["it does not answer"]) if text is None else _check(child, **json.loads(text))


def _check(child: ChildProcess, problems: Sequence[str], checks: Any = None, **_: Any) -> HealthCheck:
    problem = f"process {child.number}: {'; '.join(problems)}" if problems else None
    details = {"running": child.process is not None, "starts": child.starts}
    return HealthCheck(f"process {child.number}", problem, details if checks is None else {**details, "checks": checks})
