"""Start real `awa` processes in tests, and wait for their effects."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from awa_py import App, State

ROOT = Path(__file__).parent.parent
FAST = {
    "AWA_HEARTBEAT_INTERVAL": "500ms",
    "AWA_HEARTBEAT_STALENESS": "3s",
    "AWA_REPORT_INTERVAL": "500ms",
    "AWA_SHARE_STALENESS": "3s",
    "AWA_GONE_AFTER": "2s",
    "AWA_HEARTBEAT_RESCUE_INTERVAL": "500ms",
    "AWA_DEADLINE_RESCUE_INTERVAL": "500ms",
}


class Process:
    """An `awa` command that runs in the background."""

    def __init__(self, *arguments: str, env: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._output = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "awa_cli", *arguments],
            env={**os.environ, **env, "PYTHONPATH": os.pathsep.join([str(ROOT), *env.get("PYTHONPATH", "").split()])},
            cwd=log.parent,  # the repository may contain a tasks.py of its own
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, timeout_s: float = 30) -> int:
        return self._process.wait(timeout_s)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def output(self) -> str:
        return self.log.read_text()

    def end(self) -> None:
        """Kill the process and its children, even if it is stopped."""
        if self.running:
            for number in (signal.SIGKILL, signal.SIGCONT):
                try:
                    os.killpg(self.pid, number)
                except ProcessLookupError:
                    break
        self._process.wait()
        self._output.close()


class Processes:
    """All processes of a test. They end with it."""

    def __init__(self, directory: Path, env: Mapping[str, str]) -> None:
        self._directory = directory
        self._env = env
        self._all: list[Process] = []

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> Process:
        log = self._directory / f"{len(self._all)}-{arguments[0]}.log"
        process = Process(*arguments, env={**self._env, **(env or {})}, log=log)
        self._all.append(process)
        return process

    def worker(self, *arguments: str, env: Mapping[str, str] | None = None) -> Process:
        return self.start("worker", "tests.chaos.jobs:app", "-q", "default", *arguments, env=env)

    def end(self) -> None:
        for process in self._all:
            process.end()

    @property
    def outputs(self) -> str:
        return "\n".join(f"--- {process.log.name}\n{process.output}" for process in self._all)


@contextmanager
def processes(directory: Path, url: str, env: Mapping[str, str]) -> Iterator[Processes]:
    """Yield an object that starts processes with this database. Print their output at the end, for a failed test."""
    started = Processes(directory, {"AWA_DATABASE_URL": url, "AWA_TEST_LOG": str(directory / "runs.log"), **env})
    try:
        yield started
    finally:
        started.end()
        print(started.outputs)


async def eventually(what: str, condition: Callable[[], Awaitable[bool] | bool], timeout_s: float = 30) -> None:
    """Wait until the condition is true. Fail with `what` in the message if that takes too long."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if await answer if isinstance(answer, Awaitable) else answer:
            return
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.02)


async def is_state(client: App, job_id: int, state: State) -> bool:
    return (await client.get(job_id)).state is state


async def start_nap(client: App, seconds: float) -> int:
    """Enqueue a job that runs for this time, and wait until it runs."""
    job = await client.enqueue("nap", {"seconds": seconds})
    await eventually("the job runs", lambda: is_state(client, job.id, State.RUNNING))
    return job.id


def metric(port: int, name: str) -> float | None:
    """Return the value of a metric, or None if the process does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(f"{name} "):
                    return float(line.rsplit(" ", 1)[1])
    except OSError:
        return None
    return None
