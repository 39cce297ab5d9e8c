"""The processes of a supervisor behind one port: each has a loopback socket of its own, and is asked when somebody
asks. What it says is passed on with its number as a label; nothing is summed up, that is for whoever looks."""

import http.client
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
PATIENCE_S = 2.0
UP = ("awa_process_up", "1 while this process of several runs and answers")
STARTS = ("awa_process_starts_total", "How often this process of several was started")


class ProcessAggregate:
    """All processes of a supervisor, as if they were one."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._children = supervisor.children
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Every family once, with the samples of all processes."""
        up = GaugeMetricFamily(*UP, labels=[LABEL])
        starts = CounterMetricFamily(*STARTS, labels=[LABEL])
        families: dict[str, Metric] = {}
        for child, text in self._ask_all("/metrics"):
            name = str(child.number)
            up.add_metric([name], text is not None)
            starts.add_metric([name], child.starts)
            for family in text_string_to_metric_families(text or ""):
                whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                whole.samples += [one._replace(labels={LABEL: name, **one.labels}) for one in family.samples]
        yield from (up, starts, *families.values())

    def ready(self) -> Health:
        """All of them are at work."""
        return Health([self._ready(child, text) for child, text in self._ask_all("/readyz")])

    def live(self) -> Health:
        """None is stuck. One that died is no reason to end the others: it is started again."""
        return Health([self._live(child, text) for child, text in self._ask_all("/healthz")])

    def _ready(self, child: ChildProcess, text: str | None) -> HealthCheck:
        if child.process is None:
            return _check(child, ["it is not running"])
        return _check(child, ["it does not answer"]) if text is None else _check(child, **json.loads(text))

    def _live(self, child: ChildProcess, text: str | None) -> HealthCheck:
        if child.process is None or (text is None and child.age_s < BLOCKED_S):
            return _check(child, [])
        return _check(child, ["it does not answer"]) if text is None else _check(child, **json.loads(text))

    def _ask_all(self, path: str) -> Iterator[tuple[ChildProcess, str | None]]:
        """What each says, all asked at once; None: it does not answer."""
        with ThreadPoolExecutor(len(self._children)) as threads:
            yield from zip(self._children, threads.map(_asker(path), self._children), strict=True)


def _asker(path: str) -> Callable[[ChildProcess], str | None]:
    def ask(child: ChildProcess) -> str | None:
        if child.process is None or child.listener is None:
            return None
        host, port = child.listener.getsockname()
        connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    return ask


def _check(child: ChildProcess, problems: Sequence[str], checks: Any = None, **_: Any) -> HealthCheck:
    problem = f"process {child.number}: {'; '.join(problems)}" if problems else None
    details = {"running": child.process is not None, "starts": child.starts}
    return HealthCheck(f"process {child.number}", problem, details if checks is None else {**details, "checks": checks})
