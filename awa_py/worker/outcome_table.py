"""What the worker does with each type of outcome: how it is written, counted, logged, recorded and traced.

A new outcome is a value in `outcomes`, a statement in `store.finish`, and an entry in `OUTCOMES`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from logging import ERROR, INFO, WARNING
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

from prometheus_client import Counter

from awa_py import durations
from awa_py.error_details import error_details
from awa_py.model.job import State
from awa_py.observability.metrics import Metrics, Reason
from awa_py.store import finish
from awa_py.store.finish import Cooldown, RetryDecision
from awa_py.store.session import Session
from awa_py.text import ordinal
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.outcomes import (
    AttemptFailed,
    Completed,
    Discarded,
    LeaseLost,
    QueueThrottled,
    Released,
    Snoozed,
)

OutcomeT = TypeVar("OutcomeT")
ResultT = TypeVar("ResultT")  # what the database returns for a job
NOT_STARTED = "before it started"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """What to log, count and record about one job."""

    level: int
    topic: str  # lines are throttled together if they share the topic, the kind of job and the class of the error
    message: str
    values: tuple[object, ...]
    exception: BaseException | None = None
    counter: Callable[[Metrics], Counter] | None = None
    reason: Reason | None = None  # the counter's second label, if it has one
    event: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRule(Generic[OutcomeT, ResultT]):
    """How one type of outcome is handled."""

    action: str  # what the attempt wanted to do, for a warning that it could not
    # Writes a batch. Returns the jobs that were still ours, with what the database said about each; None if all were.
    # Without a writer nothing is written, and no job counts as ours.
    write: Callable[[OutcomeBatch[OutcomeT]], Awaitable[Mapping[int, ResultT] | None]] | None = None
    counter: Callable[[Metrics], Counter] | None = None  # by queue
    event: str | None = None  # in the job's history
    event_detail: Callable[[ClaimedJob], str | None] | None = None
    report: Callable[[ClaimedJob, OutcomeT, ResultT], JobReport | None] | None = None
    is_span_error: Callable[[OutcomeT], bool] | None = None  # None: the span's status stays unset
    throttles_queue: bool = False  # the worker returns the queue's other jobs that have not started


def job_keys(worker_id: UUID, jobs: Sequence[ClaimedJob]) -> tuple[UUID, list[int], list[int]]:
    """Return the arguments by which a statement finds the jobs and checks that they are still ours."""
    return worker_id, [job.id for job in jobs], [job.lease for job in jobs]


async def _complete(batch: OutcomeBatch[Completed]) -> Mapping[int, None] | None:
    results = [outcome.result for outcome in batch.outcomes]
    ids = await finish.complete_jobs(
        batch.session, *batch.keys, results if any(results) else None, keep=batch.keep_completed
    )
    return None if ids is None else dict.fromkeys(ids)


async def _fail_attempts(batch: OutcomeBatch[AttemptFailed]) -> Mapping[int, RetryDecision]:
    errors = [outcome.error for outcome in batch.outcomes]
    delays = [outcome.delay for outcome in batch.outcomes]
    return await finish.fail_attempts(batch.session, *batch.keys, errors, delays, _details(batch.outcomes))


def _details(outcomes: Sequence[AttemptFailed | Discarded]) -> list[str | None]:
    """Return what the errors keep of their exceptions. The jobs of a batch may share one exception."""
    details = {id(outcome.cause): error_details(outcome.cause) for outcome in outcomes if outcome.cause is not None}
    return [details.get(id(outcome.cause)) for outcome in outcomes]


def _report_failure(job: ClaimedJob, outcome: AttemptFailed, decision: RetryDecision) -> JobReport:
    attempts = (job, ordinal(decision.attempt), decision.max_attempts)
    if decision.retry_s is None:
        return JobReport(
            level=ERROR,
            topic="failed",
            message="%s failed permanently on its %s attempt of %d: %s",
            values=(*attempts, outcome.error),
            exception=outcome.exception,
            counter=attrgetter("failed"),
            reason=outcome.reason,
        )
    return JobReport(
        level=WARNING,
        topic="retried",
        message="%s: the %s attempt of %d failed, retrying in %.3g s: %s",
        values=(*attempts, decision.retry_s, outcome.error),
        exception=outcome.exception,
        counter=attrgetter("retried"),
        reason=outcome.reason,
        event="retried",
    )


async def _snooze(batch: OutcomeBatch[Snoozed]) -> Mapping[int, None]:
    delays = [outcome.delay for outcome in batch.outcomes]
    return dict.fromkeys(await finish.snooze_jobs(batch.session, *batch.keys, delays))


def _snooze_detail(job: ClaimedJob) -> str:
    return f"for {durations.text(cast(Snoozed, job.outcome).delay)}"


async def _throttle(batch: OutcomeBatch[QueueThrottled]) -> Mapping[int, Cooldown]:
    reasons = [outcome.reason for outcome in batch.outcomes]
    return await finish.throttle_jobs(batch.session, *batch.keys, reasons)


def _report_throttle(job: ClaimedJob, outcome: QueueThrottled, cooldown: Cooldown) -> JobReport | None:
    if not cooldown.started:
        return None
    return JobReport(
        level=WARNING,
        topic="throttled",
        message="queue %s is throttled for %.0f s (%d in a row): %s was throttled: %s",
        values=(job.queue, cooldown.cooldown_s, cooldown.throttles, job, outcome.reason),
    )


async def _discard(batch: OutcomeBatch[Discarded]) -> Mapping[int, None]:
    states = [outcome.state for outcome in batch.outcomes]
    errors = [outcome.error for outcome in batch.outcomes]
    details = _details(batch.outcomes)
    return dict.fromkeys(await finish.discard_jobs(batch.session, *batch.keys, states, errors, details))


def _report_discard(job: ClaimedJob, outcome: Discarded, _: None) -> JobReport:
    if outcome.state is State.CANCELLED:
        return JobReport(
            level=INFO,
            topic="cancelled",
            message="%s was cancelled: %s",
            values=(job, outcome.error),
            counter=attrgetter("cancelled"),
        )
    return JobReport(
        level=ERROR,
        topic="failed",
        message="%s failed permanently on its %s attempt: %s",
        values=(job, ordinal(job.attempt), outcome.error),
        counter=attrgetter("failed"),
        reason=outcome.reason,
    )


async def _release(batch: OutcomeBatch[Released]) -> Mapping[int, None]:
    return dict.fromkeys(await finish.release_jobs(batch.session, *batch.keys))


def _release_detail(job: ClaimedJob) -> str:
    return job.stop or NOT_STARTED


# A flush writes its outcomes in this order. A throttled queue comes first: its jobs that are released in the same flush
# must not be claimed again at once.
OUTCOMES: dict[type, OutcomeRule[Any, Any]] = {
    QueueThrottled: OutcomeRule(
        action="throttle its queue",
        write=_throttle,
        counter=attrgetter("throttled"),
        event="throttled",
        report=_report_throttle,
        throttles_queue=True,
    ),
    Completed: OutcomeRule(action="complete the job", write=_complete, counter=attrgetter("completed")),
    AttemptFailed: OutcomeRule(
        action="record its failure",
        write=_fail_attempts,
        report=_report_failure,
        is_span_error=lambda outcome: True,
    ),
    Snoozed: OutcomeRule(
        action="snooze the job",
        write=_snooze,
        counter=attrgetter("snoozed"),
        event="snoozed",
        event_detail=_snooze_detail,
    ),
    Discarded: OutcomeRule(
        action="fail or cancel the job",
        write=_discard,
        report=_report_discard,
        is_span_error=lambda outcome: outcome.state is State.FAILED,
    ),
    Released: OutcomeRule(
        action="release the job",
        write=_release,
        counter=attrgetter("released"),
        event="released",
        event_detail=_release_detail,
    ),
    LeaseLost: OutcomeRule(action="end"),
}
