"""What the worker does with each type of outcome: how it is written, counted, logged, recorded and traced.

A new outcome is a value in `outcomes`, a statement in `store.finish`, its writer in `outcome_writers`, and an entry in
`OUTCOMES`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from logging import ERROR, INFO, WARNING
from operator import attrgetter
from typing import Any, Generic, TypeVar, cast

from prometheus_client import Counter

from awa_py import durations
from awa_py.model.job import State
from awa_py.observability.metrics import Metrics, Reason
from awa_py.store.finish import Cooldown, RetryDecision
from awa_py.text import ordinal
from awa_py.worker import outcome_writers
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.outcome_writers import OutcomeBatch, OutcomeT
from awa_py.worker.outcomes import (
    Advanced,
    AttemptFailed,
    AttemptSuspended,
    Completed,
    CompletedDurable,
    CompletedInTransaction,
    Discarded,
    LeaseLost,
    QueueThrottled,
    Released,
    Snoozed,
)

ResultT = TypeVar("ResultT")  # what the database returns for a job
NOT_STARTED = "before it started"


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
    is_postponed: Callable[[ResultT], bool] | None = None  # whether the job's row was locked: write it later
    throttles_queue: bool = False  # the worker returns the queue's other jobs that have not started


def _suspension_detail(job: ClaimedJob) -> str:
    return cast(AttemptSuspended, job.outcome).suspension.text


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


def _snooze_detail(job: ClaimedJob) -> str:
    return f"for {durations.text(cast(Snoozed, job.outcome).delay)}"


def _advance_detail(job: ClaimedJob) -> str:
    outcome = cast(Advanced, job.outcome)
    return f"to {outcome.kind}" + (f" in {durations.text(outcome.delay)}" if outcome.delay else "")


def _report_throttle(job: ClaimedJob, outcome: QueueThrottled, cooldown: Cooldown) -> JobReport | None:
    if not cooldown.started:
        return None
    return JobReport(
        level=WARNING,
        topic="throttled",
        message="queue %s is throttled for %.0f s (%d in a row): %s was throttled: %s",
        values=(job.queue, cooldown.cooldown_s, cooldown.throttles, job, outcome.reason),
    )


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


def _release_detail(job: ClaimedJob) -> str:
    return job.stop or NOT_STARTED


# A flush writes its outcomes in this order. A throttled queue comes first: its jobs that are released in the same flush
# must not be claimed again at once.
OUTCOMES: dict[type, OutcomeRule[Any, Any]] = {
    QueueThrottled: OutcomeRule(
        action="throttle its queue",
        write=outcome_writers.throttle,
        counter=attrgetter("throttled"),
        event="throttled",
        report=_report_throttle,
        throttles_queue=True,
    ),
    Completed: OutcomeRule(action="complete the job", write=outcome_writers.complete, counter=attrgetter("completed")),
    CompletedDurable: OutcomeRule(
        action="complete the job",
        write=outcome_writers.complete_durable,
        counter=attrgetter("completed"),
    ),
    CompletedInTransaction: OutcomeRule(
        action="complete the job",
        write=outcome_writers.complete_in_transaction,
        counter=attrgetter("completed"),
    ),
    AttemptSuspended: OutcomeRule(
        action="wait",
        write=outcome_writers.suspend,
        is_postponed=lambda woken: woken is None,
        counter=attrgetter("suspended"),
        event="suspended",
        event_detail=_suspension_detail,
    ),
    AttemptFailed: OutcomeRule(
        action="record its failure",
        write=outcome_writers.fail_attempts,
        report=_report_failure,
        is_span_error=lambda outcome: True,
    ),
    Snoozed: OutcomeRule(
        action="snooze the job",
        write=outcome_writers.snooze,
        counter=attrgetter("snoozed"),
        event="snoozed",
        event_detail=_snooze_detail,
    ),
    Advanced: OutcomeRule(
        action="advance the job to its next state",
        write=outcome_writers.advance,
        counter=attrgetter("advanced"),
        event="advanced",
        event_detail=_advance_detail,
    ),
    Discarded: OutcomeRule(
        action="fail or cancel the job",
        write=outcome_writers.discard,
        report=_report_discard,
        is_span_error=lambda outcome: outcome.state is State.FAILED,
    ),
    Released: OutcomeRule(
        action="release the job",
        write=outcome_writers.release,
        counter=attrgetter("released"),
        event="released",
        event_detail=_release_detail,
    ),
    LeaseLost: OutcomeRule(action="end"),
}
