"""`awa worker` in a process of its own, beside a command that needs one: the demo, the bench."""

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
from awa_py.worker.processes.supervisor import LIFELINE_VARIABLE, lifeline

START_S = 60.0
STOP_S = 20.0
LOOK_EVERY_S = 0.05
TAIL_BYTES = 2_000


class Beside:
    """The process, and what it logged. With --processes, it is the supervisor's."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: IO[bytes]) -> None:
        self._process = process
        self._log = log
        self.pid = process.pid

    def check(self) -> None:
        """Raises where it has ended before it should."""
        code = self._process.poll()
        if code is not None:
            raise AwaError(f"the worker ended with exit code {code}; the end of its log:\n{self._tail()}")

    async def wait_until(self, is_ready: Callable[[], Awaitable[bool]], stopped: Callable[[], Awaitable[bool]]) -> bool:
        """Waits until it is at work, or until `stopped`, which takes a moment, says so. Whether it is at work."""
        deadline = monotonic() + START_S
        while not await is_ready():
            self.check()
            if monotonic() > deadline:
                raise AwaError(f"the worker did not start in {START_S:.0f} s; the end of its log:\n{self._tail()}")
            if await stopped():
                return False
        return True

    def stop(self) -> None:
        """Asks it to stop, and waits until it has."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tail(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace").strip()


@contextmanager
def worker_beside(database: Database, words: Sequence[str], settings: Mapping[str, str]) -> Iterator[Beside]:
    """Started; stopped at the end, however it comes. Where we are killed, it ends by itself."""
    with lifeline() as read_end, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "awa_cli", "worker", *words],
            env={**_environment(database), **settings, LIFELINE_VARIABLE: str(read_end)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(read_end,),
            process_group=0,  # Ctrl-C is for us, and we then stop the worker
        )
        started = Beside(process, log)
        try:
            yield started
        finally:
            started.stop()


def _environment(database: Database) -> dict[str, str]:
    """Ours, without what was meant for other workers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWA_")}
    direct = {"AWA_DIRECT_URL": database.direct_url} if database.direct_url else {}
    return kept | direct | {"AWA_DATABASE_URL": database.url, "AWA_SCHEMA": database.schema.name}
