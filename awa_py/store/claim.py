"""available → running."""

import json
from collections.abc import Sequence
from datetime import timedelta
from operator import itemgetter
from typing import NamedTuple
from uuid import UUID

from awa_py.db.columns import DETAILS
from awa_py.db.types import Record
from awa_py.model.job import Job, State
from awa_py.store.finish import release_jobs
from awa_py.store.rows import job_from
from awa_py.store.session import Session

PRIORITIES = (1, 2, 3, 4)
METADATA = DETAILS.index("metadata")
WAITED_S = 9  # where a claimed row says how long it was due


class Note(NamedTuple):
    """What a claim within limits says beside its jobs."""

    short: bool = False  # it took few of those that it was asked for
    waited_s: float = 0.0  # it took less than half of them, and waited so long for its turn
    search: bool = False  # it is worth searching for others before the next claim
    passed_by: Sequence[int] = ()  # it left these jobs, and the next claim does not see them


async def claim_jobs(
    session: Session,
    *,
    queue: str,
    above: Sequence[int],
    limit: int,
    kinds: Sequence[str],
    shown_kinds: Sequence[str],
    worker_id: UUID,
    timed: bool = False,
) -> tuple[list[Record], bool]:
    """The head of the queue, in the order of priority and of becoming ready. `above` has a position a priority.
    And whether the queue has limits, or jobs with a key above: `claim_limited_jobs` is for those.

    Jobs of the `shown_kinds` come with their `details`, which `claimed_job` needs; where the claim is `timed`,
    all come with the seconds that they were due.
    """
    rows = await session.fetch("claim_jobs", queue, PRIORITIES, above, limit, kinds, worker_id, shown_kinds, timed)
    return split_off_note(rows)


async def claim_limited_jobs(
    session: Session,
    *,
    queue: str,
    above: Sequence[int],
    slack: int,
    limit: int,
    kinds: Sequence[str],
    shown_kinds: Sequence[str],
    worker_id: UUID,
    timed: bool = False,
    found: Sequence[int] = (),
) -> tuple[list[Record], Note]:
    """The same within the limits of the queue and of the jobs' keys, of those above and those that were `found`.

    The next claim is expected to begin `slack` below the last that this one takes.
    """
    rows = await session.fetch(
        "claim_limited_jobs", queue, above, limit, kinds, worker_id, found, shown_kinds, timed, slack
    )
    note = Note()
    if rows and rows[-1]["id"] is None:
        note = Note(**json.loads(rows.pop()["args"]))
    rows.sort(key=itemgetter("priority", "pos"))
    large = [row for row in rows if row["args"] is None]
    if large:
        ids, positions = [row["id"] for row in large], [row["pos"] for row in large]
        read = await session.fetch("read_claimed_jobs", ids, positions, worker_id, shown_kinds, timed)
        whole = {row["id"]: row for row in read}
        rows = [row for row in (whole.get(row["id"], row) for row in rows) if row["args"] is not None]
    return rows, note


async def find_overlooked_jobs(
    session: Session,
    *,
    queue: str,
    above: Sequence[int],
    kinds: Sequence[str],
    limit: int,
    most_keys: int,
    after_key: str,
) -> tuple[list[int], str]:
    """Jobs that a claim of so many does not meet that begins above, of so many keys at the most; and the key after
    which to go on, '' for the first."""
    row = await session.fetchrow("find_overlooked_jobs", queue, above, kinds, most_keys, after_key, limit)
    assert row is not None
    return row["ids"], row["go_on_after"]


def split_off_note(rows: list[Record]) -> tuple[list[Record], bool]:
    """The jobs, and whether a row without id came after them."""
    return (rows[:-1], True) if rows and rows[-1][0] is None else (rows, False)


def claimed_job(row: Record, queue: str) -> Job:
    """The whole job, from a claimed row with its details."""
    values = dict(zip(DETAILS, row["details"], strict=True))
    values |= {name: row[name] for name in ("id", "kind", "priority", "attempt", "args", "lease")}
    return job_from({**values, "queue": queue, "state": State.RUNNING})


def claimed_metadata(row: Record) -> str | None:
    """The metadata as JSON, from a claimed row with its details."""
    metadata: str | None = row["details"][METADATA]
    return metadata


async def take_over_jobs(
    session: Session,
    *,
    queues: Sequence[str],
    kinds: Sequence[str],
    staleness: timedelta,
    limit: int,
    worker_id: UUID,
) -> list[Record]:
    """Stale jobs of dead workers, straight to this one."""
    return await session.fetch("take_over_jobs", queues, kinds, staleness, limit, worker_id)


async def release_orphans(session: Session, *, worker_id: UUID, known: Sequence[int]) -> int:
    """Puts back what this worker claimed without hearing of it. Only the worker itself may ask."""
    orphans = await session.fetch("list_orphans", worker_id, known)
    ids, leases = [row["id"] for row in orphans], [row["lease"] for row in orphans]
    return len(await release_jobs(session, worker_id, ids, leases))


async def queues_with_work(session: Session, *, queues: Sequence[str], kinds: Sequence[str]) -> set[str]:
    """Those of the queues in which something waits for one of the kinds."""
    return {row[0] for row in await session.fetch("has_ready_jobs", queues, kinds)}
