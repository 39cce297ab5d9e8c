"""The metrics port answers whatever a client sends, within a deadline and with a bounded number of threads."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from awa_py.observability.http import handler
from awa_py.observability.http.handler import is_local
from awa_py.observability.http.server import MAX_CONNECTIONS, MetricsServer
from awa_py.observability.metrics import Metrics

TIMEOUT_S = 20


@pytest.fixture(scope="module")
def server() -> Iterator[MetricsServer]:
    server = MetricsServer(Metrics(), port=0)
    server.start()
    yield server
    server.stop()


def connect(server: MetricsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S)


def read_all(client: socket.socket) -> bytes:
    answer = b""
    while chunk := client.recv(65536):
        answer += chunk
    return answer


def ask(server: MetricsServer, request: bytes) -> bytes:
    """Send a request and the end of the input. Return the answer."""
    with closing(connect(server)) as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        return read_all(client)


def status(answer: bytes) -> int:
    version, code = answer.split(b"\r\n")[0].split()[:2]
    assert version.startswith(b"HTTP/1.")
    return int(code)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text; version=x.y.z\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nContent-Length: many\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nExpect: 100-continue\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\na: " + b"b" * 100_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /healthz HTTP/3.0\r\n\r\n", 505),
        (b"GET /healthz HTTP/one\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x00\xff nonsense\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"BREW /metrics HTTP/1.1\r\n\r\n", 501),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000, 501),
    ],
)
def test_bad_request_gets_an_answer(server: MetricsServer, request_: bytes, code: int) -> None:
    answer = ask(server, request_)
    assert status(answer) == code
    if code != 200:
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("LOCALHOST:9465", True),
        ("127.0.0.1:9465", True),
        ("127.8.8.8", True),
        ("[::1]:9465", True),
        ("::1", True),
        ("evil.example", False),
        ("evil.example:9465", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_loopback_port_answers_only_requests_for_localhost(server: MetricsServer, host: str, allowed: bool) -> None:
    assert is_local(host) is allowed
    answer = ask(server, f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert status(answer) == (200 if allowed else 403)


def test_second_host_header_is_checked_too(server: MetricsServer) -> None:
    assert status(ask(server, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")) == 403


def test_public_port_answers_requests_for_any_host() -> None:
    server = MetricsServer(Metrics(), host="0.0.0.0", port=0)
    server.start()
    try:
        assert status(ask(server, b"GET /healthz HTTP/1.1\r\nHost: worker-7.example\r\n\r\n")) == 200
    finally:
        server.stop()


def test_client_that_sends_a_byte_at_a_time_is_answered_at_the_deadline(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "REQUEST_TIMEOUT_S", 0.5)
    with closing(connect(server)) as client:
        stop = threading.Event()

        def trickle() -> None:
            client.sendall(b"GET /metrics HTTP/1.1\r\nx: ")
            while not stop.wait(0.05):
                try:
                    client.sendall(b"y")
                except OSError:
                    return

        sender = threading.Thread(target=trickle)
        sender.start()
        try:
            assert status(read_all(client)) == 408
        finally:
            stop.set()
            sender.join()


def test_silent_client_is_answered_at_the_deadline(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "REQUEST_TIMEOUT_S", 0.2)
    with closing(connect(server)) as client:
        assert status(read_all(client)) == 408


def test_number_of_threads_is_bounded_and_recovers(server: MetricsServer) -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(connect(server))) for _ in range(MAX_CONNECTIONS + 20)]
        refused = [client for client in clients[MAX_CONNECTIONS:] if b"too many connections" in read_all(client)]
        assert len(refused) == 20
        assert threading.active_count() <= before + MAX_CONNECTIONS
    deadline = time.monotonic() + TIMEOUT_S
    while status(ask(server, b"GET /healthz HTTP/1.0\r\n\r\n")) != 200:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_burst_of_connections_fits_into_the_backlog(server: MetricsServer) -> None:
    """All are accepted by the kernel at once, also if the server's thread does not run in the meantime."""
    assert server._server is not None
    assert server._server.request_queue_size >= 100


# Parts of real requests in any order, and any bytes.
WORDS = [
    *(b"GET", b"HEAD", b"POST", b" ", b"/metrics", b"/healthz", b"/readyz", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9"),
    *(b"\r\n", b"\n", b"\r", b":", b"Host: localhost", b"Host: evil.example", b"Accept: ", b"Content-Length: -1"),
    *(b"application/openmetrics-text; version=", b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"\x00"),
]
requests = st.lists(st.one_of(st.sampled_from(WORDS), st.binary(max_size=20)), max_size=15).map(b"".join)


@given(requests)
@settings(max_examples=2_000, deadline=None)
def test_any_request_gets_an_answer(server: MetricsServer, request_: bytes) -> None:
    answer = ask(server, request_)
    if request_:
        assert 200 <= status(answer) < 600
        assert status(answer) != 500, answer


def test_server_still_works_after_the_others(server: MetricsServer) -> None:
    assert status(ask(server, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")) == 200
