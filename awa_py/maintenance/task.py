"""A maintenance task: a name, an interval, and a function that does one bounded batch."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

from awa_py.db.listener import Topic
from awa_py.store.session import Session


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch did."""

    changed: int = 0
    again: bool = False  # it was full: there may be more
    next_s: float | None = None  # when to come back, where that is sooner than the interval
    pause_s: float | None = None  # when to come back, instead of the interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Run by the leader every interval, sooner when a batch says so or a notification of `wakes` comes."""

    name: str
    interval: timedelta
    run: Callable[[Session], Awaitable[Batch]]
    wakes: frozenset[Topic] = field(default_factory=frozenset)
    when_silent: bool = False  # only where no other task ran for an interval


async def run_once(task: Task, session: Session) -> int:
    """Runs a task until a batch is short. How many rows it changed."""
    changed = 0
    while True:
        batch = await task.run(session)
        changed += batch.changed
        if not batch.again:
            return changed
