"""The workers of the demo: real processes, kept alive by a real supervisor."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from awa_py.background import wait_for_event
from awa_py.db.database import Database
from awa_py.store import queues
from awa_py.store.session import Session

from ..beside import LOOK_EVERY_S, Beside, worker_beside

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


class Crew:
    """The workers, under their supervisor."""

    def __init__(self, supervisor: Beside) -> None:
        self._supervisor = supervisor

    def check(self) -> None:
        """Raises where the workers have ended before they should."""
        self._supervisor.check()

    async def ready(self, session: Session, stopping: asyncio.Event) -> bool:
        """Waits until all workers are registered. False where it was stopped before."""

        async def all_are_there() -> bool:
            return len(await queues.list_workers(session, staleness=STALENESS)) >= WORKERS

        async def stopped() -> bool:
            return await wait_for_event(stopping, LOOK_EVERY_S)

        return await self._supervisor.wait_until(all_are_there, stopped)


@contextmanager
def crew(database: Database) -> Iterator[Crew]:
    """`awa worker --processes 2`, as one would start it oneself; stopped at the end, however it comes."""
    served = [argument for queue in QUEUES for argument in ("-q", queue)]
    words = ["awa_cli.demo.jobs:app", *served, "--processes", str(WORKERS)]
    with worker_beside(database, words, PACE) as supervisor:
        yield Crew(supervisor)
