"""The worker processes of the demo, under a supervisor."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from awa_py.background import wait_for_event
from awa_py.db.database import Database
from awa_py.store import workers
from awa_py.store.session import Session

from ..worker_process import POLL_INTERVAL_S, WorkerProcess, start_worker

WORKERS = 2
QUEUES = ("mail=10", "images=4", "reports=2", "default=5", "bulk=100")
STALENESS = timedelta(seconds=2.5)
# Much shorter than the defaults, so that a rescue can be seen within seconds.
SETTINGS = {
    "AWA_HEARTBEAT_INTERVAL": "500ms",
    "AWA_HEARTBEAT_STALENESS": f"{STALENESS.total_seconds()}s",
    "AWA_HEARTBEAT_RESCUE_INTERVAL": "500ms",
    "AWA_SHUTDOWN_TIMEOUT": "2s",
}


class DemoWorkers:
    """The workers and their supervisor."""

    def __init__(self, supervisor: WorkerProcess) -> None:
        self._supervisor = supervisor

    def check(self) -> None:
        """Raise AwaError if the supervisor has ended."""
        self._supervisor.check()

    async def wait_until_ready(self, session: Session, stopping: asyncio.Event) -> bool:
        """Wait until all workers are registered. Return False if the demo was stopped first."""

        async def is_ready() -> bool:
            return len(await workers.list_workers(session, staleness=STALENESS)) >= WORKERS

        async def is_stopped() -> bool:
            return await wait_for_event(stopping, POLL_INTERVAL_S)

        return await self._supervisor.wait_until(is_ready, is_stopped)


@contextmanager
def start_workers(database: Database) -> Iterator[DemoWorkers]:
    """Run `awa worker --processes 2` until the block ends."""
    queue_options = [argument for queue in QUEUES for argument in ("-q", queue)]
    arguments = ["awa_cli.demo.jobs:app", *queue_options, "--processes", str(WORKERS)]
    with start_worker(database, arguments, SETTINGS) as supervisor:
        yield DemoWorkers(supervisor)
