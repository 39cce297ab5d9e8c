"""The metrics port: answers of /metrics, /healthz and /readyz, and errors."""

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from awa_py.errors import ConfigError
from awa_py.observability.checks import HealthCheck
from awa_py.observability.http.health import Health, health_probe
from awa_py.observability.http.server import MetricsServer
from awa_py.observability.metrics import Metrics

Ask = Callable[..., tuple[int, str, bytes]]


class FakeSource:
    """A health source whose problems a test sets."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def checks(self) -> list[HealthCheck]:
        return [HealthCheck(f"check {n}", problem) for n, problem in enumerate(self.problems)]


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def server(metrics: Metrics, source: FakeSource) -> Iterator[MetricsServer]:
    server = MetricsServer(metrics, host="127.0.0.1", port=0, health=health_probe(source))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def ask(server: MetricsServer) -> Ask:
    def ask(path: str, method: str = "GET", **headers: str) -> tuple[int, str, bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type", ""), answer.read()

    return ask


def body(answer: tuple[int, str, bytes]) -> Any:
    assert answer[1] == "application/json"
    return json.loads(answer[2])


def test_metrics_page_shows_awa_and_python_metrics(ask: Ask, metrics: Metrics) -> None:
    metrics.completed.labels("email").inc(3)
    status, content_type, text = ask("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert status == 200
    assert content_type.startswith("text/plain; version=0.0.4")
    (sample,) = [s for s in families["awa_jobs_completed"].samples if s.name == "awa_jobs_completed_total"]
    assert (sample.labels, sample.value) == ({"queue": "email"}, 3.0)
    assert {"python_info", "python_gc_collections"} <= set(families)


def test_metrics_page_serves_openmetrics_on_request(ask: Ask) -> None:
    status, content_type, text = ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert status == 200
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith(b"# EOF\n")


def test_healthz_succeeds_while_the_process_is_not_ready(ask: Ask, source: FakeSource) -> None:
    source.problems = ["no heartbeat succeeded"]
    answer = ask("/healthz")
    assert (answer[0], body(answer)) == (200, {"status": "alive", "problems": [], "warnings": [], "checks": {}})


def test_readyz_succeeds_without_problems(ask: Ask) -> None:
    answer = ask("/readyz?verbose=1")
    assert (answer[0], body(answer)) == (200, {"status": "ready", "problems": [], "warnings": [], "checks": {}})


def test_readyz_lists_problems_and_recovers(ask: Ask, source: FakeSource) -> None:
    source.problems = ["no heartbeat succeeded", "not listening"]
    answer = ask("/readyz")
    assert (answer[0], body(answer)["status"], body(answer)["problems"]) == (503, "not ready", source.problems)
    assert body(answer)["checks"]["check 1"] == {"ok": False, "problem": "not listening"}
    source.problems = []
    assert ask("/readyz")[0] == 200


def test_health_probe_collects_the_problems_of_all_sources() -> None:
    first, second = FakeSource(), FakeSource()
    first.problems, second.problems = ["a", "b"], ["c"]
    assert health_probe(first, second)().problems == ["a", "b", "c"]
    assert health_probe()().good


def test_failed_optional_check_is_a_warning() -> None:
    health = Health([HealthCheck("leadership", "cannot take part in the election", {"leading": False}, required=False)])
    assert health.answer("ready", "not ready") == {
        "status": "ready",
        "problems": [],
        "warnings": ["cannot take part in the election"],
        "checks": {"leadership": {"ok": False, "problem": "cannot take part in the election", "leading": False}},
    }


@pytest.mark.parametrize("path", ["/", "/metricsx", "/healthz/", "//"])
def test_unknown_path_is_answered_with_the_known_paths(ask: Ask, path: str) -> None:
    answer = ask(path)
    assert answer[0] == 404
    assert "/metrics, /healthz and /readyz" in body(answer)["error"]


def test_head_request_has_no_body(ask: Ask) -> None:
    for path, status in [("/metrics", 200), ("/readyz", 200), ("/nowhere", 404)]:
        assert ask(path, "HEAD")[::2] == (status, b"")


def test_other_methods_get_an_error(ask: Ask) -> None:
    answer = ask("/metrics", "POST")
    assert answer[0] == 501
    assert "POST" in body(answer)["error"]


def test_requests_write_nothing_to_standard_error(
    ask: Ask, server: MetricsServer, capfd: pytest.CaptureFixture[str]
) -> None:
    ask("/metrics")
    ask("/nowhere")
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=10)) as client:
        client.sendall(b"\x00\xff nonsense\r\n\r\n")
        while client.recv(4096):
            pass
    assert capfd.readouterr().err == ""


def test_failing_health_check_does_not_stop_the_server(metrics: Metrics) -> None:
    def broken() -> Health:
        raise RuntimeError("broken")

    server = MetricsServer(metrics, host="127.0.0.1", port=0, health=broken)
    server.start()
    try:
        for _ in range(2):
            with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
                connection.request("GET", "/readyz")
                answer = connection.getresponse()
                assert answer.status == 503
                assert "broken" in json.loads(answer.read())["problems"][0]
    finally:
        server.stop()


def test_port_in_use_is_a_config_error(server: MetricsServer) -> None:
    with pytest.raises(ConfigError, match=f"the metrics port {server.port} of 127.0.0.1 is in use"):
        MetricsServer(Metrics(), host="127.0.0.1", port=server.port).start()


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("192.0.2.1", 0), ("no.such.host.invalid", 0)])
def test_invalid_address_is_a_config_error(host: str, port: int) -> None:
    with pytest.raises(ConfigError, match="cannot serve metrics at"):
        MetricsServer(Metrics(), host=host, port=port).start()


def test_stopped_server_frees_its_port(server: MetricsServer) -> None:
    port = server.port
    server.stop()
    server.stop()
    again = MetricsServer(Metrics(), host="127.0.0.1", port=port)
    again.start()
    assert again.port == port
    again.stop()


def test_two_servers_can_serve_the_same_metrics(server: MetricsServer, metrics: Metrics) -> None:
    other = MetricsServer(metrics, host="127.0.0.1", port=0)
    other.start()
    assert other.port != server.port
    other.stop()


def test_healthz_fails_while_the_event_loop_is_blocked(metrics: Metrics) -> None:
    blocked = FakeSource()
    blocked.problems = ["the event loop has been blocked for 42 s"]
    server = MetricsServer(metrics, port=0, liveness=health_probe(blocked))
    server.start()
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
            connection.request("GET", "/healthz")
            answer = connection.getresponse()
            answered = json.loads(answer.read())
        assert (answer.status, answered["status"], answered["problems"]) == (503, "blocked", blocked.problems)
    finally:
        server.stop()


def test_metrics_page_omits_created_series(ask: Ask, metrics: Metrics) -> None:
    metrics.completed.labels("email").inc()
    assert b"_created" not in ask("/metrics")[2]


def test_server_accepts_a_listening_socket(metrics: Metrics) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = MetricsServer(metrics, listener_fd=listener.detach())
    server.start()
    try:
        assert server.port == port
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("GET", "/metrics")
            assert connection.getresponse().status == 200
    finally:
        server.stop()
