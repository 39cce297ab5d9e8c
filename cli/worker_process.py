"""`awa worker` as a child process of a command that needs one: the demo and the benchmarks."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import IO

from awa_py.db.database import Database
from awa_py.errors import AwaError
from awa_py.worker.processes.lifeline import LIFELINE_VARIABLE, lifeline

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
POLL_INTERVAL_S = 0.05
LOG_TAIL_BYTES = 2_000


class WorkerProcess:
    """The process and its log. With --processes, the process is the supervisor."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: IO[bytes]) -> None:
        self._process = process
        self._log = log
        self.pid = process.pid

    def check(self) -> None:
        """Raise AwaError if the process has ended."""
        code = self._process.poll()
        if code is not None:
            raise AwaError(f"the worker ended with exit code {code}; the end of its log:\n{self._log_tail()}")

    async def wait_until(
        self, is_ready: Callable[[], Awaitable[bool]], is_stopped: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Wait for `is_ready`. Return False if `is_stopped`, which waits a moment before it answers, comes first."""
        deadline = monotonic() + START_TIMEOUT_S
        while not await is_ready():
            self.check()
            if monotonic() > deadline:
                raise AwaError(
                    f"the worker did not start within {START_TIMEOUT_S:.0f} s; the end of its log:\n{self._log_tail()}"
                )
            if await is_stopped():
                return False
        return True

    def stop(self) -> None:
        """Send SIGTERM and wait for the end; after a timeout, send SIGKILL."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _log_tail(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        tail = os.pread(self._log.fileno(), LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES))
        return tail.decode(errors="replace").strip()


@contextmanager
def start_worker(database: Database, arguments: Sequence[str], settings: Mapping[str, str]) -> Iterator[WorkerProcess]:
    """Start `awa worker` and stop it at the end of the block. If this process is killed, the worker ends by itself."""
    with lifeline() as read_end, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "awa_cli", "worker", *arguments],
            env={**_environment(database), **settings, LIFELINE_VARIABLE: str(read_end)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(read_end,),
            process_group=0,  # Ctrl-C must reach only this process, which then stops the worker
        )
        worker = WorkerProcess(process, log)
        try:
            yield worker
        finally:
            worker.stop()


def _environment(database: Database) -> dict[str, str]:
    """Return the environment without AWA_… variables, which may be meant for other workers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWA_")}
    direct = {"AWA_DIRECT_URL": database.direct_url} if database.direct_url else {}
    return kept | direct | {"AWA_DATABASE_URL": database.url, "AWA_SCHEMA": database.schema.name}
