"""Outcomes: how an attempt ended, as a value.

`outcome_of` turns what a handler returned or raised into one of these values. The executor stores it on the job and the
completer writes it; `outcome_table` defines how each type is written, counted, logged and traced.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from awa_py.arguments.json_text import dumps
from awa_py.errors import InvalidJob, InvalidStep, ReplayMismatch
from awa_py.model.job import State, interval_text
from awa_py.model.outcomes import Cancel, Fail, Next, Outcome, Retry, Snooze, Throttled
from awa_py.model.registry import Handler
from awa_py.observability.metrics import Reason
from awa_py.store.checkpoints import Suspension
from awa_py.text import cause_of, clean_text, describe_chain


class HandlerTimeout(Exception):
    """The attempt exceeded its timeout or deadline."""


class UnfitArguments(Exception):
    """The job's arguments do not fit the handler's signature."""


class UnreadableJob(Exception):
    """The job has values that Python cannot represent, e.g. a time before the year 1, or its arguments are missing."""


class LeaseExpired(Exception):
    """The lease ran out before the handler started."""


class StopReason(StrEnum):
    """Why a handler is asked to stop."""

    CANCELLED = "cancelled by user"
    LEASE_LOST = "its lease was lost"
    LEASE_EXPIRED = "its lease expired: the database could not be reached"
    SHUTDOWN = "the worker is shutting down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The handler returned. `result` is JSON."""

    result: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedDurable:
    """The handler of a job that has checkpoints returned. `result` is JSON."""

    result: str | None = None


@dataclass(frozen=True, slots=True)
class CompletedInTransaction:
    """A transaction of the handler has completed the job: there is nothing left to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSuspended:
    """The handler waits: call it again when the wait is over."""

    suspension: Suspension


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed:
    """The attempt failed: retry after `delay` or by the queue's backoff, or fail the job if no attempts are left."""

    error: str
    delay: timedelta | None = None
    exception: BaseException | None = None  # to log
    cause: BaseException | None = None  # to keep with the error
    reason: Reason = Reason.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class Snoozed:
    """Run again after `delay`, without counting the attempt."""

    delay: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """Go on with the next state: another kind, with these arguments (JSON). None: the delay that the kind declares."""

    kind: str
    args_json: str
    delay: timedelta | None = None

    @property
    def json(self) -> str:
        values = {"kind": self.kind} | ({} if self.delay is None else {"delay": interval_text(self.delay)})
        return f'{json.dumps(values)[:-1]},"args":{self.args_json}}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueThrottled:
    """Run again once the queue has cooled down, without counting the attempt."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """End the job as failed or cancelled, whatever attempts are left."""

    state: State
    error: str
    cause: BaseException | None = None  # to keep with the error
    reason: Reason = Reason.ERROR


@dataclass(frozen=True, slots=True)
class Released:
    """Return the job to its queue without counting the attempt."""


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Another worker owns the job: write nothing."""


AttemptOutcome = (
    Completed
    | CompletedDurable
    | CompletedInTransaction
    | AttemptSuspended
    | AttemptFailed
    | Snoozed
    | Advanced
    | QueueThrottled
    | Discarded
    | Released
    | LeaseLost
)

COMPLETED = Completed()  # without a result: shared, since most jobs end with it


def outcome_of(
    end: object,
    *,
    kind: str,
    stop: StopReason | None,
    max_result_bytes: int,
    find_handler: Callable[[str], Handler | None],
) -> AttemptOutcome:
    """Return the outcome of a handler that returned or raised `end`. `stop`: why it was asked to stop, if it was."""
    match end:
        case None:
            return COMPLETED
        case Retry():
            error = clean_text(str(end.reason))
            return AttemptFailed(error=error, delay=end.after, cause=cause_of(end), reason=Reason.ASKED)
        case Snooze():
            return Snoozed(delay=end.delay)
        case Next():
            return _advanced(end, find_handler(end.state), max_result_bytes)
        case Throttled():
            return QueueThrottled(reason=clean_text(str(end.reason)))
        case Cancel():
            return Discarded(state=State.CANCELLED, error=clean_text(str(end.reason)), cause=cause_of(end))
        case Fail():
            error = clean_text(str(end.reason))
            return Discarded(state=State.FAILED, error=error, cause=cause_of(end), reason=Reason.ASKED)
        case BaseException() if not isinstance(end, Outcome):
            if stop is not None:
                return stopped_outcome(stop)
            if isinstance(end, LeaseExpired):
                return Released()
            if isinstance(end, UnfitArguments):
                # No retry: the same arguments do not fit the next time. An operator retries the job after a fix.
                return Discarded(state=State.FAILED, error=describe_chain(end), cause=end, reason=Reason.ARGUMENTS)
            if isinstance(end, InvalidStep | ReplayMismatch):  # the next attempt would do the same
                return Discarded(state=State.FAILED, error=describe_chain(end), cause=end, reason=Reason.STEP)
            if isinstance(end, UnreadableJob):
                return Discarded(state=State.FAILED, error=str(end), reason=Reason.INVALID)
            if isinstance(end, asyncio.CancelledError):
                return AttemptFailed(error="CancelledError: the handler cancelled itself")
            reason = Reason.TIMEOUT if isinstance(end, HandlerTimeout) else Reason.ERROR
            return AttemptFailed(error=describe_chain(end), exception=end, cause=end, reason=reason)
    try:
        return Completed(result=dumps(end, what=kind, noun="result", limit=max_result_bytes))
    except InvalidJob as error:
        # No retry: the handler has done its work, and would return the same again.
        return Discarded(state=State.FAILED, error=clean_text(str(error)), reason=Reason.RESULT)


def _advanced(end: Next, handler: Handler | None, max_args_bytes: int) -> AttemptOutcome:
    """Return the outcome of a handler that goes on with the next state. `handler`: of that state, if it is known."""
    try:
        data = end.data if handler is None else handler.signature.to_json(end.data)
        return Advanced(kind=end.state, args_json=dumps(data, what=end.state, limit=max_args_bytes), delay=end.delay)
    except InvalidJob as error:
        # No retry: the state has done its work, and would return the same again.
        return Discarded(state=State.FAILED, error=clean_text(f"Next: {error}"), reason=Reason.STEP)


def stopped_outcome(stop: StopReason) -> AttemptOutcome:
    """Return the outcome of an attempt that ended because it was asked to stop, or never started."""
    match stop:
        case StopReason.CANCELLED:
            return Discarded(state=State.CANCELLED, error=stop)
        case StopReason.LEASE_LOST:
            return LeaseLost()
        case StopReason.LEASE_EXPIRED | StopReason.SHUTDOWN:
            return Released()
