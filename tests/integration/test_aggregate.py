"""One metrics port for several processes: the real command, with killed and frozen children."""

import json
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

import awa_py as awa
from tests.chaos import jobs
from tests.processes import FAST, Process, eventually, processes

pytestmark = pytest.mark.integration


@pytest.fixture
async def client(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[awa.App]:
    monkeypatch.setenv("AWA_DATABASE_URL", database_url)
    async with jobs.app as app:
        yield app


@pytest.fixture
def supervisor(database_url: str, tmp_path: Path) -> Iterator[Process]:
    with processes(tmp_path, database_url, {**FAST, "AWA_METRICS_INTERVAL": "500ms"}) as started:
        yield started.worker("--processes", "2", "--metrics-port", "0")


def port(supervisor: Process) -> int | None:
    for line in supervisor.output.splitlines():  # the supervisor logs first
        if "metrics at http://127.0.0.1:" in line:
            return int(line.rsplit(":", 1)[1].split("/")[0])
    return None


def ask(supervisor: Process, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port(supervisor)}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(supervisor: Process, name: str) -> list[Sample]:
    families = text_string_to_metric_families(ask(supervisor, "/metrics")[1])
    return [sample for family in families for sample in family.samples if sample.name == name]


def total(supervisor: Process, name: str) -> float:
    return sum(sample.value for sample in samples(supervisor, name))


def health(supervisor: Process, path: str = "/readyz") -> tuple[int, Any]:
    status, text = ask(supervisor, path)
    return status, json.loads(text)


async def wait_until_ready(supervisor: Process) -> None:
    await eventually("the port is open", lambda: port(supervisor) is not None)
    await eventually("all are ready", lambda: health(supervisor)[0] == 200, 60)


def children(supervisor: Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [child for child in psutil.Process(supervisor.pid).children() if child.is_running()]
    return []


async def test_one_port_serves_all_processes(supervisor: Process, client: awa.App) -> None:
    await wait_until_ready(supervisor)
    assert [child.pid for child in children(supervisor)] != []
    await client.enqueue_many([jobs.quick.new() for _ in range(300)])
    await eventually("all are done", lambda: total(supervisor, "awa_jobs_completed_total") == 300)
    assert total(supervisor, "awa_job_wait_seconds_count") == 300
    assert [sample.labels["process"] for sample in samples(supervisor, "awa_is_leader")] == ["1", "2"]
    assert total(supervisor, "awa_is_leader") == 1
    assert [sample.value for sample in samples(supervisor, "awa_process_up")] == [1, 1]
    assert {sample.labels["process"] for sample in samples(supervisor, "process_resident_memory_bytes")} == {"1", "2"}
    await eventually("the leader has read its gauges", lambda: len(samples(supervisor, "awa_workers")) == 1)
    await eventually("it sees both", lambda: total(supervisor, "awa_workers") == 2)
    text = ask(supervisor, "/metrics")[1]
    types = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    if shutil.which("promtool") is not None:
        result = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        assert (result.returncode, result.stdout + result.stderr) == (0, "")
    status, answer = health(supervisor)
    assert (status, answer["status"], answer["problems"]) == (200, "ready", [])
    assert answer["checks"]["process 1"]["checks"]["listening"] == {"ok": True}


async def test_killed_process_is_restarted_and_counted(supervisor: Process) -> None:
    await wait_until_ready(supervisor)
    victim = children(supervisor)[1]
    victim.send_signal(signal.SIGKILL)
    await eventually("it was restarted", lambda: total(supervisor, "awa_process_starts_total") == 3)
    await eventually("all are ready", lambda: health(supervisor)[0] == 200, 60)
    assert [sample.value for sample in samples(supervisor, "awa_process_up")] == [1, 1]
    assert health(supervisor, "/healthz")[0] == 200


async def test_frozen_process_is_reported(supervisor: Process) -> None:
    await wait_until_ready(supervisor)
    victim = children(supervisor)[0]
    victim.suspend()
    try:
        status, answer = health(supervisor)
        assert (status, answer["status"]) == (503, "not ready")
        assert [problem for problem in answer["problems"] if "it does not answer" in problem]
        assert sorted(sample.value for sample in samples(supervisor, "awa_process_up")) == [0, 1]
        assert len(samples(supervisor, "awa_jobs_running")) == 1
    finally:
        victim.resume()
    await eventually("all are ready", lambda: health(supervisor)[0] == 200, 60)
