"""Wake jobs whose children have ended: the net for a worker that died between the end of a child and its look."""

from dataclasses import dataclass

from awa_py.maintenance.reports import ParentsReport
from awa_py.maintenance.task import TaskResult
from awa_py.store import checkpoints
from awa_py.store.session import Session

PARENTS_PER_BATCH = 1_000


@dataclass(slots=True)
class Parents:
    """Looks at all jobs that wait for children, a bounded number at a time."""

    after: int = 0

    async def run(self, session: Session) -> TaskResult:
        """Look at the next jobs."""
        ids = await checkpoints.list_waiting_parents(session, after=self.after, limit=PARENTS_PER_BATCH)
        has_more = len(ids) == PARENTS_PER_BATCH
        self.after = ids[-1] if has_more else 0
        woken = await checkpoints.wake_parents(session, ids) if ids else 0
        return TaskResult(ParentsReport(woken_jobs=woken), has_more=has_more)
