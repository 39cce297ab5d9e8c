"""The metrics port: `/metrics`, `/healthz` and `/readyz`.

It runs in its own threads, so that it answers while the event loop is blocked. Their number is bounded, and so is the
time of a request (`handler.py`).
"""

import errno
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import ThreadingHTTPServer
from ipaddress import ip_address
from socketserver import TCPServer
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.metrics_core import Metric

from awa_py.errors import ConfigError
from awa_py.observability.http.handler import Handler, HealthProbe
from awa_py.observability.http.health import Health

logger = logging.getLogger("awa.http")

LOOPBACK = "127.0.0.1"
MAX_CONNECTIONS = 32  # each has a thread
TOO_MANY_CONNECTIONS = (
    b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    b'{"error": "too many connections: close some, or try again in 10 s"}\n'
)
SHUTDOWN_POLL_S = 0.05


class HasRegistry(Protocol):
    """Metrics of one process, or an aggregate of several."""

    registry: CollectorRegistry


class MetricsServer:
    """Serves metrics and health until it is stopped or the process ends."""

    def __init__(
        self,
        metrics: HasRegistry,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        listener_fd: int | None = None,
        health: HealthProbe = Health,
        liveness: HealthProbe = Health,
        process_metrics: bool = True,
    ) -> None:
        """`listener_fd`: a socket that listens already. `process_metrics`: include this process's memory and CPU."""
        self._host = host
        self._port = port
        self._listener_fd = listener_fd
        self._health = health
        self._liveness = liveness
        self._registry = _WithoutCreatedSeries()
        self._registry.register(metrics.registry)
        for collector in (ProcessCollector, PlatformCollector, GCCollector) if process_metrics else ():
            collector(registry=self._registry)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that is listened on; before start(), the requested one."""
        return self._port if self._server is None else int(self._server.server_address[1])

    def start(self) -> None:
        """Listen and answer. Raise ConfigError if the port cannot be opened."""
        try:
            self._server = _Server(
                self._host, self._port, self._listener_fd, self._registry, self._health, self._liveness
            )
        except (OSError, OverflowError) as error:
            raise ConfigError(self._port_error(error)) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(SHUTDOWN_POLL_S,), name="awa-http", daemon=True
        )
        self._thread.start()
        level = logging.INFO if self._listener_fd is None else logging.DEBUG
        logger.log(level, "serving metrics at http://%s:%d/metrics", self._shown_host, self.port)

    def stop(self) -> None:
        """Stop answering and free the port."""
        server, self._server = self._server, None
        if server is None or self._thread is None:
            return
        server.shutdown()
        self._thread.join()
        server.server_close()

    @property
    def _shown_host(self) -> str:
        return f"[{self._host}]" if ":" in self._host else self._host

    def _port_error(self, error: OSError | OverflowError) -> str:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return f"the metrics port {self._port} of {self._host} is in use: choose another, or 0 for any free port"
        why = error.strerror if isinstance(error, OSError) else str(error)
        return f"cannot serve metrics at {self._shown_host}:{self._port}: {why}"


class _WithoutCreatedSeries(CollectorRegistry):
    """Drops the `_created` series of counters, which would double the number of series."""

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class _Server(ThreadingHTTPServer):
    allow_reuse_port = False  # the default of Python 3.14 would share a port that is in use
    request_queue_size = 128

    def __init__(
        self,
        host: str,
        port: int,
        listener_fd: int | None,
        registry: CollectorRegistry,
        health: HealthProbe,
        liveness: HealthProbe,
    ) -> None:
        self.registry = registry
        self.health = health
        self.liveness = liveness
        if ":" in host:
            self.address_family = socket.AF_INET6
        self._free_connections = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host, port), Handler, bind_and_activate=listener_fd is None)
        if listener_fd is not None:
            self.socket.close()
            self.socket = socket.socket(fileno=listener_fd)
            self.socket.set_inheritable(False)  # processes that jobs start must not hold it
            self.server_address = self.socket.getsockname()
        self.is_loopback = ip_address(str(self.server_address[0]).partition("%")[0]).is_loopback

    def server_bind(self) -> None:
        # HTTPServer would look up this host's name in DNS, which can take seconds. The name is not needed.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; at once if there are too many."""
        if self._free_connections.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except BaseException:  # no thread could be started
                self._free_connections.release()
                raise
            return
        request.settimeout(0)
        with suppress(OSError):
            request.sendall(TOO_MANY_CONNECTIONS)
            request.recv(65536)  # closing a connection with unread input destroys the answer
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free_connections.release()

    def handle_error(self, request: object, client_address: object) -> None:
        # Usually a client that disconnected before it received the answer.
        logger.debug("a request from %s failed", client_address, exc_info=True)
