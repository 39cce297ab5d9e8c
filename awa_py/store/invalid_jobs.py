"""Jobs with values that awa cannot work with: constraints keep them out, but a row may be older than its constraint."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from awa_py.store.session import Session

JobTable = Literal["ready", "scheduled", "running"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidJob:
    """A job that was discarded, and the names of the rules that its row breaks."""

    id: int
    queue: str
    kind: str
    rules: str


async def discard_invalid_jobs(
    session: Session, table: JobTable, *, after_id: int, limit: int, silence: timedelta
) -> tuple[list[InvalidJob], int | None]:
    """Fail the invalid jobs among the `limit` jobs after `after_id`, with a reason. Leave jobs that a live worker runs.

    Return them, and the id after which to continue (None: that was the last).
    """
    row = await session.fetchrow("discard_invalid_jobs", table, after_id, limit, silence)
    assert row is not None
    columns = (row["ids"], row["queues"], row["kinds"], row["rules"])
    discarded = [
        InvalidJob(id=job_id, queue=queue, kind=kind, rules=rules)
        for job_id, queue, kind, rules in zip(*columns, strict=True)
    ]
    return discarded, row["continue_after"]


async def count_invalid_jobs(session: Session, *, limit: int) -> int:
    """Return how many of the latest `limit` failed jobs were discarded because of their values."""
    return int(await session.fetchval("count_invalid_jobs", limit))
