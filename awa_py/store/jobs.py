"""Operations on jobs that users ask for: read, cancel, retry, delete, move, explain."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from awa_py.model.job import Job, State
from awa_py.store.checkpoints import wake_parents
from awa_py.store.finish import array_literal
from awa_py.store.rows import job_from
from awa_py.store.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalState:
    """How a job ended, and its result, as JSON, or its last error."""

    state: State
    result_json: str | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnservedJobs:
    """Available jobs of one kind that no live worker of their queue can run."""

    queue: str
    kind: str
    ids: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConditions:
    """What decides whether a job can run now."""

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
    queue_running: int  # jobs that count against max_workers
    rate_jobs: int | None
    rate_period: timedelta | None
    owner: str | None  # host:pid of the worker that runs it, if that worker has a row
    owner_silent_s: float | None
    workers: int
    workers_of_queue: int
    workers_of_kind: int
    ahead: int  # jobs before it with the same concurrency key, or in the queue if it has no key
    key_running: int
    key_holders: Sequence[int]  # the first of those
    earlier_id: int | None  # the job that has to end first, if the key is ordered
    earlier_state: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounts:
    """The number of jobs in each state, and of those that ended within the window."""

    by_state: dict[str, int]
    completed: int
    dead: int


class SeenJobs(NamedTuple):
    """The states and leases of jobs when they were read. Jobs that changed since are left alone."""

    states: Sequence[State]
    leases: Sequence[int]


def _seen_by_id(ids: Sequence[int], seen: SeenJobs | None) -> str | None:
    if seen is None:
        return None
    return json.dumps({job_id: f"{state} {lease}" for job_id, state, lease in zip(ids, *seen, strict=True)})


async def get_jobs(session: Session, ids: Sequence[int]) -> dict[int, Job]:
    return {job.id: job for job in map(job_from, await session.fetch("get_jobs", array_literal(ids)))}


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
    """Return the matching jobs, newest first."""
    rows = await session.fetch("list_jobs", states, queue, kind, tag, below, limit)
    return [job_from(row) for row in rows]


async def list_children(session: Session, parent_id: int) -> list[Job]:
    """Return the children of a job, in order of id."""
    return [job_from(row) for row in await session.fetch("list_children", parent_id)]


async def find_ended_jobs(session: Session, ids: Sequence[int]) -> dict[int, FinalState | None]:
    """Return how those of the jobs ended that have ended, and None for those that do not exist."""
    return {
        row["id"]: None
        if row["state"] is None
        else FinalState(state=State(row["state"]), result_json=row["result"], error=row["error"])
        for row in await session.fetch("find_ended_jobs", array_literal(ids))
    }


async def list_unserved_jobs(
    session: Session, ids: Sequence[int], *, staleness: timedelta, grace: timedelta
) -> list[UnservedJobs]:
    """Return those of the jobs that no live worker can run, if they have been due for longer than `grace`."""
    rows = await session.fetch("list_unserved_jobs", array_literal(ids), staleness, grace)
    return [UnservedJobs(queue=row["queue"], kind=row["kind"], ids=row["ids"]) for row in rows]


async def cancel_jobs(session: Session, ids: Sequence[int], seen: SeenJobs | None = None) -> dict[int, str]:
    """Cancel jobs. Return what happened to each unfinished job: `cancelled`, or `requested` if it runs."""
    rows = await session.fetch("cancel_jobs", ids, _seen_by_id(ids, seen))
    parents = {row["parent_id"] for row in rows if row["answer"] == "cancelled"} - {None}
    if parents:
        await wake_parents(session, sorted(parents))
    return {row["id"]: row["answer"] for row in rows}


async def cancel_trees(session: Session, ids: Sequence[int], seen: SeenJobs | None = None) -> dict[int, str]:
    """Cancel jobs, their unfinished children, and the children of these. Return the answers for the jobs themselves.

    A job is marked before its children are listed. From then on it cannot spawn more.
    """
    answers = await cancel_jobs(session, ids, seen)
    parents = list(answers)
    while parents:
        children = await list_unfinished_children(session, parents)
        parents = list(await cancel_jobs(session, children)) if children else []
    return answers


async def list_unfinished_children(session: Session, parents: Sequence[int]) -> list[int]:
    """Return the ids of the unfinished children of jobs."""
    return [row["id"] for row in await session.fetch("list_unfinished_children", parents)]


async def retry_jobs(
    session: Session, ids: Sequence[int], seen: SeenJobs | None = None, *, write_events: bool = True
) -> set[int]:
    """Make jobs available again, except those whose unique key another job holds. Return the changed ids.

    With `write_events`, the end of the last attempt is kept as an event, because the row forgets it.
    """
    return {row["id"] for row in await session.fetch("retry_jobs", ids, _seen_by_id(ids, seen), write_events)}


async def delete_jobs(session: Session, ids: Sequence[int], seen: SeenJobs | None = None) -> set[int]:
    """Delete jobs that do not run. Return the deleted ids."""
    return {row["id"] for row in await session.fetch("delete_jobs", ids, _seen_by_id(ids, seen))}


async def move_jobs(
    session: Session, ids: Sequence[int], seen: SeenJobs | None = None, *, queue: str | None, priority: int | None
) -> set[int]:
    """Move waiting jobs to a queue, a priority (None: no change), or both. Return the moved ids."""
    return {row["id"] for row in await session.fetch("move_jobs", ids, _seen_by_id(ids, seen), queue, priority)}


async def explain_job(session: Session, job_id: int, *, staleness: timedelta) -> JobConditions | None:
    row = await session.fetchrow("explain_job", job_id, staleness)
    return None if row is None else JobConditions(**{**dict(row), "state": State(row["state"])})


async def count_jobs(session: Session, *, window: timedelta) -> JobCounts:
    row = await session.fetchrow("count_jobs", window)
    assert row is not None
    return JobCounts(by_state=json.loads(row["counts"]), completed=row["completed"], dead=row["dead"])
