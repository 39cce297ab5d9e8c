"""scheduled, retryable → available, when due: the leader sleeps until the next due time, and not longer."""

from awa_py.maintenance.task import Batch
from awa_py.store import maintain
from awa_py.store.session import Session

BATCH = 1_000


async def promote(session: Session) -> Batch:
    promoted, next_s = await maintain.promote_jobs(session, limit=BATCH)
    return Batch(promoted, again=promoted == BATCH, next_s=next_s)
