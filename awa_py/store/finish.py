"""running → everywhere else. Every function takes (id, lease) pairs of a worker, and answers for those it still held.

The lease alone would not do: where a crash of the server takes back a claim, the next one gives the same number, to
another worker maybe, while the first one's handler goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from awa_py.model.job import State
from awa_py.store.session import Session

RESULTS_CHARACTERS = 32 * 1024 * 1024  # in one statement: what it looks them up in holds 256 MiB


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """What became of a failed attempt: tried again in `retry_s` seconds, or (None) failed for good."""

    attempt: int
    max_attempts: int
    retry_s: float | None


@dataclass(frozen=True, slots=True)
class Cooldown:
    """For how long a throttled job's queue is to rest, how often in a row it was to, and whether this job began it."""

    cooldown_s: float
    throttles: int
    started: bool


async def complete_jobs(
    session: Session,
    worker_id: UUID,
    ids: Sequence[int],
    leases: Sequence[int],
    results: Sequence[str | None] | None,
    *,
    keep: bool,
) -> set[int] | None:
    """running → completed. The ids that were ours, or None where all were. `results` may be None where all are."""
    if results is not None and len(ids) > 1 and sum(len(result or "") for result in results) > RESULTS_CHARACTERS:
        half = len(ids) // 2
        first = await complete_jobs(session, worker_id, ids[:half], leases[:half], results[:half], keep=keep)
        rest = await complete_jobs(session, worker_id, ids[half:], leases[half:], results[half:], keep=keep)
        return set(ids[:half] if first is None else first) | set(ids[half:] if rest is None else rest)
    held = await session.fetchval("complete_jobs", array(ids), array(leases), worker_id, results, keep, len(ids))
    return None if held is None else set(held)


async def fail_attempts(
    session: Session,
    worker_id: UUID,
    ids: Sequence[int],
    leases: Sequence[int],
    errors: Sequence[str],
    delays: Sequence[timedelta | None],
) -> dict[int, RetryDecision]:
    """running → retryable or failed."""
    rows = await session.fetch("fail_attempts", ids, leases, worker_id, errors, delays)
    return {row[0]: RetryDecision(row[1], row[2], row[3]) for row in rows}


async def snooze_jobs(
    session: Session, worker_id: UUID, ids: Sequence[int], leases: Sequence[int], delays: Sequence[timedelta]
) -> set[int]:
    """running → scheduled, the attempt given back."""
    return {row[0] for row in await session.fetch("snooze_jobs", ids, leases, worker_id, delays)}


async def throttle_jobs(
    session: Session, worker_id: UUID, ids: Sequence[int], leases: Sequence[int], reasons: Sequence[str]
) -> dict[int, Cooldown]:
    """running → scheduled, the attempt given back; and their queues rest."""
    rows = await session.fetch("throttle_jobs", ids, leases, worker_id, reasons)
    return {row[0]: Cooldown(row[1], row[2], row[3]) for row in rows}


async def discard_jobs(
    session: Session,
    worker_id: UUID,
    ids: Sequence[int],
    leases: Sequence[int],
    states: Sequence[State],
    errors: Sequence[str],
) -> set[int]:
    """running → failed or cancelled."""
    return {row[0] for row in await session.fetch("discard_jobs", ids, leases, worker_id, states, errors)}


async def release_jobs(session: Session, worker_id: UUID, ids: Sequence[int], leases: Sequence[int]) -> set[int]:
    """running → available, the attempt given back."""
    return {row[0] for row in await session.fetch("release_jobs", ids, leases, worker_id)}


def array(numbers: Sequence[float]) -> str:
    """PostgreSQL's text of an array: asyncpg would look at each number on its own, which costs ten times as much."""
    return f"{{{str(numbers)[1:-1]}}}"
