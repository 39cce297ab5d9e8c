"""Answer one request of the metrics port. Whatever a client sends, it gets an answer, within a deadline."""

import io
import json
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from typing import Any, Protocol, TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from awa_py.observability.checks import HealthCheck
from awa_py.observability.http.health import Health
from awa_py.text import describe_chain

REQUEST_TIMEOUT_S = 10.0  # from the connection to the last byte of the answer
LINGER_S = 1.0

HealthProbe: TypeAlias = Callable[[], Health]


class MetricsSource(Protocol):
    """What the server has to offer."""

    registry: CollectorRegistry
    health: HealthProbe
    liveness: HealthProbe
    is_loopback: bool  # only this host can connect


class DeadlineReader(io.RawIOBase):
    """Reads a socket. Each read may take as long as is left until the deadline, so that slow clients gain nothing."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        set_timeout(self._connection, self._deadline)
        return self._connection.recv_into(buffer)


class Handler(BaseHTTPRequestHandler):
    """Serves `/metrics`, `/healthz` and `/readyz`. A connection has one request."""

    server: MetricsSource  # type: ignore[assignment]  # it is a ThreadingHTTPServer too
    server_version = "awa"
    sys_version = ""
    default_request_version = "HTTP/1.0"  # the answer to a bad request has a status line too

    def setup(self) -> None:
        super().setup()
        self._deadline = time.monotonic() + REQUEST_TIMEOUT_S
        self._has_replied = self._has_failed = False
        self.rfile.close()
        self.rfile = io.BufferedReader(DeadlineReader(self.connection, self._deadline))
        self.raw_requestline = b""
        self.requestline, self.request_version, self.command = "", self.default_request_version, ""

    def handle_one_request(self) -> None:
        """Like the standard library's, but always with an answer."""
        try:
            super().handle_one_request()
        except OSError:  # the client does not read, or has gone
            raise
        except Exception as error:
            if not self._has_replied:
                self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, describe_chain(error))
            raise
        if self.raw_requestline and not self._has_replied:
            self.send_error(HTTPStatus.BAD_REQUEST, "the first line of the request is empty")

    def log_error(self, *_: Any) -> None:
        """Answer a timeout, which the standard library only logs."""
        if not self._has_replied:
            self.send_error(HTTPStatus.REQUEST_TIMEOUT, f"no whole request within {REQUEST_TIMEOUT_S:.0f} s")

    def do_GET(self) -> None:
        foreign = self._foreign_host()
        if foreign is not None:
            self.send_error(HTTPStatus.FORBIDDEN, f"host {foreign!r}: this port answers only requests for localhost")
            return
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._metrics()
        elif path == "/healthz":
            self._health(self.server.liveness, "alive", "blocked")
        elif path == "/readyz":
            self._health(self.server.health, "ready", "not ready")
        else:
            self.send_error(HTTPStatus.NOT_FOUND, f"{path} not found: this port serves /metrics, /healthz and /readyz")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _foreign_host(self) -> str | None:
        """Return the host that the client asked for if it is not this one, although only this host can connect.

        A web page in a browser here can make requests to loopback, by a name of its own that leads there.
        """
        if not self.server.is_loopback:
            return None
        return next((host for host in self.headers.get_all("Host", []) if not is_local(host)), None)

    def _metrics(self) -> None:
        try:
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        except Exception:  # it fails on some versions that are no numbers
            encode, content_type = choose_encoder("")
        self._reply(HTTPStatus.OK, content_type, encode(self.server.registry))

    def _health(self, probe: HealthProbe, good: str, bad: str) -> None:
        try:
            health = probe()
        except Exception as error:
            health = Health([HealthCheck("health", f"the health check failed: {describe_chain(error)}")])
        self._reply_json(HTTPStatus.OK if health.good else HTTPStatus.SERVICE_UNAVAILABLE, health.answer(good, bad))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with JSON, also for errors that the standard library detects."""
        self.close_connection = True
        self._has_failed = True
        self._reply_json(code, {"error": message or HTTPStatus(code).phrase})

    def _reply_json(self, status: int, answer: Mapping[str, Any]) -> None:
        self._reply(status, "application/json", json.dumps(answer).encode() + b"\n")

    def _reply(self, status: int, content_type: str, body: bytes) -> None:
        self._has_replied = True
        set_timeout(self.connection, max(self._deadline, time.monotonic() + LINGER_S))
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def finish(self) -> None:
        with suppress(OSError):
            if self._has_failed:
                self._discard_input()
        super().finish()

    def _discard_input(self) -> None:
        """Read what the client still sends: closing a connection with unread input destroys the answer."""
        self.connection.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + LINGER_S
        while time.monotonic() < deadline:
            set_timeout(self.connection, deadline)
            if not self.connection.recv(65536):
                break

    def log_message(self, *_: Any) -> None:
        """Do not log requests: standard error is the worker's log."""


def set_timeout(connection: socket.socket, deadline: float) -> None:
    """Let the next operation take until the deadline. Raise TimeoutError if it has passed."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the deadline of the request has passed")
    connection.settimeout(left_s)


def is_local(host: str) -> bool:
    """Return whether a Host header names this host: localhost or a loopback address, with or without a port."""
    name = host.strip().lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") <= 1:
        name = name.partition(":")[0]
    if name in ("localhost", "localhost."):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
