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


class Doctor:
    """Says what the test wants it to say."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def checks(self) -> list[HealthCheck]:
        return [HealthCheck(f"check {n}", problem) for n, problem in enumerate(self.found)]


@pytest.fixture
def doctor() -> Doctor:
    return Doctor()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def server(metrics: Metrics, doctor: Doctor) -> Iterator[MetricsServer]:
    server = MetricsServer(metrics, host="127.0.0.1", port=0, health=health_probe(doctor))
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


def test_metrics_are_those_of_the_process(ask: Ask, metrics: Metrics) -> None:
    metrics.completed.labels("email").inc(3)
    status, content_type, text = ask("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert status == 200
    assert content_type.startswith("text/plain; version=0.0.4")
    (sample,) = [s for s in families["awa_jobs_completed"].samples if s.name == "awa_jobs_completed_total"]
    assert (sample.labels, sample.value) == ({"queue": "email"}, 3.0)
    assert {"python_info", "python_gc_collections"} <= set(families)


def test_metrics_come_as_open_metrics_for_who_asks(ask: Ask) -> None:
    status, content_type, text = ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert status == 200
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith(b"# EOF\n")


def test_a_living_process_says_so_even_when_it_is_not_ready(ask: Ask, doctor: Doctor) -> None:
    doctor.found = ["no heartbeat got through"]
    answer = ask("/healthz")
    assert (answer[0], body(answer)) == (200, {"status": "alive", "problems": [], "warnings": [], "checks": {}})


def test_ready(ask: Ask) -> None:
    answer = ask("/readyz?verbose=1")
    assert (answer[0], body(answer)) == (200, {"status": "ready", "problems": [], "warnings": [], "checks": {}})


def test_not_ready_says_why_and_recovers(ask: Ask, doctor: Doctor) -> None:
    doctor.found = ["no heartbeat got through", "not listening"]
    answer = ask("/readyz")
    assert (answer[0], body(answer)["status"], body(answer)["problems"]) == (503, "not ready", doctor.found)
    assert body(answer)["checks"]["check 1"] == {"ok": False, "problem": "not listening"}
    doctor.found = []
    assert ask("/readyz")[0] == 200


def test_health_gathers_the_problems_of_all_parts() -> None:
    first, second = Doctor(), Doctor()
    first.found, second.found = ["a", "b"], ["c"]
    assert health_probe(first, second)().problems == ["a", "b", "c"]
    assert health_probe()().good


def test_what_is_not_vital_is_a_warning() -> None:
    health = Health([HealthCheck("leadership", "cannot stand", {"leading": False}, required=False)])
    assert health.answer("ready", "not ready") == {
        "status": "ready",
        "problems": [],
        "warnings": ["cannot stand"],
        "checks": {"leadership": {"ok": False, "problem": "cannot stand", "leading": False}},
    }


@pytest.mark.parametrize("path", ["/", "/metricsx", "/healthz/", "//"])
def test_unknown_paths_are_answered_with_what_there_is(ask: Ask, path: str) -> None:
    answer = ask(path)
    assert answer[0] == 404
    assert "/metrics, /healthz or /readyz" in body(answer)["error"]


def test_head_has_no_body(ask: Ask) -> None:
    for path, status in [("/metrics", 200), ("/readyz", 200), ("/nowhere", 404)]:
        assert ask(path, "HEAD")[::2] == (status, b"")


def test_other_methods_are_refused(ask: Ask) -> None:
    answer = ask("/metrics", "POST")
    assert answer[0] == 501
    assert "POST" in body(answer)["error"]


def test_standard_error_stays_quiet(ask: Ask, server: MetricsServer, capfd: pytest.CaptureFixture[str]) -> None:
    ask("/metrics")
    ask("/nowhere")
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=10)) as rude:
        rude.sendall(b"\x00\xff nonsense\r\n\r\n")
        while rude.recv(4096):
            pass
    assert capfd.readouterr().err == ""


def test_a_failing_health_check_does_not_take_the_server_down(metrics: Metrics) -> None:
    def broken() -> Health:
        raise RuntimeError("no idea")

    server = MetricsServer(metrics, host="127.0.0.1", port=0, health=broken)
    server.start()
    try:
        for _ in range(2):
            with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
                connection.request("GET", "/readyz")
                answer = connection.getresponse()
                assert answer.status == 503
                assert "no idea" in json.loads(answer.read())["problems"][0]
    finally:
        server.stop()


def test_a_taken_port_is_a_sentence(server: MetricsServer) -> None:
    with pytest.raises(ConfigError, match=f"the metrics port {server.port} of 127.0.0.1 is taken"):
        MetricsServer(Metrics(), host="127.0.0.1", port=server.port).start()


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("192.0.2.1", 0), ("no.such.host.invalid", 0)])
def test_an_impossible_address_is_a_sentence(host: str, port: int) -> None:
    with pytest.raises(ConfigError, match="cannot serve metrics at"):
        MetricsServer(Metrics(), host=host, port=port).start()


def test_a_stopped_server_frees_its_port_and_can_start_again(server: MetricsServer) -> None:
    port = server.port
    server.stop()
    server.stop()
    again = MetricsServer(Metrics(), host="127.0.0.1", port=port)
    again.start()
    assert again.port == port
    again.stop()


def test_two_servers_can_show_the_same_metrics(server: MetricsServer, metrics: Metrics) -> None:
    other = MetricsServer(metrics, host="127.0.0.1", port=0)
    other.start()
    assert other.port != server.port
    other.stop()


def test_a_blocked_event_loop_is_not_alive(metrics: Metrics) -> None:
    blocked = Doctor()
    blocked.found = ["the event loop has not turned for 42 s"]
    server = MetricsServer(metrics, port=0, liveness=health_probe(blocked))
    server.start()
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
            connection.request("GET", "/healthz")
            answer = connection.getresponse()
            said = json.loads(answer.read())
        assert (answer.status, said["status"], said["problems"]) == (503, "blocked", blocked.found)
    finally:
        server.stop()


def test_the_times_at_which_counters_began_are_left_out(ask: Ask, metrics: Metrics) -> None:
    metrics.completed.labels("email").inc()
    assert b"_created" not in ask("/metrics")[2]


def test_it_can_serve_on_a_socket_that_listens_already(metrics: Metrics) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = MetricsServer(metrics, inherited=listener.detach())
    server.start()
    try:
        assert server.port == port
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("GET", "/metrics")
            assert connection.getresponse().status == 200
    finally:
        server.stop()
