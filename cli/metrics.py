"""What `awa worker` and `awa maintenance` tell of themselves: on the metrics port, and to a collector."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Annotated
from uuid import uuid4

import typer

from awa_py.background import LoopMonitor
from awa_py.observability.http.aggregate import ProcessAggregate
from awa_py.observability.http.health import HealthSource, health_probe
from awa_py.observability.http.server import LOOPBACK, MetricsServer
from awa_py.observability.metrics import Metrics
from awa_py.observability.otlp import export_telemetry
from awa_py.worker.processes.supervisor import SOCKET_VARIABLE, Supervisor, signals_for_main_thread

__all__ = ["LOOPBACK", "MetricsHost", "MetricsPort", "serve_metrics", "serve_processes"]

PANEL = "Metrics"

MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        envvar="AWA_METRICS_PORT",
        metavar="PORT",
        help="Serve /metrics, /healthz and /readyz there.",
        rich_help_panel=PANEL,
    ),
]
MetricsHost = Annotated[
    str,
    typer.Option(
        envvar="AWA_METRICS_HOST", metavar="HOST", help="The address to serve them on.", rich_help_panel=PANEL
    ),
]


@contextmanager
def serve_metrics(metrics: Metrics, part: HealthSource, *, host: str, port: int | None) -> Iterator[None]:
    """EnqueuedJobs on the port meanwhile, where there is one; and sends to the collector, where there is one."""
    with ExitStack() as ends:
        if port is not None:
            ends.enter_context(_port(metrics, part, host, port))
        ends.enter_context(export_telemetry(metrics.registry, str(uuid4())))
        yield


@contextmanager
def serve_processes(supervisor: Supervisor, *, host: str, port: int | None) -> Iterator[None]:
    """The same for all processes of a supervisor, on one port."""
    if port is None:
        yield
        return
    aggregate = ProcessAggregate(supervisor)
    server = MetricsServer(
        aggregate, host=host, port=port, health=aggregate.ready, liveness=aggregate.live, process_metrics=False
    )
    with signals_for_main_thread():
        server.start()
    try:
        yield
    finally:
        server.stop()


@contextmanager
def _port(metrics: Metrics, part: HealthSource, host: str, port: int) -> Iterator[None]:
    inherited = os.environ.pop(SOCKET_VARIABLE, None)  # not for the processes that jobs start
    monitor = LoopMonitor(partial(_record_lag, metrics))
    server = MetricsServer(
        metrics,
        host=host,
        port=port,
        listener_fd=None if inherited is None else int(inherited),
        health=health_probe(part, monitor),
        liveness=health_probe(monitor),
    )
    server.start()
    monitor.start()
    try:
        yield
    finally:
        monitor.stop()
        server.stop()


def _record_lag(metrics: Metrics, late_s: float) -> None:
    metrics.loop_lag.observe(late_s)
    metrics.loop_turned.set(time.time())
