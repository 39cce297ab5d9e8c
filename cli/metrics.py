"""The metrics port of `awa worker` and `awa maintenance`, and the export to an OpenTelemetry collector."""

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
        help="Serve /metrics, /healthz and /readyz on this port.",
        rich_help_panel=PANEL,
    ),
]
MetricsHost = Annotated[
    str,
    typer.Option(envvar="AWA_METRICS_HOST", metavar="HOST", help="Address to serve them on.", rich_help_panel=PANEL),
]


@contextmanager
def serve_metrics(metrics: Metrics, source: HealthSource, *, host: str, port: int | None) -> Iterator[None]:
    """Serve metrics on the port, and export them to the collector, if either is configured."""
    with ExitStack() as stack:
        if port is not None:
            stack.enter_context(_serve_port(metrics, source, host, port))
        stack.enter_context(export_telemetry(metrics.registry, str(uuid4())))
        yield


@contextmanager
def serve_processes(supervisor: Supervisor, *, host: str, port: int | None) -> Iterator[None]:
    """Serve the metrics of all processes of a supervisor on one port."""
    if port is None:
        yield
        return
    processes = ProcessAggregate(supervisor)
    server = MetricsServer(
        processes, host=host, port=port, health=processes.ready, liveness=processes.live, process_metrics=False
    )
    with signals_for_main_thread():
        server.start()
    try:
        yield
    finally:
        server.stop()


@contextmanager
def _serve_port(metrics: Metrics, source: HealthSource, host: str, port: int) -> Iterator[None]:
    inherited = os.environ.pop(SOCKET_VARIABLE, None)  # removed, so that the processes of jobs do not inherit it
    loop_monitor = LoopMonitor(partial(_record_loop_lag, metrics))
    server = MetricsServer(
        metrics,
        host=host,
        port=port,
        listener_fd=None if inherited is None else int(inherited),
        health=health_probe(source, loop_monitor),
        liveness=health_probe(loop_monitor),
    )
    server.start()
    loop_monitor.start()
    try:
        yield
    finally:
        loop_monitor.stop()
        server.stop()


def _record_loop_lag(metrics: Metrics, late_s: float) -> None:
    metrics.loop_lag.observe(late_s)
    metrics.loop_turned.set(time.time())
