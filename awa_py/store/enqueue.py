"""New → available or scheduled."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from awa_py.errors import InvalidJob
from awa_py.job import NewJob, State
from awa_py.store.session import Session


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The answer to one NewJob: its id, or the id of the job that holds its unique key."""

    id: int
    is_new: bool
    state: State
    run_at: datetime
    created_at: datetime


async def enqueue_jobs(session: Session, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Enqueues all of them, or none, in one round trip and in the transaction that the connection is in."""
    if not jobs:
        return []
    array = "[" + ",".join(job.to_json() for job in jobs) + "]"
    try:
        rows = await session.fetch("enqueue_jobs", array)
    except (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError) as error:
        raise InvalidJob(f"PostgreSQL refused the job: {error}") from error
    return [Enqueued(row[0], row[1], State(row[2]), row[3], row[4]) for row in rows]
