"""What a handler returned or raised → the outcome of the attempt."""

import asyncio

from awa_py.arguments import dumps
from awa_py.errors import InvalidArguments, InvalidJob
from awa_py.job import State
from awa_py.metrics import Reason
from awa_py.outcome import Cancel, Fail, Outcome, Retry, Snooze
from awa_py.outcome import Throttled as Throttle
from awa_py.wording import chain, clean
from awa_py.worker.flight import Flight, Stop
from awa_py.worker.outcome import AttemptOutcome, Buried, Completed, Dropped, Errored, Released, Snoozed, Throttled

DONE = Completed()


class HandlerTimeout(Exception):
    """The attempt overran its deadline."""


class Judge:
    """Judges attempts by how their handlers ended."""

    def __init__(self, max_result_bytes: int) -> None:
        self._max_result_bytes = max_result_bytes

    def of(self, end: object, flight: Flight) -> AttemptOutcome:
        """By what was returned, or raised."""
        match end:
            case None:
                return DONE
            case Retry():
                return Errored(clean(str(end.reason)), end.after, reason=Reason.ASKED)
            case Snooze():
                return Snoozed(end.delay)
            case Throttle():
                return Throttled(clean(str(end.reason)))
            case Cancel():
                return Buried(State.CANCELLED, clean(str(end.reason)))
            case Fail():
                return Buried(State.FAILED, clean(str(end.reason)), reason=Reason.ASKED)
            case BaseException() if not isinstance(end, Outcome):
                if flight.stop is not None or isinstance(end, asyncio.CancelledError):
                    return stopped(flight)
                return Errored(chain(end), exception=end, reason=_reason(end))
        try:
            return Completed(dumps(end, what=flight.kind, noun="result", limit=self._max_result_bytes))
        except InvalidJob as error:
            # The work is done: doing it again would not change what it returns.
            return Buried(State.FAILED, clean(str(error)), reason=Reason.RESULT)


def _reason(error: BaseException) -> Reason:
    match error:
        case HandlerTimeout():
            return Reason.TIMEOUT
        case InvalidArguments():
            return Reason.ARGUMENTS
        case _:
            return Reason.ERROR


def stopped(flight: Flight) -> AttemptOutcome:
    """The outcome of an attempt that ended because it was told to, or by a cancellation of its own."""
    match flight.stop:
        case Stop.CANCELLED:
            return Buried(State.CANCELLED, Stop.CANCELLED)
        case Stop.LOST:
            return Dropped()
        case Stop.FENCED | Stop.SHUTDOWN:
            return Released()
        case None:
            return Errored("CancelledError: the handler cancelled itself")
