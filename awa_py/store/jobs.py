"""Jobs as people ask for them: look, cancel, retry, delete, move, explain."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from awa_py.model.job import Job, State
from awa_py.store.rows import job_from
from awa_py.store.session import Session


@dataclass(frozen=True, slots=True)
class FinalState:
    """A job's state, and how it ended."""

    state: State
    result: Any
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConditions:
    """What decides whether a job could run, by the database's clock."""

    id: int
    kind: str
    queue: str
    state: State
    run_at: datetime
    future: bool
    due_s: float
    attempt: int
    max_attempts: int
    paused: bool
    paused_until: datetime | None
    throttled_until: datetime | None
    throttle_reason: str | None
    max_workers: int | None
    queue_running: int  # of the jobs that max_workers counts
    rate_jobs: int | None
    rate_period: timedelta | None
    owner: str | None  # host:pid of the worker that has it, where that one is in the registry
    owner_silent_s: float | None
    workers: int
    workers_of_queue: int
    workers_of_kind: int
    ahead: int  # of those in the same line: that of the job's concurrency key, else that of its queue
    key_running: int
    key_holders: Sequence[int]  # some of those
    earlier_id: int | None  # where the key is ordered: the job that has to end first
    earlier_state: str | None


@dataclass(frozen=True, slots=True)
class JobCounts:
    """How many jobs are in each state, and how many ended within the window."""

    by_state: dict[str, int]
    completed: int
    dead: int


class SeenJobs(NamedTuple):
    """The states and leases that jobs had when somebody looked: one that has changed since is left alone."""

    states: Sequence[State]
    leases: Sequence[int]


UNSEEN = (None, None)


async def get_jobs(session: Session, ids: Sequence[int]) -> dict[int, Job]:
    return {job.id: job for job in map(job_from, await session.fetch("get_jobs", ids))}


async def list_jobs(
    session: Session,
    *,
    states: Sequence[State] | None = None,
    queue: str | None = None,
    kind: str | None = None,
    tag: str | None = None,
    below: int | None = None,
    limit: int = 50,
) -> list[Job]:
    """The newest jobs that fit, newest first."""
    rows = await session.fetch("list_jobs", states, queue, kind, tag, below, limit)
    return [job_from(row) for row in rows]


async def list_children(session: Session, parent_id: int) -> list[Job]:
    """The jobs that a job has started, in their order."""
    return [job_from(row) for row in await session.fetch("list_children", parent_id)]


async def get_final_state(session: Session, job_id: int) -> FinalState | None:
    row = await session.fetchrow("get_final_state", job_id)
    if row is None:
        return None
    return FinalState(State(row[0]), None if row[1] is None else json.loads(row[1]), row[2])


async def cancel_jobs(session: Session, ids: Sequence[int], seen: SeenJobs | None = None) -> dict[int, str]:
    """What happened to each unfinished job: `cancelled`, or `requested` of its worker."""
    return {row[0]: row[1] for row in await session.fetch("cancel_jobs", ids, *(seen or UNSEEN))}


async def retry_jobs(
    session: Session, ids: Sequence[int], seen: SeenJobs | None = None, *, note: bool = True
) -> set[int]:
    """The jobs that are available again: not those whose unique key another one holds.

    What their rows forget with it is noted beside them, unless told otherwise.
    """
    return {row[0] for row in await session.fetch("retry_jobs", ids, *(seen or UNSEEN), note)}


async def delete_jobs(session: Session, ids: Sequence[int], seen: SeenJobs | None = None) -> set[int]:
    """The jobs that are gone."""
    return {row[0] for row in await session.fetch("delete_jobs", ids, *(seen or UNSEEN))}


async def move_jobs(
    session: Session, ids: Sequence[int], seen: SeenJobs | None = None, *, queue: str | None, priority: int | None
) -> set[int]:
    """The waiting jobs that are now in this queue, with this priority; None leaves it as it is."""
    return {row[0] for row in await session.fetch("move_jobs", ids, *(seen or UNSEEN), queue, priority)}


async def explain_job(session: Session, job_id: int, *, staleness: timedelta) -> JobConditions | None:
    row = await session.fetchrow("explain_job", job_id, staleness)
    return None if row is None else JobConditions(**{**dict(row), "state": State(row["state"])})


async def count_jobs(session: Session, *, window: timedelta) -> JobCounts:
    row = await session.fetchrow("count_jobs", window)
    assert row is not None
    return JobCounts(json.loads(row["counts"]), row["completed"], row["dead"])
