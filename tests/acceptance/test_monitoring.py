"""awa health and awa monitoring"""

import json
import socket
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.conftest import Awa
from tests.processes import eventually

pytestmark = pytest.mark.integration

FOLDER = Path(__file__).parents[2] / "monitoring"


@pytest.fixture
def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return str(taken.getsockname()[1])


@pytest.mark.parametrize(
    ("name", "file"),
    [("rules", "awa.rules.yml"), ("tests", "awa.rules.test.yml"), ("dashboard", "dashboard.json")],
)
def test_monitoring_prints_the_shipped_file(bare_awa: Awa, name: str, file: str) -> None:
    assert bare_awa.ok("monitoring", name).out == (FOLDER / file).read_text()


async def test_health_of_a_worker(awa: Awa, free_port: str) -> None:
    port = {"AWA_METRICS_PORT": free_port}
    worker = awa.start("worker", "tasks:app", "-q", "default", env=port)
    try:
        await eventually("it is ready", lambda: awa("health", env=port).code == 0, 60)
        ready = awa.ok("health", env=port).json
        assert (ready["status"], ready["problems"]) == ("ready", [])
        assert set(ready["checks"]) == {
            "database", "schema", "listening", "event_loop", "leadership", "claims", "maintenance", "invalid_jobs",
        }  # fmt: skip
        assert all(check["ok"] for check in ready["checks"].values())
        live = awa.ok("health", "--live", "--url", f"http://127.0.0.1:{free_port}/").json
        assert (live["status"], set(live["checks"])) == ("alive", {"event_loop"})
        assert awa.ok("health", "--port", free_port, "--host", "0.0.0.0").json["status"] == "ready"
    finally:
        worker.terminate()
        worker.communicate(timeout=30)


async def test_health_of_a_leader_without_a_schema_names_the_problem(
    awa: Awa, fresh_database_url: str, free_port: str
) -> None:
    leader = awa.start("maintenance", "--metrics-port", free_port, env={"AWA_DATABASE_URL": fresh_database_url})
    try:
        await eventually("the problem", lambda: "awa migrate" in awa("health", "--port", free_port).out, 60)
        answer = awa("health", "--port", free_port)
        assert answer.code == 1
        assert json.loads(answer.out)["status"] == "not ready"
        assert not answer.json["checks"]["leadership"]["ok"]
        assert awa("health", "--port", free_port, "--live").code == 0
    finally:
        leader.terminate()
        leader.communicate(timeout=30)


def test_health_without_a_response_is_explained(bare_awa: Awa, free_port: str) -> None:
    answer = bare_awa("health", "--port", free_port)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == f"awa: no response from http://127.0.0.1:{free_port}/readyz: Connection refused\n"


def test_health_rejects_the_response_of_another_server(bare_awa: Awa, tmp_path: Path) -> None:
    with subprocess.Popen(
        ["python3", "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as other:
        try:
            assert other.stdout is not None
            port = other.stdout.readline().split("port ")[1].split()[0]
            answer = bare_awa("health", "--port", port)
            assert answer.code == 1
            assert "is not awa's" in answer.err
        finally:
            other.terminate()


def test_health_without_a_port_is_wrong_usage(bare_awa: Awa) -> None:
    answer = bare_awa("health")
    assert answer.code == 2
    assert "--port, AWA_METRICS_PORT or --url" in answer.err
