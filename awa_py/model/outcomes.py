"""How a handler may end other than by returning: raise one of these, or return it.

Anything else that a handler raises counts as an error: the attempt is used up, and the job is tried again by
its queue's backoff curve until max_attempts.
"""

from awa_py import durations
from awa_py.durations import Duration


class Outcome(Exception):
    """A deliberate end of an attempt; not an error."""


class Retry(Outcome):
    """The attempt failed: try again after `after`, or by the queue's backoff curve. Uses the attempt up."""

    def __init__(self, reason: str = "retry requested", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = None if after is None else durations.parse(after)


class Snooze(Outcome):
    """Not yet: run again after `delay`. The attempt is given back."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(f"snoozed for {delay}")
        self.delay = durations.parse(delay)


class RateLimited(Snooze):
    """The tokens would not be there in time: run again after `retry_after`. The attempt is given back."""

    def __init__(self, name: str, retry_after: Duration) -> None:
        super().__init__(retry_after)
        self.args = (f'rate limit "{name}": come again in {durations.text(self.delay)}',)
        self.name = name
        self.retry_after = self.delay


class Throttled(Outcome):
    """Whoever the handler asked wants to be left alone: the whole queue rests, and then the job runs again.

    The attempt is given back. For how long is the queue's matter: 60 s, 120 s, 240 s … while it goes on, at the most
    half an hour.
    """

    def __init__(self, reason: str = "throttled") -> None:
        super().__init__(reason)
        self.reason = reason


class Cancel(Outcome):
    """The job is not wanted any more: it ends cancelled, and is not tried again."""

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        super().__init__(reason)
        self.reason = reason


class Fail(Outcome):
    """There is no point in trying again: the job ends failed, whatever attempts are left."""

    def __init__(self, reason: str = "failed by its handler") -> None:
        super().__init__(reason)
        self.reason = reason
