"""What became of an attempt: a value that the executor returns and the completer writes."""

from dataclasses import dataclass
from datetime import timedelta

from awa_py.model.job import State
from awa_py.observability.metrics import Reason


@dataclass(frozen=True, slots=True)
class Completed:
    """The handler returned; its result as JSON."""

    result: str | None = None


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """The attempt failed: again by the queue's backoff curve or after `delay`, or never, if attempts are used up."""

    error: str
    delay: timedelta | None = None
    exception: BaseException | None = None
    reason: Reason = Reason.ERROR


@dataclass(frozen=True, slots=True)
class Snoozed:
    """Later, and the attempt does not count."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class Throttled:
    """When the whole queue has rested, and the attempt does not count."""

    reason: str


@dataclass(frozen=True, slots=True)
class Discarded:
    """Never again: failed or cancelled."""

    state: State
    error: str
    exception: BaseException | None = None
    reason: Reason = Reason.ERROR


@dataclass(frozen=True, slots=True)
class Released:
    """Somebody else shall do it, and the attempt does not count."""


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """It is no longer ours: there is nothing to write."""


AttemptOutcome = Completed | AttemptFailed | Snoozed | Throttled | Discarded | Released | LeaseLost
