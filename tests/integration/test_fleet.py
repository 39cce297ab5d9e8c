"""Several processes behind one metrics port: the real command, and its children killed and frozen."""

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
def fleet(database_url: str, tmp_path: Path) -> Iterator[Process]:
    with processes(tmp_path, database_url, {**FAST, "AWA_METRICS_INTERVAL": "500ms"}) as started:
        yield started.worker("--processes", "2", "--metrics-port", "0")


def port(fleet: Process) -> int | None:
    for line in fleet.output.splitlines():  # the supervisor is the first to speak
        if "metrics at http://127.0.0.1:" in line:
            return int(line.rsplit(":", 1)[1].split("/")[0])
    return None


def ask(fleet: Process, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port(fleet)}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(fleet: Process, name: str) -> list[Sample]:
    families = text_string_to_metric_families(ask(fleet, "/metrics")[1])
    return [sample for family in families for sample in family.samples if sample.name == name]


def total(fleet: Process, name: str) -> float:
    return sum(sample.value for sample in samples(fleet, name))


def health(fleet: Process, path: str = "/readyz") -> tuple[int, Any]:
    status, text = ask(fleet, path)
    return status, json.loads(text)


async def is_up(fleet: Process) -> None:
    await eventually("the port is open", lambda: port(fleet) is not None)
    await eventually("all are ready", lambda: health(fleet)[0] == 200, 60)


def children(fleet: Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [child for child in psutil.Process(fleet.pid).children() if child.is_running()]
    return []


async def test_one_port_shows_them_all(fleet: Process, client: awa.App) -> None:
    await is_up(fleet)
    assert [child.pid for child in children(fleet)] != []
    await client.enqueue_many([jobs.quick.new() for _ in range(300)])
    await eventually("all are done", lambda: total(fleet, "awa_jobs_completed_total") == 300)
    assert total(fleet, "awa_job_wait_seconds_count") == 300
    assert [sample.labels["process"] for sample in samples(fleet, "awa_is_leader")] == ["1", "2"]
    assert total(fleet, "awa_is_leader") == 1
    assert [sample.value for sample in samples(fleet, "awa_process_up")] == [1, 1]
    assert {sample.labels["process"] for sample in samples(fleet, "process_resident_memory_bytes")} == {"1", "2"}
    await eventually("the leader has looked", lambda: len(samples(fleet, "awa_workers")) == 1)
    await eventually("it sees both", lambda: total(fleet, "awa_workers") == 2)
    text = ask(fleet, "/metrics")[1]
    types = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    if shutil.which("promtool") is not None:
        answer = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        assert (answer.returncode, answer.stdout + answer.stderr) == (0, "")
    status, said = health(fleet)
    assert (status, said["status"], said["problems"]) == (200, "ready", [])
    assert said["checks"]["process 1"]["checks"]["listening"] == {"ok": True}


async def test_one_that_dies_is_missed_and_comes_back(fleet: Process) -> None:
    await is_up(fleet)
    victim = children(fleet)[1]
    victim.send_signal(signal.SIGKILL)
    await eventually("it was started again", lambda: total(fleet, "awa_process_starts_total") == 3)
    await eventually("all are ready", lambda: health(fleet)[0] == 200, 60)
    assert [sample.value for sample in samples(fleet, "awa_process_up")] == [1, 1]
    assert health(fleet, "/healthz")[0] == 200


async def test_one_that_hangs_is_named(fleet: Process) -> None:
    await is_up(fleet)
    victim = children(fleet)[0]
    victim.suspend()
    try:
        status, said = health(fleet)
        assert (status, said["status"]) == (503, "not ready")
        assert [problem for problem in said["problems"] if "it does not answer" in problem]
        assert sorted(sample.value for sample in samples(fleet, "awa_process_up")) == [0, 1]
        assert len(samples(fleet, "awa_jobs_running")) == 1
    finally:
        victim.resume()
    await eventually("all are ready", lambda: health(fleet)[0] == 200, 60)
