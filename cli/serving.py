"""The metrics port of `awa worker` and `awa maintenance`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from awa_py.http.health import Part, health_of
from awa_py.http.server import LOOPBACK, MetricsServer
from awa_py.metrics import Metrics

__all__ = ["LOOPBACK", "MetricsHost", "MetricsPort", "serving"]

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
def serving(metrics: Metrics, part: Part, *, host: str, port: int | None) -> Iterator[None]:
    """Answers on the port meanwhile; without a port, nobody asks."""
    if port is None:
        yield
        return
    server = MetricsServer(metrics, host=host, port=port, health=health_of(part))
    server.start()
    try:
        yield
    finally:
        server.stop()
