"""End attempts: move jobs from running to another state.

Each function takes the ids and leases of a worker's jobs, and returns those that the worker still held. The lease alone
is no guard: if a crash of the server loses a claim, the next claim gets the same lease, possibly by another worker,
while the handler of the first one still runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from awa_py.model.job import State
from awa_py.store.session import Session

MAX_CHARACTERS = 32 * 1024 * 1024  # of results or error details per statement: its jsonb objects hold 256 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDecision:
    """What follows a failed attempt: a retry in `retry_s` seconds, or none (None)."""

    attempt: int
    max_attempts: int
    retry_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooldown:
    """The cooldown of a throttled job's queue: its length, how many there were in a row, and if this job started it."""

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
    """Complete jobs. Return the ids that the worker held; None: all of them. `results` is None if no job has one."""
    if results is not None and _too_large(results):
        held: set[int] = set()
        for half in _halves(ids, leases, results):
            answer = await complete_jobs(session, worker_id, *half, keep=keep)
            held |= set(half[0]) if answer is None else answer
        return held
    held_ids = await session.fetchval(
        "complete_jobs", array_literal(ids), array_literal(leases), worker_id, results, keep, len(ids)
    )
    return None if held_ids is None else set(held_ids)


async def fail_attempts(
    session: Session,
    worker_id: UUID,
    ids: Sequence[int],
    leases: Sequence[int],
    errors: Sequence[str],
    delays: Sequence[timedelta | None],
    details: Sequence[str | None] | None = None,
) -> dict[int, RetryDecision]:
    """End failed attempts: running → retryable, failed or cancelled. `details`: further fields of each error, JSON."""
    if details is not None and _too_large(details):
        halves = _halves(ids, leases, errors, delays, details)
        first, rest = [await fail_attempts(session, worker_id, *half) for half in halves]
        return first | rest
    rows = await session.fetch("fail_attempts", ids, leases, worker_id, errors, delays, details)
    return {
        row["id"]: RetryDecision(attempt=row["attempt"], max_attempts=row["max_attempts"], retry_s=row["retry_s"])
        for row in rows
    }


async def snooze_jobs(
    session: Session, worker_id: UUID, ids: Sequence[int], leases: Sequence[int], delays: Sequence[timedelta]
) -> set[int]:
    """Snooze jobs: running → scheduled. The attempt does not count."""
    return {row["id"] for row in await session.fetch("snooze_jobs", ids, leases, worker_id, delays)}


async def advance_jobs(
    session: Session, worker_id: UUID, ids: Sequence[int], leases: Sequence[int], next_states: Sequence[str]
) -> list[int]:
    """Advance jobs to their next states: running → available or scheduled. Return the ids that the worker held.

    A next state is a JSON object with kind, args and delay.
    """
    if _too_large(next_states):
        halves = _halves(ids, leases, next_states)
        first, rest = [await advance_jobs(session, worker_id, *half) for half in halves]
        return first + rest
    rows = await session.fetch("advance_jobs", ids, leases, worker_id, f"[{','.join(next_states)}]")
    return [row["id"] for row in rows]


async def throttle_jobs(
    session: Session, worker_id: UUID, ids: Sequence[int], leases: Sequence[int], reasons: Sequence[str]
) -> dict[int, Cooldown]:
    """Throttle the queues of jobs: running → scheduled until the cooldown ends. The attempt does not count."""
    rows = await session.fetch("throttle_jobs", ids, leases, worker_id, reasons)
    return {
        row["id"]: Cooldown(cooldown_s=row["cooldown_s"], throttles=row["throttles"], started=row["started"])
        for row in rows
    }


async def discard_jobs(
    session: Session,
    worker_id: UUID,
    ids: Sequence[int],
    leases: Sequence[int],
    states: Sequence[State],
    errors: Sequence[str],
    details: Sequence[str | None] | None = None,
) -> set[int]:
    """Discard jobs: running → failed or cancelled, whatever attempts are left. `details`: see fail_attempts."""
    if details is not None and _too_large(details):
        halves = _halves(ids, leases, states, errors, details)
        first, rest = [await discard_jobs(session, worker_id, *half) for half in halves]
        return first | rest
    rows = await session.fetch("discard_jobs", ids, leases, worker_id, states, errors, details)
    return {row["id"] for row in rows}


async def release_jobs(session: Session, worker_id: UUID, ids: Sequence[int], leases: Sequence[int]) -> set[int]:
    """Release jobs: running → available. The attempt does not count."""
    return {row["id"] for row in await session.fetch("release_jobs", ids, leases, worker_id)}


def _too_large(texts: Sequence[str | None]) -> bool:
    """Whether a statement with these texts must be split."""
    return len(texts) > 1 and sum(len(text or "") for text in texts) > MAX_CHARACTERS


def _halves(*columns: Any) -> list[list[Any]]:
    """Split each column in the middle."""
    half = len(columns[0]) // 2
    return [[column[:half] for column in columns], [column[half:] for column in columns]]


def array_literal(numbers: Sequence[float]) -> str:
    """Return the numbers as the text of an array. asyncpg encodes them one by one, which costs ten times as much."""
    return f"{{{str(numbers)[1:-1]}}}"
