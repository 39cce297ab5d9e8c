"""The installed units under a real systemd, with a real worker, leader and database."""

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator

import pytest

import awa_py as awa
from awa_py import State
from awa_py.systemd.envfile import parse
from tests.envfiles import TRICKY
from tests.processes import eventually, is_state, start_nap
from tests.proxy import counting_proxy
from tests.systemd.machine import PYTHON, Machine, Unit, booted

OPT_IN = "AWA_TEST_SYSTEMD"
missing = [
    why
    for why, lacks in {
        f"set {OPT_IN}=1 to boot a systemd": not os.environ.get(OPT_IN),
        "needs Linux": sys.platform != "linux",
        "needs root": os.geteuid() != 0,
        "needs systemd-nspawn (package systemd-container)": shutil.which("systemd-nspawn") is None,
        f"needs {PYTHON}": not PYTHON.exists(),
    }.items()
    if lacks
]
if missing:
    pytest.skip("; ".join(missing), allow_module_level=True)
pytestmark = pytest.mark.chaos

FAST = {
    "AWA_HEARTBEAT_INTERVAL": "500ms",
    "AWA_HEARTBEAT_STALENESS": "3s",
    "AWA_HEARTBEAT_RESCUE_INTERVAL": "500ms",
    "PYTHONPATH": "/srv/app",
    "AWA_APP": "tasks:app",
    "AWA_QUEUES": "default",
}


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with booted(tmp_path_factory.mktemp("machine")) as machine:
        yield machine


@pytest.fixture
async def client(database_url: str) -> AsyncIterator[awa.App]:
    async with awa.App(database_url) as app:
        yield app


@pytest.fixture
def worker(machine: Machine, request: pytest.FixtureRequest, database_url: str) -> Iterator[Unit]:
    """A unit instance for this test, not started yet."""
    instance = request.node.name.removeprefix("test_")
    unit = Unit(machine, f"awa-worker@{instance}.service", f"/etc/awa/{instance}.env")
    unit.settings(**FAST, AWA_DATABASE_URL=database_url)
    yield unit
    print(unit.systemctl("status", "--no-pager", "--lines=0", check=False), unit.journal)
    unit.systemctl("kill", "--signal=SIGKILL", check=False)
    unit.systemctl("stop", check=False)


def test_units_are_valid_and_sandboxed(machine: Machine, worker: Unit) -> None:
    folder = "/etc/systemd/system"
    units = [f"{folder}/awa-worker@.service", f"{folder}/awa-maintenance.service", f"{folder}/awa.target"]
    assert machine.run("systemd-analyze", "verify", *units) == ""
    for name in (worker.name, "awa-maintenance.service"):
        level = re.search(r"exposure level for .*: ([\d.]+)", machine.run("systemd-analyze", "security", name))
        assert level is not None
        assert float(level[1]) <= 2.5


def test_envfile_parser_agrees_with_systemd(machine: Machine) -> None:
    machine.write("/etc/tricky.env", TRICKY)
    seen = machine.run(
        *("systemd-run", "--pipe", "--wait", "--quiet", "--property=EnvironmentFile=/etc/tricky.env"),
        *("/opt/awa/bin/python", "-c", "import json, os; print(json.dumps(dict(os.environ)))"),
    )
    parsed = parse(TRICKY)
    expected = {name: value for name, value in json.loads(seen).items() if name in parsed or name.startswith("X")}
    assert parsed == expected


async def test_target_starts_and_stops_worker_and_leader(
    machine: Machine, worker: Unit, client: awa.App, database_url: str
) -> None:
    leader = Unit(machine, "awa-maintenance.service", "/etc/awa/maintenance.env")
    leader.settings(**FAST, AWA_DATABASE_URL=database_url)
    worker.settings(**FAST, AWA_DATABASE_URL=database_url, AWA_MAINTENANCE="false")
    machine.run("systemctl", "enable", "awa.target", leader.name, worker.name)
    machine.run("systemctl", "start", "awa.target")
    await eventually("both are there", lambda: worker.state == leader.state == "active")
    await eventually("the leader", lambda: leader.status == "leader")
    job = await client.enqueue("inspect_sandbox")
    assert await client.result(job.id, timeout="30s") == {
        "user": "awa",
        "writes": ["/var/lib/awa", "/tmp"],
        "sees_notify_socket": False,
    }
    await eventually("the status", lambda: worker.status.startswith("0 running, 1 done"))
    machine.run("systemctl", "stop", "awa.target")
    await eventually("both have stopped", lambda: worker.state == leader.state == "inactive")
    assert [worker.show("Result"), leader.show("Result")] == ["success", "success"]
    machine.run("systemctl", "disable", leader.name, worker.name)


async def test_journal_entries_have_job_fields(machine: Machine, worker: Unit, client: awa.App) -> None:
    worker.systemctl("start")
    job = await client.enqueue("nap", {"seconds": "soon"})  # it expects a number

    def entries() -> list[str]:
        return machine.run("journalctl", "--output=json", f"AWA_JOB_ID={job.id}", "AWA_KIND=nap").splitlines()

    await eventually("its journal entry", lambda: bool(entries()))
    entry = json.loads(entries()[0])
    assert (entry["_SYSTEMD_UNIT"], entry["PRIORITY"], entry["AWA_ATTEMPT"]) == (worker.name, "4", "1")
    assert entry["AWA_QUEUE"] == "default"
    assert "soon" not in entry["MESSAGE"]


async def test_start_waits_for_the_database(worker: Unit, database_url: str) -> None:
    async with counting_proxy(database_url) as (url, _):
        pass  # the port is closed now
    worker.settings(**FAST, AWA_DATABASE_URL=url)
    worker.drop_in(TimeoutStartSec="8")
    worker.systemctl("start", "--no-block")
    await eventually("why it waits", lambda: "waiting: the database has not been reached yet" in worker.status)
    first = worker.pid
    await eventually("longer than the timeout", lambda: age_s(worker) > 12)
    assert (worker.state, worker.pid) == ("activating", first)
    worker.settings(**FAST, AWA_DATABASE_URL=database_url)
    worker.send(signal.SIGHUP)
    await eventually("it is ready", lambda: worker.state == "active")
    assert (worker.pid, worker.restarts) == (first, 0)


def age_s(unit: Unit) -> float:
    with open("/proc/uptime") as uptime:
        now = float(uptime.read().split()[0])
    return now - int(unit.show("ExecMainStartTimestampMonotonic")) / 1e6


async def test_frozen_worker_is_restarted(worker: Unit, client: awa.App) -> None:
    worker.drop_in(WatchdogSec="4")
    worker.systemctl("start")
    job_id = await start_nap(client, 1)
    first = worker.pid
    worker.send(signal.SIGSTOP)
    await eventually("restarted", lambda: worker.restarts >= 1 and worker.state == "active", 60)
    assert worker.pid != first
    assert "Watchdog timeout" in worker.journal
    await eventually("its job is done", lambda: is_state(client, job_id, State.COMPLETED))


async def test_blocked_worker_is_restarted_with_a_traceback(worker: Unit, client: awa.App) -> None:
    worker.drop_in(WatchdogSec="4")
    worker.systemctl("start")
    await client.enqueue("block", {"seconds": 300}, max_attempts=1)
    await eventually("restarted", lambda: worker.restarts >= 1 and worker.state == "active", 60)
    assert 'File "/srv/app/tasks.py", line 15 in block' in worker.journal


async def test_killed_worker_is_restarted(worker: Unit, client: awa.App) -> None:
    worker.systemctl("start")
    job_id = await start_nap(client, 1)
    worker.send(signal.SIGKILL)
    await eventually("restarted", lambda: worker.restarts >= 1 and worker.state == "active", 60)
    await eventually("its job is done", lambda: is_state(client, job_id, State.COMPLETED))


async def test_reload_keeps_the_pid_and_running_jobs(worker: Unit, client: awa.App, database_url: str) -> None:
    worker.systemctl("start")
    first = worker.pid
    job_id = await start_nap(client, 3)
    worker.settings(**{**FAST, "AWA_QUEUES": "default,email=3"}, AWA_DATABASE_URL=database_url)
    worker.systemctl("reload")
    await eventually("reloading", lambda: worker.state == "reloading" or "email" in worker.status)
    await eventually("reloaded", lambda: worker.state == "active" and "queues default, email" in worker.status)
    assert (worker.pid, worker.restarts) == (first, 0)
    job = await client.get(job_id)
    assert (job.state, job.attempt) == (State.COMPLETED, 1)

    worker.settings(**FAST, AWA_DATABASE_URL="mysql://somewhere")
    worker.systemctl("reload")
    await eventually("a mistake", lambda: "must begin with postgresql://" in worker.journal)
    await eventually("as it was", lambda: worker.state == "active" and "queues default, email" in worker.status)
    assert (worker.pid, worker.restarts) == (first, 0)


async def test_stop_extends_its_timeout_while_draining(worker: Unit, client: awa.App, database_url: str) -> None:
    worker.settings(**FAST, AWA_DATABASE_URL=database_url, AWA_SHUTDOWN_TIMEOUT="1m")
    worker.drop_in(TimeoutStopSec="4")
    worker.systemctl("start")
    job_id = await start_nap(client, 8)
    worker.systemctl("stop")
    assert (worker.state, worker.show("Result")) == ("inactive", "success")
    job = await client.get(job_id)
    assert (job.state, job.attempt) == (State.COMPLETED, 1)


async def test_supervisor_replaces_a_blocked_process(worker: Unit, client: awa.App, database_url: str) -> None:
    worker.settings(**FAST, AWA_DATABASE_URL=database_url, AWA_PROCESSES="2")
    worker.drop_in(WatchdogSec="8")
    worker.systemctl("start")
    assert "2 of 2 processes ready" in worker.status
    first = worker.pid
    await client.enqueue("block", {"seconds": 300}, max_attempts=1)
    await eventually("one of them is ended", lambda: "ending it" in worker.journal, 60)
    await eventually("both work", lambda: "2 of 2 processes ready" in worker.status, 60)
    assert (worker.pid, worker.restarts) == (first, 0)
    job_id = await start_nap(client, 3)
    worker.systemctl("stop")
    assert worker.show("Result") == "success"
    assert await is_state(client, job_id, State.COMPLETED)


async def test_database_url_can_be_a_credential(
    machine: Machine, worker: Unit, client: awa.App, database_url: str
) -> None:
    machine.write("/etc/credstore/awa.database_url", database_url)
    worker.settings(**FAST)
    worker.systemctl("start")
    job_id = await start_nap(client, 0.5)
    await eventually("it is done", lambda: is_state(client, job_id, State.COMPLETED))
    (machine.root / "etc/credstore/awa.database_url").unlink()


async def test_wrong_usage_is_not_restarted(worker: Unit, database_url: str) -> None:
    worker.settings(**{**FAST, "AWA_CONCURRENCY": "many"}, AWA_DATABASE_URL=database_url)
    worker.systemctl("start", check=False)
    await eventually("it has failed", lambda: worker.state == "failed")
    assert (worker.show("ExecMainStatus"), worker.restarts) == ("2", 0)


async def test_failed_start_is_retried_forever(worker: Unit, fresh_database_url: str) -> None:
    worker.settings(**FAST, AWA_DATABASE_URL=fresh_database_url)
    worker.drop_in(RestartSec="100ms", RestartSteps="0")
    worker.systemctl("start", check=False)
    await eventually("many times", lambda: worker.restarts > 6, 60)
    assert worker.state == "activating"
    assert "run `awa migrate`" in worker.journal


async def test_user_can_run_the_units(machine: Machine, client: awa.App, database_url: str) -> None:
    machine.run("useradd", "--create-home", "--uid", "1999", "alice")
    machine.run("systemctl", "start", "user@1999.service")
    as_user = ("runuser", "-u", "alice", "--", "env", "HOME=/home/alice", "XDG_RUNTIME_DIR=/run/user/1999")
    answer = machine.run(*as_user, "/opt/awa/bin/awa", "systemd", "install", "--user")
    assert "written   /home/alice/.config/systemd/user/awa-worker@.service" in answer
    variables = {**FAST, "AWA_DATABASE_URL": database_url}
    machine.write("/home/alice/.config/awa/mine.env", "".join(f"{k}={v}\n" for k, v in variables.items()))
    machine.run("chown", "-R", "alice", "/home/alice/.config")
    systemctl = (*as_user, "systemctl", "--user")
    machine.run(*systemctl, "daemon-reload")
    machine.run(*systemctl, "enable", "--now", "awa.target", "awa-worker@mine")
    assert machine.run(*systemctl, "is-active", "awa-worker@mine", "awa.target") == "active\nactive\n"
    job_id = await start_nap(client, 2)
    machine.run(*systemctl, "stop", "awa-worker@mine")
    assert await is_state(client, job_id, State.COMPLETED)
