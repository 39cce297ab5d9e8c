"""A worker in a process of its own, beside the one that measures: `awa worker` with its defaults."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from awa_py.db import Connection, Database
from awa_py.errors import AwaError
from awa_py.worker.supervisor import LIFELINE_VARIABLE, lifeline

from .scratch import QUEUE

APP = "awa_cli.bench.jobs:app"
# It is in the registry, and it leads: the first tasks of a new leader are not to fall into the measurement.
READY = "SELECT EXISTS (SELECT FROM awa.workers) AND EXISTS (SELECT FROM awa.leader WHERE worker_id IS NOT NULL)"
START_S = 60.0
STOP_S = 20.0
LOOK_EVERY_S = 0.05
TAIL_BYTES = 2_000


class Beside:
    """The worker's process."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: IO[bytes], database: Database) -> None:
        self._process = process
        self._log = log
        self._database = database
        self.pid = process.pid

    def check(self) -> None:
        """Raises where it has ended before it should."""
        code = self._process.poll()
        if code is not None:
            raise AwaError(f"the worker ended with exit code {code}; the end of its log:\n{self._tail()}")

    async def ready(self, connection: Connection) -> None:
        """Waits until it is at work."""
        deadline = time.monotonic() + START_S
        while not await connection.fetchval(self._database.schema.put_into(READY)):
            self.check()
            if time.monotonic() > deadline:
                raise AwaError(f"the worker did not start in {START_S:.0f} s; the end of its log:\n{self._tail()}")
            await asyncio.sleep(LOOK_EVERY_S)

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
def worker_beside(database: Database) -> Iterator[Beside]:
    """Started; stopped at the end, however it comes. Where we are killed, it ends by itself."""
    with lifeline() as read_end, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "awa_cli", "worker", APP, "-q", QUEUE],
            env=_environment(database) | {LIFELINE_VARIABLE: str(read_end)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(read_end,),
            process_group=0,  # Ctrl-C is for us, and we then stop the worker
        )
        started = Beside(process, log, database)
        try:
            yield started
        finally:
            started.stop()


def _environment(database: Database) -> dict[str, str]:
    """Ours, without what was meant for other workers: it is the defaults that are measured."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWA_")}
    return kept | {"AWA_DATABASE_URL": database.url, "AWA_SCHEMA": database.schema.name}
