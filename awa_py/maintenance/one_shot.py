"""Run maintenance tasks from Python, without being the leader."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import cast

from awa_py.db.errors import INVALID_DATA
from awa_py.errors import ConfigError
from awa_py.maintenance.reports import (
    AgingReport,
    CleanupReport,
    CronReport,
    CronSyncReport,
    InvalidReport,
    ParentsReport,
    PromoteReport,
    RebalanceReport,
    RescueReport,
    RollUpReport,
    TaskReport,
    UnservedReport,
)
from awa_py.maintenance.task import Task, run_once
from awa_py.store.session import Session


class Maintenance:
    """The leader's tasks, to run once: `report = await app.maintenance.cleanup()`.

    Each call runs until there is nothing left to do, and is safe while a leader runs the same task.
    """

    def __init__(
        self, tasks: Mapping[str, Task], open_session: Callable[[], AbstractAsyncContextManager[Session]]
    ) -> None:
        self._tasks = tasks
        self._open_session = open_session

    async def run(self, task: str) -> TaskReport:
        """Run a task by its name, as in `awa maintenance --once TASK`.

        If rows of jobs break it, fail these jobs and run it again.
        """
        if task not in self._tasks:
            raise ConfigError(f'unknown task "{task}": use one of {", ".join(self._tasks)}')
        async with self._open_session() as session:
            try:
                return await run_once(self._tasks[task], session)
            except INVALID_DATA:
                await run_once(self._tasks["invalid"], session)
                return await run_once(self._tasks[task], session)

    async def promote(self) -> PromoteReport:
        """Make due jobs available."""
        return cast(PromoteReport, await self.run("promote"))

    async def rescue(self) -> RescueReport:
        """Rescue running jobs whose heartbeat is stale."""
        return cast(RescueReport, await self.run("rescue"))

    async def gone(self) -> RescueReport:
        """Rescue running jobs of workers whose session has ended, and remove these workers from the list."""
        return cast(RescueReport, await self.run("gone"))

    async def deadlines(self) -> RescueReport:
        """Rescue running jobs past their deadline, and fail waiting jobs whose deadline has passed."""
        return cast(RescueReport, await self.run("deadlines"))

    async def parents(self) -> ParentsReport:
        """Make durable jobs available whose children have ended, if no worker noticed."""
        return cast(ParentsReport, await self.run("parents"))

    async def cron_sync(self) -> CronSyncReport:
        """Write the app's schedules to the database."""
        return cast(CronSyncReport, await self.run("cron-sync"))

    async def cron(self) -> CronReport:
        """Enqueue the jobs of schedules that are due."""
        return cast(CronReport, await self.run("cron"))

    async def cleanup(self) -> CleanupReport:
        """Delete what is past its retention, and create the partitions of the coming days."""
        return cast(CleanupReport, await self.run("cleanup"))

    async def aging(self) -> AgingReport:
        """Raise the priority of jobs that waited too long."""
        return cast(AgingReport, await self.run("aging"))

    async def unserved(self) -> UnservedReport:
        """Add an error to due jobs whose kind no live worker has a handler for."""
        return cast(UnservedReport, await self.run("unserved"))

    async def invalid(self) -> InvalidReport:
        """Fail jobs whose row has values that awa cannot work with."""
        return cast(InvalidReport, await self.run("invalid"))

    async def rebalance(self) -> RebalanceReport:
        """Split the slots of queues with `max_workers` over the live workers."""
        return cast(RebalanceReport, await self.run("rebalance"))

    async def rollup(self) -> RollUpReport:
        """Roll up the jobs that ended in the last minutes."""
        return cast(RollUpReport, await self.run("rollup"))
