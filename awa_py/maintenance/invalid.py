"""Fail jobs with values that awa cannot work with, after another task has failed because of one."""

from dataclasses import dataclass

from awa_py.invalid_jobs import InvalidJobs
from awa_py.maintenance.reports import InvalidReport
from awa_py.maintenance.task import TaskResult
from awa_py.store.session import Session


@dataclass(slots=True)
class Invalid:
    """Passes over the unfinished jobs, one window per batch."""

    jobs: InvalidJobs

    async def run(self, session: Session) -> TaskResult:
        discarded, has_more = await self.jobs.discard_batch(session)
        return TaskResult(InvalidReport(invalid_jobs=tuple(discarded)), has_more=has_more)
