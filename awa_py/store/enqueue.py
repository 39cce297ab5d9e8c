"""Enqueue one job, or a few in one statement. `store/copy.py` enqueues many."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import asyncpg

from awa_py.connections import Record
from awa_py.db.columns import MAX_INLINE_BYTES
from awa_py.errors import InvalidJob
from awa_py.model.job import NewJob, State
from awa_py.store.session import Session
from awa_py.text import describe

# ProgramLimitExceeded: a key can have too many bytes for an index, although its characters are not too many.
REFUSALS = (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError, asyncpg.ProgramLimitExceededError)


DECLARED_VALUES = (
    "priority",
    "max_attempts",
    "timeout",
    "tags",
    "unique_key",
    "concurrency_key",
    "concurrency_limit",
    "ordered",
)


class Enqueued(NamedTuple):
    """The result of one NewJob: its id, or the id of the job that holds its unique key."""

    id: int
    is_new: bool
    state: State
    run_at: datetime
    created_at: datetime
    queue: str
    can_read_holder: bool = False  # whether the login may read the job that holds the key
    declared: Mapping[str, Any] | None = None  # the job's values, if the database completed them


async def can_insert(session: Session) -> bool:
    """Return whether the login may write to the tables. Otherwise it has to call the schema's functions."""
    return bool(await session.fetchval("can_insert"))


def has_payload(job: NewJob) -> bool:
    """Return whether the job's arguments go to `awa.payloads`, because they are large."""
    return len(job.args_json) > MAX_INLINE_BYTES


async def enqueue_job(session: Session, job: NewJob, *, insert_directly: bool = True) -> Enqueued:
    """Enqueue one job in the connection's transaction. Insert it directly into the table if that is possible."""
    spec, unique, is_large = job.spec, job.unique, has_payload(job)
    if not insert_directly or not spec.is_due_immediately or not spec.is_complete or (unique and is_large):
        return (await enqueue_jobs(session, [job]))[0]
    values = (
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
    try:
        if is_large:
            row = await session.fetchrow("enqueue_job_with_payload", *values)
        elif unique is None:
            row = await session.fetchrow("enqueue_job", *values)
        else:
            row = await session.fetchrow("enqueue_unique_job", *values, unique.key, unique.period, unique.states)
    except REFUSALS as error:
        raise InvalidJob(f"{spec.kind}: PostgreSQL refused the job: {describe(error)}") from None
    if row is None:  # the key exists: its holder may have to be replaced
        return (await enqueue_jobs(session, [job]))[0]
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
    is_complete = all(job.spec.given is None for job in jobs)
    try:
        if not is_complete:
            return await _enqueue_undeclared_jobs(session, jobs)
        rows = await session.fetch("enqueue_jobs", "[" + ",".join(job.to_json() for job in jobs) + "]")
    except REFUSALS as error:
        raise InvalidJob(f"PostgreSQL refused the job: {describe(error)}") from None
    return [_enqueued(row) for row in rows]


async def _enqueue_undeclared_jobs(session: Session, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Enqueue jobs of which some have kinds that this app does not declare: the database completes those."""
    objects = (f'{{"as_given":true,{job.to_json()[1:]}' if job.spec.is_complete else job.to_json() for job in jobs)
    rows = await session.fetch("enqueue_undeclared_jobs", f"[{','.join(objects)}]")
    return [
        _enqueued(row) if job.spec.is_complete else _enqueued(row)._replace(declared=_declared(row))
        for job, row in zip(jobs, rows, strict=True)
    ]


def _enqueued(row: Record) -> Enqueued:
    # Not Enqueued(**row): this is the hot path of single enqueues, and keywords take twice as long.
    return Enqueued(
        row["id"],
        row["is_new"],
        State(row["state"]),
        row["run_at"],
        row["created_at"],
        row["queue"],
        row["can_read_holder"],
    )


def _declared(row: Record) -> dict[str, Any]:
    """Return the values of an enqueued job that its kind may declare. What is not set is left out."""
    values = {name: row[name] for name in DECLARED_VALUES if row[name] is not None}
    if row["metadata"] is not None:
        values["metadata"] = json.loads(row["metadata"])
    if row["concurrency_key"] is None:  # the limit and the order are those of a key
        return {name: value for name, value in values.items() if name not in ("concurrency_limit", "ordered")}
    return {"concurrency_limit": 1, "ordered": False, **values}
