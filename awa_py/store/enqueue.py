"""Enqueue one job, or a few in one statement. `store/copy.py` enqueues many."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import asyncpg

from awa_py.errors import InvalidJob
from awa_py.model.job import NewJob, State
from awa_py.store.session import Session
from awa_py.text import describe

# ProgramLimitExceeded: a key can have too many bytes for an index, although its characters are not too many.
REFUSALS = (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError, asyncpg.ProgramLimitExceededError)


class Enqueued(NamedTuple):
    """The result of one NewJob: its id, or the id of the job that holds its unique key."""

    id: int
    is_new: bool
    state: State
    run_at: datetime
    created_at: datetime
    queue: str
    can_read_holder: bool = False  # whether the login may read the job that holds the key


async def can_insert(session: Session) -> bool:
    """Return whether the login may write to the tables. Otherwise it has to call the schema's functions."""
    return bool(await session.fetchval("can_insert"))


async def enqueue_job(session: Session, job: NewJob, *, insert_directly: bool = True) -> Enqueued:
    """Enqueue one job in the connection's transaction. Insert it directly into the table if that is possible."""
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
    return Enqueued(
        id=row["id"],
        is_new=True,
        state=State.AVAILABLE,
        run_at=row["created_at"],
        created_at=row["created_at"],
        queue=row["queue"],
    )


async def enqueue_jobs(session: Session, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Enqueue all jobs or none, in one round trip and in the connection's transaction."""
    if not jobs:
        return []
    array = "[" + ",".join(job.to_json() for job in jobs) + "]"
    try:
        rows = await session.fetch("enqueue_jobs", array)
    except REFUSALS as error:
        raise InvalidJob(f"PostgreSQL refused the job: {describe(error)}") from None
    return [  # not Enqueued(**row): this is the hot path of single enqueues, and keywords take twice as long
        Enqueued(
            row["id"],
            row["is_new"],
            State(row["state"]),
            row["run_at"],
            row["created_at"],
            row["queue"],
            row["can_read_holder"],
        )
        for row in rows
    ]
