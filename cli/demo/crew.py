"""The workers of the demo: real processes, kept alive by a real supervisor."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import IO

from awa_py.db import Database
from awa_py.errors import AwaError
from awa_py.loops import wait_for_any
from awa_py.store import queues
from awa_py.store.session import Session
from awa_py.worker.supervisor import LIFELINE_VARIABLE, lifeline

WORKERS = 2
QUEUES = ("mail=10", "images=4", "reports=2", "default=5", "bulk=100")
STALENESS = timedelta(seconds=2.5)
# Short, so that everything can be seen within seconds. In earnest, the defaults are calmer.
PACE = {
    "AWA_HEARTBEAT_INTERVAL": "500ms",
    "AWA_HEARTBEAT_STALENESS": f"{STALENESS.total_seconds()}s",
    "AWA_HEARTBEAT_RESCUE_INTERVAL": "500ms",
    "AWA_SHUTDOWN_TIMEOUT": "2s",
}
START_S = 60.0
STOP_S = 20.0
LOOK_EVERY_S = 0.05
TAIL_BYTES = 2_000


class Crew:
    """The workers' supervisor, and what they all logged."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: IO[bytes]) -> None:
        self._process = process
        self._log = log

    def check(self) -> None:
        """Raises where the workers have ended before they should."""
        code = self._process.poll()
        if code is not None:
            raise AwaError(f"the workers ended with exit code {code}; the end of their log:\n{self._tail()}")

    async def ready(self, session: Session, stopping: asyncio.Event) -> bool:
        """Waits until all workers are registered. False where it was stopped before."""
        deadline = time.monotonic() + START_S
        while len(await queues.list_workers(session, staleness=STALENESS)) < WORKERS:
            self.check()
            if time.monotonic() > deadline:
                raise AwaError(f"the workers did not start in {START_S:.0f} s; the end of their log:\n{self._tail()}")
            if await wait_for_any(stopping, LOOK_EVERY_S):
                return False
        return True

    def stop(self) -> None:
        """Asks them to stop, and waits until they have."""
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
def crew(database: Database) -> Iterator[Crew]:
    """`awa worker --processes 2`, as one would start it oneself; stopped at the end, however it comes."""
    served = [argument for queue in QUEUES for argument in ("-q", queue)]
    with lifeline() as read_end, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "awa_cli", "worker", "awa_cli.demo.jobs:app", *served, "--processes", str(WORKERS)],
            env=_environment(database) | {LIFELINE_VARIABLE: str(read_end)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(read_end,),
            process_group=0,  # Ctrl-C is for the demo, which then stops the workers itself
        )
        started = Crew(process, log)
        try:
            yield started
        finally:
            started.stop()


def _environment(database: Database) -> dict[str, str]:
    """Ours, without what was meant for other workers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWA_")}
    return kept | PACE | {"AWA_DATABASE_URL": database.url, "AWA_SCHEMA": database.schema.name}
