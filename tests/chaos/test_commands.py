"""A killed worker leaves no process of a `cmd_exec` job behind."""

import os
import signal
from pathlib import Path

import pytest

import awa_py as awa
from tests.processes import Processes, eventually
from tests.programs import FAMILIES, Root

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("family", ["child", "grandchild", "deaf", "orphan of its own session"])
async def test_killed_worker_leaves_no_command_behind(  # F21
    client: awa.App, awa_processes: Processes, tmp_path: Path, family: str
) -> None:
    root = Root.within(tmp_path)
    worker = awa_processes.worker("--allow-exec", str(root.path))
    job = await client.enqueue("cmd_exec", root.args(root.script("family", FAMILIES[family])))
    await eventually("the command runs", root.note("runs"))
    assert root.processes()
    worker.send(signal.SIGKILL)
    worker.wait()
    await eventually("all processes of the command have ended", lambda: root.processes() == [])
    root.script("family", "echo again")
    awa_processes.worker(env={"AWA_ALLOW_EXEC": str(root.path)})
    assert await client.result(job.id, timeout="60s") == {"exit_code": 0, "output": "again\n"}


@pytest.mark.parametrize("family", ["child", "deaf", "own session", "orphan of its own session"])
async def test_command_of_a_killed_worker_ends_although_a_forked_process_lives_on(  # F21
    client: awa.App, awa_processes: Processes, tmp_path: Path, family: str
) -> None:
    root = Root.within(tmp_path)
    worker = awa_processes.start("worker", "tests.chaos.forking:app", "-q", "default", "--allow-exec", str(root.path))
    await client.enqueue("cmd_exec", root.args(root.script("family", FAMILIES[family])))
    await eventually("the command runs", root.note("runs"))
    forking = await client.enqueue("fork")
    forked: int = await client.result(forking.id, timeout="30s")
    try:
        worker.send(signal.SIGKILL)
        worker.wait()
        await eventually("all processes of the command have ended", lambda: root.processes() == [])
        os.kill(forked, 0)  # it lives, and has kept the pipe open
    finally:
        os.kill(forked, signal.SIGKILL)
        for process in root.processes():
            process.kill()


async def test_second_signal_ends_a_command_and_releases_its_job(
    client: awa.App, awa_processes: Processes, tmp_path: Path
) -> None:  # F19
    root = Root.within(tmp_path)
    worker = awa_processes.worker("--allow-exec", str(root.path), "--no-maintenance")
    job = await client.enqueue("cmd_exec", root.args(root.script("family", FAMILIES["deaf"])))
    await eventually("the command runs", root.note("runs"))
    worker.send(signal.SIGTERM)
    await eventually("the worker waits for the job", lambda: "waiting up to" in worker.output)
    assert root.processes()
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert root.processes() == []
    released = await client.get(job.id)
    assert (released.state, released.attempt) == (awa.State.AVAILABLE, 0)
