"""`awa worker` and `awa maintenance` as services: what they tell, and what they do about signals."""

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
    with fake_systemd(tmp_path) as one:
        yield one


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    path = tmp_path / "worker.env"
    path.write_text("AWA_CONCURRENCY=7\n")
    return path


@pytest.fixture
def services(database_url: str, tmp_path: Path, systemd: FakeSystemd, env_file: Path) -> Iterator[Processes]:
    # The file's variables are in the environment already: systemd puts them there.
    env = {**FAST, **systemd.env(), "AWA_ENV_FILE": str(env_file), "AWA_CONCURRENCY": "7"}
    with processes(tmp_path, database_url, env) as started:
        yield started


async def ready(systemd: FakeSystemd, times: int = 1) -> None:
    await eventually("READY=1", lambda: systemd.count("READY") >= times, 60)


async def concurrency(client: awa.App) -> list[int]:
    rows = await client.pool.fetch("SELECT concurrency FROM awa.workers")
    return [row["concurrency"] for row in rows]


async def test_a_worker_is_ready_when_it_can_work_and_says_how_it_is(
    services: Processes, systemd: FakeSystemd, client: awa.App
) -> None:
    worker = services.worker()
    await ready(systemd)
    first = systemd.messages[0]
    assert first["STATUS"].startswith("waiting: ")
    assert int(first[EXTENSION]) == 60_000_000
    await client.enqueue("quick")
    await eventually("figures", systemd.has_status("0 running, 1 done"))
    await eventually("the leader", systemd.has_status("; queues default; leader"))
    assert EXTENSION not in systemd.messages[-1]
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert systemd.count("STOPPING") >= 1
    assert systemd.count("READY") == 1


async def test_a_worker_without_a_database_waits_and_says_for_what(
    services: Processes, systemd: FakeSystemd, tmp_path: Path
) -> None:
    worker = services.worker(env={"AWA_DATABASE_URL": f"postgresql://awa@/awa?host={tmp_path}/nowhere"})
    await eventually("why it waits", systemd.has_status("waiting: the database has not been reached yet: "))
    await eventually("it goes on to ask for time", lambda: systemd.count(EXTENSION) > 3)
    assert systemd.count("READY") == 0
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert systemd.count("READY") == 0


async def test_a_leader_waits_for_the_schema(
    fresh_database_url: str, services: Processes, systemd: FakeSystemd
) -> None:
    services.start("maintenance", env={"AWA_DATABASE_URL": fresh_database_url})
    await eventually("why it waits", systemd.has_status("run `awa migrate`"))
    assert systemd.count("READY") == 0
    await migrate(Database(fresh_database_url, Schema()))
    await ready(systemd)
    await eventually("that it leads", lambda: systemd.statuses[-1] == "leader")


async def test_the_watchdog_is_fed_while_the_database_is_away(
    services: Processes, systemd: FakeSystemd, database_url: str
) -> None:
    async with counting_proxy(database_url) as (door, _):
        worker = services.worker(env={**systemd.env(watchdog_s=2), "AWA_DATABASE_URL": door})
        await ready(systemd)
    await eventually("that it is away", lambda: "heartbeats fail" in systemd.statuses[-1])
    fed = systemd.count("WATCHDOG")
    await eventually("food", lambda: systemd.count("WATCHDOG") > fed + 8)
    assert EXTENSION not in systemd.messages[-1]
    assert worker.running


async def test_a_blocked_loop_starves_the_watchdog(services: Processes, systemd: FakeSystemd, client: awa.App) -> None:
    worker = services.worker(env=systemd.env(watchdog_s=2))
    await ready(systemd)
    await eventually("food", lambda: systemd.count("WATCHDOG") > 3)
    await client.enqueue("block", {"seconds": 6})
    await eventually("no food", lambda: systemd.seconds_since("WATCHDOG") > 2.5)
    assert worker.running
    fed = systemd.count("WATCHDOG")
    await eventually("food again", lambda: systemd.count("WATCHDOG") > fed)


@pytest.mark.parametrize("name", ["awa-heartbeat", "awa-maintenance"])
async def test_a_blocked_thread_starves_the_watchdog(
    services: Processes, systemd: FakeSystemd, client: awa.App, name: str
) -> None:
    services.worker(env=systemd.env(watchdog_s=2))
    await ready(systemd)
    await eventually("food", lambda: systemd.count("WATCHDOG") > 3)
    await client.enqueue("block_thread", {"name": name, "seconds": 8})
    await eventually("no food", lambda: systemd.seconds_since("WATCHDOG") > 2.5)
    told = systemd.count("STATUS")
    await eventually("the loop itself goes on", lambda: systemd.count("STATUS") > told)
    fed = systemd.count("WATCHDOG")
    await eventually("food again", lambda: systemd.count("WATCHDOG") > fed)


async def test_a_drain_asks_for_time_as_long_as_it_takes(
    services: Processes, systemd: FakeSystemd, client: awa.App
) -> None:
    worker = services.worker(env=systemd.env(watchdog_s=2))
    await ready(systemd)
    job_id = await start_nap(client, 4)
    worker.send(signal.SIGTERM)
    await eventually("STOPPING=1", lambda: systemd.count("STOPPING") > 0)
    assert worker.wait() == 0
    draining = [message for message in systemd.messages if message["STATUS"].startswith("stopping; 1 running")]
    assert len(draining) >= 3
    assert all(EXTENSION in message and "WATCHDOG" in message for message in draining)
    assert await is_state(client, job_id, State.COMPLETED)


async def test_a_reload_takes_settings_over_and_loses_no_job(
    services: Processes, systemd: FakeSystemd, client: awa.App, env_file: Path
) -> None:
    worker = services.worker()
    await ready(systemd)
    assert await concurrency(client) == [7]
    job_id = await start_nap(client, 3)
    env_file.write_text("# more slots\nAWA_CONCURRENCY='9'\n")
    worker.send(signal.SIGHUP)
    await eventually("RELOADING=1", lambda: systemd.count("RELOADING") > 0)
    assert int(systemd.since("RELOADING")[0]["MONOTONIC_USEC"]) > 0
    await ready(systemd, times=2)
    assert await is_state(client, job_id, State.COMPLETED)
    assert (await client.get(job_id)).attempt == 1
    assert await concurrency(client) == [9]

    env_file.write_text("")  # what is no longer there is forgotten
    worker.send(signal.SIGHUP)
    await ready(systemd, times=3)
    assert await concurrency(client) == [100]
    assert worker.running
    assert systemd.count("STOPPING") == 0


async def test_a_mistake_changes_nothing(
    services: Processes, systemd: FakeSystemd, client: awa.App, env_file: Path
) -> None:
    worker = services.start("worker", env={"AWA_APP": "tests.chaos.jobs:app", "AWA_QUEUES": "default"})
    await ready(systemd)
    job_id = await start_nap(client, 300)
    mistakes = {
        "AWA_CONCURRENCY=none": "valid integer",
        "AWA_HEARTBEAT_INTERVAL=10 parsecs": '"10 parsecs" is not a duration',
        "AWA_APP=nowhere:app": 'there is no module "nowhere"',
    }
    for times, (line, why) in enumerate(mistakes.items(), 2):
        env_file.write_text(f"{line}\n")
        worker.send(signal.SIGHUP)
        await ready(systemd, times)
        assert why in worker.output
    assert worker.output.count("reload failed, the current settings stay in use") == systemd.count("RELOADING") == 3
    assert await is_state(client, job_id, State.RUNNING), "nothing was drained"
    assert await concurrency(client) == [7]


async def test_a_stop_ends_a_reload(services: Processes, systemd: FakeSystemd, client: awa.App) -> None:
    worker = services.worker()
    await ready(systemd)
    job_id = await start_nap(client, 4)
    worker.send(signal.SIGHUP)
    await eventually("it drains", lambda: "restarting after the running jobs have ended" in worker.output)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert systemd.count("READY") == 1
    assert await is_state(client, job_id, State.COMPLETED), "it was not hurried"


async def test_a_leader_reloads(services: Processes, systemd: FakeSystemd, env_file: Path) -> None:
    leader = services.start("maintenance")
    await ready(systemd)
    env_file.write_text("AWA_LOG_FORMAT=json\n")
    leader.send(signal.SIGHUP)
    await ready(systemd, times=2)
    await eventually("it logs as it is told", lambda: '"message": "elected' in leader.output)
    leader.send(signal.SIGTERM)
    assert leader.wait() == 0


async def test_a_hang_up_without_a_file_ends_the_process(services: Processes, systemd: FakeSystemd) -> None:
    worker = services.worker(env={"AWA_ENV_FILE": ""})
    await ready(systemd)
    worker.send(signal.SIGHUP)
    assert worker.wait() == -signal.SIGHUP


async def test_several_processes_are_one_service(
    services: Processes, systemd: FakeSystemd, client: awa.App, env_file: Path
) -> None:
    worker = services.worker("--processes", "2", env=systemd.env(watchdog_s=8))
    await ready(systemd)
    (began,) = (message for message in systemd.messages if "READY" in message)
    assert began["STATUS"].startswith("2 of 2 processes ready; 0 running, 0 done")
    await client.enqueue("quick")
    await eventually("figures", systemd.has_status("0 running, 1 done"))
    job_id = await start_nap(client, 3)
    env_file.write_text("AWA_CONCURRENCY=9\n")
    worker.send(signal.SIGHUP)
    await ready(systemd, times=2)
    assert await is_state(client, job_id, State.COMPLETED)
    assert await concurrency(client) == [9, 9]
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert systemd.count("STOPPING") >= 1


async def test_a_child_that_hangs_is_started_again(services: Processes, systemd: FakeSystemd) -> None:
    supervisor = services.worker("--processes", "2", env=systemd.env(watchdog_s=3))
    await ready(systemd)
    hung, other = children(supervisor)
    hung.suspend()
    await eventually("it is ended", lambda: not hung.is_running() or hung.status() == psutil.STATUS_ZOMBIE)
    await eventually("another one takes its place", lambda: len(children(supervisor)) == 2)
    assert other.is_running()
    await eventually("both work", lambda: systemd.statuses[-1].startswith("2 of 2 processes ready"))


def children(process: Process) -> list[psutil.Process]:
    return psutil.Process(process.pid).children()
