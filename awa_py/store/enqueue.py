"""New → available or scheduled: one job, a few in a statement, or many by COPY (`store/copy.py`)."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import asyncpg

from awa_py.errors import InvalidJob
from awa_py.model.job import NewJob, State
from awa_py.store.session import Session
from awa_py.text import describe

# The last one: a key may have too many bytes for an index, though not too many characters.
REFUSALS = (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError, asyncpg.ProgramLimitExceededError)


class Enqueued(NamedTuple):
    """The answer to one NewJob: its id, or the id of the job that holds its unique key."""

    id: int
    is_new: bool
    state: State
    run_at: datetime
    created_at: datetime
    queue: str
    can_read_holder: bool = False  # at that job, whose key it is


async def can_insert(session: Session) -> bool:
    """Whether the login may write into the tables. Where it may not, functions do so for it."""
    return bool(await session.fetchval("can_insert"))


async def enqueue_job(session: Session, job: NewJob, *, insert_directly: bool = True) -> Enqueued:
    """Enqueues one job, in the transaction that the connection is in; where it can, straight into the table."""
    spec = job.spec
    if not insert_directly or job.unique is not None or not spec.is_due_immediately:
        return (await enqueue_jobs(session, [job]))[0]
    try:
        row = await session.fetchrow(
            "enqueue_job",
            spec.kind,
            spec.queue,
            spec.priority,
            job.args_json,
            spec.max_attempts,
            spec.timeout,
            spec.deadline,
            spec.tags or None,
            json.dumps(dict(spec.metadata)) if spec.metadata else None,
            spec.parent_id,
            spec.default_queue,
            job.concurrency_key,
            None if job.concurrency_key is None else spec.concurrency_limit,
            None if job.concurrency_key is None else spec.ordered,
        )
    except REFUSALS as error:
        raise InvalidJob(f"{spec.kind}: PostgreSQL refused the job: {describe(error)}") from None
    assert row is not None
    return Enqueued(row[0], True, State.AVAILABLE, row[1], row[1], row[2])


async def enqueue_jobs(session: Session, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Enqueues all of them, or none, in one round trip and in the transaction that the connection is in."""
    if not jobs:
        return []
    array = "[" + ",".join(job.to_json() for job in jobs) + "]"
    try:
        rows = await session.fetch("enqueue_jobs", array)
    except REFUSALS as error:
        raise InvalidJob(f"PostgreSQL refused the job: {describe(error)}") from None
    return [Enqueued(row[0], row[1], State(row[2]), *row[3:]) for row in rows]
