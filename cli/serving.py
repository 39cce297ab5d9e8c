"""What `awa worker` and `awa maintenance` tell of themselves: on the metrics port, and to a collector."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated
from uuid import uuid4

import typer

from awa_py.http.health import Part, health_of
from awa_py.http.server import LOOPBACK, MetricsServer
from awa_py.metrics import Metrics
from awa_py.otlp import exporting

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
    """Answers on the port meanwhile, where there is one; and sends to the collector, where there is one."""
    with ExitStack() as ends:
        if port is not None:
            server = MetricsServer(metrics, host=host, port=port, health=health_of(part))
            server.start()
            ends.callback(server.stop)
        ends.enter_context(exporting(metrics.registry, str(uuid4())))
        yield
