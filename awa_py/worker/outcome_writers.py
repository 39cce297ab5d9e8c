"""Writes outcomes: one function for each type, which calls the statement of `store` with a batch of jobs.

Each returns the jobs that were still ours, with what the database said about each; or None if all were.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast
from uuid import UUID

from awa_py.error_details import error_details
from awa_py.store import checkpoints, finish
from awa_py.store.finish import Cooldown, RetryDecision
from awa_py.store.session import Session
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.outcomes import (
    Advanced,
    AttemptFailed,
    AttemptSuspended,
    Completed,
    CompletedDurable,
    CompletedInTransaction,
    Discarded,
    QueueThrottled,
    Released,
    Snoozed,
)

OutcomeT = TypeVar("OutcomeT")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeBatch(Generic[OutcomeT]):
    """Jobs that ended with the same type of outcome, to be written by one statement."""

    session: Session
    worker_id: UUID
    jobs: Sequence[ClaimedJob]
    keep_completed: bool

    @property
    def keys(self) -> tuple[UUID, list[int], list[int]]:
        return job_keys(self.worker_id, self.jobs)

    @property
    def outcomes(self) -> list[OutcomeT]:
        return cast(list[OutcomeT], [job.outcome for job in self.jobs])


def job_keys(worker_id: UUID, jobs: Sequence[ClaimedJob]) -> tuple[UUID, list[int], list[int]]:
    """Return the arguments by which a statement finds the jobs and checks that they are still ours."""
    return worker_id, [job.id for job in jobs], [job.lease for job in jobs]


async def complete(batch: OutcomeBatch[Completed]) -> Mapping[int, None] | None:
    results = [outcome.result for outcome in batch.outcomes]
    ids = await finish.complete_jobs(
        batch.session, *batch.keys, results if any(results) else None, keep=batch.keep_completed
    )
    return None if ids is None else dict.fromkeys(ids)


async def complete_durable(batch: OutcomeBatch[CompletedDurable]) -> Mapping[int, None]:
    results = [outcome.result for outcome in batch.outcomes]
    ids = await checkpoints.complete_durable_jobs(batch.session, *batch.keys, results, keep=batch.keep_completed)
    return dict.fromkeys(ids)


async def complete_in_transaction(batch: OutcomeBatch[CompletedInTransaction]) -> None:
    """Write nothing: the handler's own transaction did."""


async def suspend(batch: OutcomeBatch[AttemptSuspended]) -> Mapping[int, bool | None]:
    suspensions = [outcome.suspension for outcome in batch.outcomes]
    return await checkpoints.suspend_jobs(batch.session, *batch.keys, suspensions)


async def fail_attempts(batch: OutcomeBatch[AttemptFailed]) -> Mapping[int, RetryDecision]:
    errors = [outcome.error for outcome in batch.outcomes]
    delays = [outcome.delay for outcome in batch.outcomes]
    return await finish.fail_attempts(batch.session, *batch.keys, errors, delays, _details(batch.outcomes))


async def snooze(batch: OutcomeBatch[Snoozed]) -> Mapping[int, None]:
    delays = [outcome.delay for outcome in batch.outcomes]
    return dict.fromkeys(await finish.snooze_jobs(batch.session, *batch.keys, delays))


async def advance(batch: OutcomeBatch[Advanced]) -> Mapping[int, None]:
    states = [outcome.json for outcome in batch.outcomes]
    return dict.fromkeys(await finish.advance_jobs(batch.session, *batch.keys, states))


async def throttle(batch: OutcomeBatch[QueueThrottled]) -> Mapping[int, Cooldown]:
    reasons = [outcome.reason for outcome in batch.outcomes]
    return await finish.throttle_jobs(batch.session, *batch.keys, reasons)


async def discard(batch: OutcomeBatch[Discarded]) -> Mapping[int, None]:
    states = [outcome.state for outcome in batch.outcomes]
    errors = [outcome.error for outcome in batch.outcomes]
    details = _details(batch.outcomes)
    return dict.fromkeys(await finish.discard_jobs(batch.session, *batch.keys, states, errors, details))


async def release(batch: OutcomeBatch[Released]) -> Mapping[int, None]:
    return dict.fromkeys(await finish.release_jobs(batch.session, *batch.keys))


def _details(outcomes: Sequence[AttemptFailed | Discarded]) -> list[str | None]:
    """Return what the errors keep of their exceptions. The jobs of a batch may share one exception."""
    details = {id(outcome.cause): error_details(outcome.cause) for outcome in outcomes if outcome.cause is not None}
    return [details.get(id(outcome.cause)) for outcome in outcomes]
