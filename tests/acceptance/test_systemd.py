"""`awa worker` and `awa maintenance` as services: sd_notify messages and signals."""

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import awa_py as awa
from awa_py import State
from awa_py.db.database import Database
from awa_py.db.migrations import migrate
from awa_py.db.schema import Schema
from tests.fake_systemd import FakeSystemd, fake_systemd
from tests.processes import FAST, Process, Processes, eventually, is_state, processes, start_nap
from tests.proxy import counting_proxy

EXTENSION = "EXTEND_TIMEOUT_USEC"


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[FakeSystemd]:
    with fake_systemd(tmp_path) as started:
        yield started


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    path = tmp_path / "worker.env"
    path.write_text("AWA_CONCURRENCY=7\n")
    return path


@pytest.fixture
def services(database_url: str, tmp_path: Path, systemd: FakeSystemd, env_file: Path) -> Iterator[Processes]:
    # As with systemd, the variables of the file are in the environment, too.
    env = {**FAST, **systemd.env(), "AWA_ENV_FILE": str(env_file), "AWA_CONCURRENCY": "7"}
    with processes(tmp_path, database_url, env) as started:
        yield started


async def wait_until_ready(systemd: FakeSystemd, times: int = 1) -> None:
    await eventually("READY=1", lambda: systemd.count("READY") >= times, 60)


async def concurrency(client: awa.App) -> list[int]:
    rows = await client.pool.fetch("SELECT concurrency FROM awa.workers")
    return [row["concurrency"] for row in rows]


async def test_worker_reports_ready_and_its_status(services: Processes, systemd: FakeSystemd, client: awa.App) -> None:
    worker = services.worker()
    await wait_until_ready(systemd)
    first = systemd.messages[0]
    assert first["STATUS"].startswith("waiting: ")
    assert int(first[EXTENSION]) == 60_000_000
    await client.enqueue("quick")
    await eventually("the counts", systemd.has_status("0 running, 1 done"))
    await eventually("the leader", systemd.has_status("; queues default; leader"))
    assert EXTENSION not in systemd.messages[-1]
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert systemd.count("STOPPING") >= 1
    assert systemd.count("READY") == 1


async def test_worker_without_a_database_reports_why_it_waits(
    services: Processes, systemd: FakeSystemd, tmp_path: Path
) -> None:
    worker = services.worker(env={"AWA_DATABASE_URL": f"postgresql://awa@/awa?host={tmp_path}/nowhere"})
    await eventually("the reason", systemd.has_status("waiting: the database has not been reached yet: "))
    await eventually("it asks for more time", lambda: systemd.count(EXTENSION) > 3)
    assert systemd.count("READY") == 0
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert systemd.count("READY") == 0


async def test_leader_waits_for_the_schema(fresh_database_url: str, services: Processes, systemd: FakeSystemd) -> None:
    services.start("maintenance", env={"AWA_DATABASE_URL": fresh_database_url})
    await eventually("the reason", systemd.has_status("run `awa migrate`"))
    assert systemd.count("READY") == 0
    await migrate(Database(fresh_database_url, Schema()))
    await wait_until_ready(systemd)
    await eventually("it is the leader", lambda: systemd.statuses[-1] == "leader")


async def test_watchdog_is_notified_while_the_database_is_unreachable(
    services: Processes, systemd: FakeSystemd, database_url: str
) -> None:
    async with counting_proxy(database_url) as (door, _):
        worker = services.worker(env={**systemd.env(watchdog_s=2), "AWA_DATABASE_URL": door})
        await wait_until_ready(systemd)
    await eventually("the database is unreachable", lambda: "heartbeats fail" in systemd.statuses[-1])
    notified = systemd.count("WATCHDOG")
    await eventually("the watchdog is notified", lambda: systemd.count("WATCHDOG") > notified + 8)
    assert EXTENSION not in systemd.messages[-1]
    assert worker.running


async def test_blocked_event_loop_does_not_notify_the_watchdog(
    services: Processes, systemd: FakeSystemd, client: awa.App
) -> None:
    worker = services.worker(env=systemd.env(watchdog_s=2))
    await wait_until_ready(systemd)
    await eventually("the watchdog is notified", lambda: systemd.count("WATCHDOG") > 3)
    await client.enqueue("block", {"seconds": 6})
    await eventually("the watchdog is not notified", lambda: systemd.seconds_since("WATCHDOG") > 2.5)
    assert worker.running
    notified = systemd.count("WATCHDOG")
    await eventually("the watchdog is notified again", lambda: systemd.count("WATCHDOG") > notified)


@pytest.mark.parametrize("name", ["awa-heartbeat", "awa-maintenance"])
async def test_blocked_thread_does_not_notify_the_watchdog(
    services: Processes, systemd: FakeSystemd, client: awa.App, name: str
) -> None:
    services.worker(env=systemd.env(watchdog_s=2))
    await wait_until_ready(systemd)
    await eventually("the watchdog is notified", lambda: systemd.count("WATCHDOG") > 3)
    await client.enqueue("block_thread", {"name": name, "seconds": 8})
    await eventually("the watchdog is not notified", lambda: systemd.seconds_since("WATCHDOG") > 2.5)
    statuses = systemd.count("STATUS")
    await eventually("the loop still runs", lambda: systemd.count("STATUS") > statuses)
    notified = systemd.count("WATCHDOG")
    await eventually("the watchdog is notified again", lambda: systemd.count("WATCHDOG") > notified)


async def test_drain_extends_the_timeout_until_it_ends(
    services: Processes, systemd: FakeSystemd, client: awa.App
) -> None:
    worker = services.worker(env=systemd.env(watchdog_s=2))
    await wait_until_ready(systemd)
    job_id = await start_nap(client, 4)
    worker.send(signal.SIGTERM)
    await eventually("STOPPING=1", lambda: systemd.count("STOPPING") > 0)
    assert worker.wait() == 0
    draining = [message for message in systemd.messages if message["STATUS"].startswith("stopping; 1 running")]
    assert len(draining) >= 3
    assert all(EXTENSION in message and "WATCHDOG" in message for message in draining)
    assert await is_state(client, job_id, State.COMPLETED)


async def test_reload_applies_settings_and_loses_no_job(
    services: Processes, systemd: FakeSystemd, client: awa.App, env_file: Path
) -> None:
    worker = services.worker()
    await wait_until_ready(systemd)
    assert await concurrency(client) == [7]
    job_id = await start_nap(client, 3)
    env_file.write_text("# more slots\nAWA_CONCURRENCY='9'\n")
    worker.send(signal.SIGHUP)
    await eventually("RELOADING=1", lambda: systemd.count("RELOADING") > 0)
    assert int(systemd.since("RELOADING")[0]["MONOTONIC_USEC"]) > 0
    await wait_until_ready(systemd, times=2)
    assert await is_state(client, job_id, State.COMPLETED)
    assert (await client.get(job_id)).attempt == 1
    assert await concurrency(client) == [9]

    env_file.write_text("")  # a setting that was removed returns to its default
    worker.send(signal.SIGHUP)
    await wait_until_ready(systemd, times=3)
    assert await concurrency(client) == [100]
    assert worker.running
    assert systemd.count("STOPPING") == 0


async def test_reload_with_invalid_settings_changes_nothing(
    services: Processes, systemd: FakeSystemd, client: awa.App, env_file: Path
) -> None:
    worker = services.start("worker", env={"AWA_APP": "tests.chaos.jobs:app", "AWA_QUEUES": "default"})
    await wait_until_ready(systemd)
    job_id = await start_nap(client, 300)
    mistakes = {
        "AWA_CONCURRENCY=none": "valid integer",
        "AWA_HEARTBEAT_INTERVAL=10 parsecs": '"10 parsecs" is not a duration',
        "AWA_APP=nowhere:app": 'there is no module "nowhere"',
    }
    for times, (line, reason) in enumerate(mistakes.items(), 2):
        env_file.write_text(f"{line}\n")
        worker.send(signal.SIGHUP)
        await wait_until_ready(systemd, times)
        assert reason in worker.output
    assert worker.output.count("reload failed, the current settings stay in use") == systemd.count("RELOADING") == 3
    assert await is_state(client, job_id, State.RUNNING), "nothing was drained"
    assert await concurrency(client) == [7]


async def test_sigterm_during_a_reload_stops_the_worker(
    services: Processes, systemd: FakeSystemd, client: awa.App
) -> None:
    worker = services.worker()
    await wait_until_ready(systemd)
    job_id = await start_nap(client, 4)
    worker.send(signal.SIGHUP)
    await eventually("it drains", lambda: "restarting after the running jobs have ended" in worker.output)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert systemd.count("READY") == 1
    assert await is_state(client, job_id, State.COMPLETED), "it was not hurried"


async def test_leader_reloads(services: Processes, systemd: FakeSystemd, env_file: Path) -> None:
    leader = services.start("maintenance")
    await wait_until_ready(systemd)
    env_file.write_text("AWA_LOG_FORMAT=json\n")
    leader.send(signal.SIGHUP)
    await wait_until_ready(systemd, times=2)
    await eventually("it logs JSON", lambda: '"message": "elected' in leader.output)
    leader.send(signal.SIGTERM)
    assert leader.wait() == 0


async def test_sighup_without_an_environment_file_ends_the_process(services: Processes, systemd: FakeSystemd) -> None:
    worker = services.worker(env={"AWA_ENV_FILE": ""})
    await wait_until_ready(systemd)
    worker.send(signal.SIGHUP)
    assert worker.wait() == -signal.SIGHUP


async def test_several_processes_are_one_service(
    services: Processes, systemd: FakeSystemd, client: awa.App, env_file: Path
) -> None:
    worker = services.worker("--processes", "2", env=systemd.env(watchdog_s=8))
    await wait_until_ready(systemd)
    (first,) = (message for message in systemd.messages if "READY" in message)
    assert first["STATUS"].startswith("2 of 2 processes ready; 0 running, 0 done")
    await client.enqueue("quick")
    await eventually("the counts", systemd.has_status("0 running, 1 done"))
    job_id = await start_nap(client, 3)
    env_file.write_text("AWA_CONCURRENCY=9\n")
    worker.send(signal.SIGHUP)
    await wait_until_ready(systemd, times=2)
    assert await is_state(client, job_id, State.COMPLETED)
    assert await concurrency(client) == [9, 9]
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert systemd.count("STOPPING") >= 1


async def test_hung_child_process_is_restarted(services: Processes, systemd: FakeSystemd) -> None:
    supervisor = services.worker("--processes", "2", env=systemd.env(watchdog_s=3))
    await wait_until_ready(systemd)
    hung, other = children(supervisor)
    hung.suspend()
    await eventually("it is killed", lambda: not hung.is_running() or hung.status() == psutil.STATUS_ZOMBIE)
    await eventually("another one is started", lambda: len(children(supervisor)) == 2)
    assert other.is_running()
    await eventually("both are ready", lambda: systemd.statuses[-1].startswith("2 of 2 processes ready"))


def children(process: Process) -> list[psutil.Process]:
    return psutil.Process(process.pid).children()
