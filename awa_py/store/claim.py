"""available → running.

A claimed row has the columns that every job needs. `details`, all other columns of the job, come only with the kinds
that ask for them. They are a JSON array, which is decoded if the handler asks for its job.
"""

import json
from collections.abc import Sequence, Set
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from awa_py.connections import Record
from awa_py.db.columns import DETAILS
from awa_py.db.errors import INVALID_DATA
from awa_py.errors import InvalidJob
from awa_py.model.job import Job, State
from awa_py.store.election import lock_key
from awa_py.store.finish import discard_jobs, release_jobs
from awa_py.store.rows import job_from_values
from awa_py.store.session import Session
from awa_py.text import describe

PRIORITIES = (1, 2, 3, 4)


class Claimant(NamedTuple):
    """A worker as its claims need it: its id, its kinds, and what it wants to know of each job."""

    worker_id: UUID
    kinds: Sequence[str]
    detailed_kinds: Sequence[str] = ()
    timed: bool = False  # return how long each job was due


class Claim(NamedTuple):
    """Claimed rows in order of priority and position."""

    rows: list[Record]
    limited: bool = False  # a plain claim that found limits or keys: use claim_limited_jobs
    search: bool = False  # a limited claim that got few jobs: use find_skipped_jobs before the next one


class SkippedJobs(NamedTuple):
    """Jobs that a limited claim does not see."""

    ids: list[int]
    continue_after: str  # the last key that was looked at, '' if there are no more


async def claim_jobs(
    session: Session, claimant: Claimant, *, queue: str, positions: Sequence[int], limit: int
) -> Claim:
    """Claim the first jobs of a queue without limits. `positions` has one for each priority."""
    rows = await session.fetch(
        "claim_jobs",
        queue,
        PRIORITIES,
        positions,
        limit,
        claimant.kinds,
        claimant.worker_id,
        claimant.detailed_kinds,
        claimant.timed,
    )
    if rows:
        return Claim(rows, limited=rows[0]["limited"])
    return Claim([], limited=await session.fetchval("needs_limited_claim", queue, PRIORITIES, positions))


async def claim_limited_jobs(
    session: Session,
    claimant: Claimant,
    *,
    queue: str,
    positions: Sequence[int],
    limit: int,
    found: Sequence[int] = (),
) -> Claim:
    """Claim jobs within the limits of the queue and of their keys, from the next in line and from those `found`."""
    rows = await session.fetch(
        "claim_limited_jobs",
        queue,
        positions,
        limit,
        claimant.kinds,
        claimant.worker_id,
        found,
        claimant.detailed_kinds,
        claimant.timed,
    )
    search = not rows or rows[0]["search"]
    rows.sort(key=itemgetter("priority", "pos"))
    large = [row for row in rows if not row["fits"]]
    if large:
        ids, large_positions = [row["id"] for row in large], [row["pos"] for row in large]
        read = await session.fetch(
            "read_claimed_jobs", ids, large_positions, claimant.worker_id, claimant.detailed_kinds, claimant.timed
        )
        complete = {row["id"]: row for row in read}
        rows = [complete.get(row["id"], row) for row in rows if row["fits"] or row["id"] in complete]
    return Claim(rows, search=search)


async def find_skipped_jobs(
    session: Session,
    claimant: Claimant,
    *,
    queue: str,
    positions: Sequence[int],
    limit: int,
    max_keys: int,
    after_key: str,
) -> SkippedJobs:
    """Find jobs with room that a limited claim from these positions does not see."""
    row = await session.fetchrow("find_skipped_jobs", queue, positions, claimant.kinds, max_keys, after_key, limit)
    assert row is not None
    return SkippedJobs(row["ids"], row["continue_after"])


async def take_over_jobs(
    session: Session, claimant: Claimant, *, queues: Sequence[str], staleness: timedelta, limit: int
) -> list[Record]:
    """Move stale jobs of dead workers to this worker, if a leader has watched them for the staleness."""
    key = lock_key(session.schema)
    return await session.fetch("take_over_jobs", queues, claimant.kinds, staleness, limit, claimant.worker_id, key)


async def release_orphans(session: Session, *, worker_id: UUID, known: Set[tuple[int, int]]) -> int:
    """Release jobs that this worker claimed without receiving the answer. Only the worker itself may call this.

    `known` has the ids and leases of the jobs that it knows. It may know an earlier attempt of a job that it claimed
    again.
    """
    held = await session.fetch("list_held_leases", worker_id)
    orphans = [row for row in held if (row["id"], row["lease"]) not in known]
    ids, leases = [row["id"] for row in orphans], [row["lease"] for row in orphans]
    try:
        return len(await release_jobs(session, worker_id, ids, leases))
    except INVALID_DATA:
        return sum([await _release_or_discard(session, worker_id, *each) for each in zip(ids, leases, strict=True)])


async def _release_or_discard(session: Session, worker_id: UUID, job_id: int, lease: int) -> int:
    """Release a job, or fail it if its row breaks a rule of the table of available jobs. Return how many changed."""
    try:
        return len(await release_jobs(session, worker_id, [job_id], [lease]))
    except INVALID_DATA as error:
        text = f"the row has values that awa cannot work with: {describe(error)}"
        return len(await discard_jobs(session, worker_id, [job_id], [lease], [State.FAILED], [text], [None]))


async def queues_with_work(session: Session, *, queues: Sequence[str], kinds: Sequence[str]) -> set[str]:
    """Return the queues that have available jobs of these kinds."""
    return {row["queue"] for row in await session.fetch("has_ready_jobs", queues, kinds)}


def has_arguments(row: Record) -> bool:
    """Return whether a claimed row has its arguments. Otherwise its payload is missing."""
    return row["args"] is not None


def is_readable(row: Record) -> bool:
    """Return whether a claimed row of a kind that asks for details has them. Otherwise Python cannot read them."""
    return row["details"] is not None


def claimed_job(row: Record) -> Job:
    """Return the whole job of a claimed row with details."""
    try:
        details = zip(DETAILS, json.loads(row["details"]), strict=True)
        values: dict[str, Any] = {**row, **dict(details), "args": json.loads(row["args"])}
    except (ValueError, RecursionError):  # a number with too many digits, or values that are nested too deeply
        raise InvalidJob(f"job {row['id']} ({row['kind']}) has values that Python cannot represent") from None
    values |= {name: datetime.fromisoformat(values[name]) for name in ("created_at", "run_at")}
    return job_from_values(values, state=State.RUNNING)


def claimed_metadata(row: Record) -> str | None:
    """Return the metadata of a claimed row with details, as JSON."""
    if row["details"] is None or "{" not in row["details"]:  # most jobs have none
        return None
    metadata = json.loads(row["details"])[DETAILS.index("metadata")]
    return None if metadata is None else json.dumps(metadata)
