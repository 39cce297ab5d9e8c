"""Outcomes that a handler may raise or return instead of a result.

Any other exception is an error: the attempt counts, and the job is retried with its queue's backoff until
max_attempts.
"""

from collections.abc import Mapping
from typing import Any

from awa_py import durations
from awa_py.durations import Duration
from awa_py.errors import InvalidDuration, InvalidJob, InvalidStep
from awa_py.model.names import check_kind


class Outcome(Exception):
    """A deliberate end of an attempt, not an error."""


class Retry(Outcome):
    """Retry the job after `after`, or with the queue's backoff. The attempt counts."""

    def __init__(self, reason: str = "retry requested", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = None if after is None else durations.parse(after)


class Snooze(Outcome):
    """Run the job again after `delay`. The attempt does not count."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(f"snoozed for {delay}")
        self.delay = durations.parse(delay)


class Next(Outcome):
    """Go on with the next state of a state machine, now or after `delay`.

    The job gets another kind, `state`, and `data` as its arguments, in the statement that ends this attempt. Its
    attempts start anew. `Order.ship.next(5)` makes a Next whose data is checked by type checkers.
    """

    def __init__(self, state: str, data: Mapping[str, Any] | None = None, *, delay: Duration | None = None) -> None:
        try:
            self.state = check_kind(state)
            self.delay = None if delay is None else durations.parse(delay)
        except (InvalidJob, InvalidDuration) as error:
            raise InvalidStep(f"Next: {error}") from None
        if data is not None and not isinstance(data, Mapping):
            given = type(data).__name__
            raise InvalidStep(f'Next("{state}"): data is a mapping of arguments by name, not {given}')
        super().__init__(f"next state: {state}")
        self.data = dict(data or {})


class RateLimited(Snooze):
    """The tokens are not available in time. Run the job again after `retry_after`; the attempt does not count."""

    def __init__(self, name: str, retry_after: Duration) -> None:
        super().__init__(retry_after)
        self.args = (f'rate limit "{name}": retry in {durations.text(self.delay)}',)
        self.name = name
        self.retry_after = self.delay


class Throttled(Outcome):
    """A service asked to be called less often: pause the whole queue, then run the job again.

    The attempt does not count. The pause is 60 s, and doubles while this goes on: 120 s, 240 s, … up to 30 minutes.
    """

    def __init__(self, reason: str = "throttled") -> None:
        super().__init__(reason)
        self.reason = reason


class Cancel(Outcome):
    """End the job as cancelled. It is not retried."""

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        super().__init__(reason)
        self.reason = reason


class Fail(Outcome):
    """End the job as failed, even if attempts are left."""

    def __init__(self, reason: str = "failed by its handler") -> None:
        super().__init__(reason)
        self.reason = reason
