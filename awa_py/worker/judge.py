"""What a handler returned or raised → the outcome of the attempt."""

import asyncio

from awa_py.arguments.signature import dumps
from awa_py.errors import InvalidArguments, InvalidJob
from awa_py.model.job import State
from awa_py.model.outcomes import Cancel, Fail, Outcome, Retry, Snooze
from awa_py.model.outcomes import Throttled as Throttle
from awa_py.observability.metrics import Reason
from awa_py.text import clean_text, describe_chain
from awa_py.worker.claimed_job import ClaimedJob, StopReason
from awa_py.worker.outcomes import (
    AttemptFailed,
    AttemptOutcome,
    Completed,
    Discarded,
    LeaseLost,
    Released,
    Snoozed,
    Throttled,
)

DONE = Completed()


class HandlerTimeout(Exception):
    """The attempt overran its deadline."""


class Judge:
    """Judges attempts by how their handlers ended."""

    def __init__(self, max_result_bytes: int) -> None:
        self._max_result_bytes = max_result_bytes

    def of(self, end: object, flight: ClaimedJob) -> AttemptOutcome:
        """By what was returned, or raised."""
        match end:
            case None:
                return DONE
            case Retry():
                return AttemptFailed(clean_text(str(end.reason)), end.after, reason=Reason.ASKED)
            case Snooze():
                return Snoozed(end.delay)
            case Throttle():
                return Throttled(clean_text(str(end.reason)))
            case Cancel():
                return Discarded(State.CANCELLED, clean_text(str(end.reason)))
            case Fail():
                return Discarded(State.FAILED, clean_text(str(end.reason)), reason=Reason.ASKED)
            case BaseException() if not isinstance(end, Outcome):
                if flight.stop is not None or isinstance(end, asyncio.CancelledError):
                    return stopped(flight)
                return AttemptFailed(describe_chain(end), exception=end, reason=_reason(end))
        try:
            return Completed(dumps(end, what=flight.kind, noun="result", limit=self._max_result_bytes))
        except InvalidJob as error:
            # The work is done: doing it again would not change what it returns.
            return Discarded(State.FAILED, clean_text(str(error)), reason=Reason.RESULT)


def _reason(error: BaseException) -> Reason:
    match error:
        case HandlerTimeout():
            return Reason.TIMEOUT
        case InvalidArguments():
            return Reason.ARGUMENTS
        case _:
            return Reason.ERROR


def stopped(flight: ClaimedJob) -> AttemptOutcome:
    """The outcome of an attempt that ended because it was told to, or by a cancellation of its own."""
    match flight.stop:
        case StopReason.CANCELLED:
            return Discarded(State.CANCELLED, StopReason.CANCELLED)
        case StopReason.LEASE_LOST:
            return LeaseLost()
        case StopReason.LEASE_EXPIRED | StopReason.SHUTDOWN:
            return Released()
        case None:
            return AttemptFailed("CancelledError: the handler cancelled itself")
