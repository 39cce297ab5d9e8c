"""Many jobs at once: chosen by what they have in common, counted first, and then changed batch by batch.

A batch is found by one statement, and changed by another, which leaves alone what has changed in between. Each job is
come by once, in the order of ids: one that is retried, and fails again at once, is not retried for ever.
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import repeat

import asyncpg

from awa_py.errors import AwaError, ConfigError
from awa_py.model.job import State
from awa_py.store import jobs
from awa_py.store.jobs import SeenJobs
from awa_py.store.session import Session
from awa_py.text import short_duration

BATCH_SIZE = 500
MAX_COUNTED = 100_000  # a preview counts up to here
PREVIEW_TIMEOUT = timedelta(seconds=15)
BATCH_TIMEOUT = timedelta(seconds=60)
MAX_TRIES = 5  # for jobs that change at the very moment, and still fit

WAITING = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.WAITING)
ENDED = (State.COMPLETED, State.FAILED, State.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Jobs by what they have in common; what is None does not matter.

    How old a job is, counts from its end, or, while it has not ended, from its enqueueing. `error` is a part of its
    last error. Without states, it is the operation that says which.
    """

    states: Collection[State] = ()
    queue: str | None = None
    kind: str | None = None
    tag: str | None = None
    error: str | None = None
    older_than: timedelta | None = None
    newer_than: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedJob:
    """A job as it was when a selection came by."""

    id: int
    state: State
    lease: int
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What can be done to many jobs."""

    name: str
    past_tense: str  # as the jobs are then
    states: tuple[State, ...]  # that it applies to
    default_states: tuple[State, ...]  # where the selection names none
    skipped_states: tuple[State, ...] = ()  # that somebody may have meant, and it does not apply to
    change: Callable[[Session, Sequence[int], SeenJobs], Awaitable[Collection[int]]]

    def states_of(self, selection: Selection) -> tuple[State, ...]:
        """The states of the jobs that it is about."""
        for state in selection.states:
            if state not in self.states:
                applies = ", ".join(self.states)
                raise ConfigError(f"{self.name} does not apply to {state} jobs: it applies to {applies}")
        return tuple(selection.states) or self.default_states


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What an operation would be about, were it carried out as of this moment."""

    as_of: datetime
    counts: dict[tuple[State, str], int] | None  # by state and queue; None: they could not be counted in time
    skipped: int = 0

    @property
    def jobs(self) -> int | None:
        """How many, where they could be counted."""
        return None if self.counts is None or not self.exact else sum(self.counts.values())

    @property
    def exact(self) -> bool:
        """Whether the counts are of all; else of the first ones."""
        return self.counts is not None and sum(self.counts.values()) <= MAX_COUNTED


@dataclass(frozen=True, slots=True)
class BatchResult:
    """How many jobs were found, and how many of them changed.

    The others did so themselves in between, or cannot be retried while another job holds their unique key.
    """

    found: int
    changed: int


CANCEL = Operation(
    name="cancel",
    past_tense="cancelled",
    states=(*WAITING, State.RUNNING),
    default_states=(*WAITING, State.RUNNING),
    change=jobs.cancel_jobs,
)
DELETE = Operation(
    name="delete",
    past_tense="deleted",
    states=(*WAITING, *ENDED),
    default_states=(*WAITING, *ENDED),
    skipped_states=(State.RUNNING,),
    change=jobs.delete_jobs,
)


def retry(*, note: bool = True) -> Operation:
    """Available at once; `note`: what their rows forget with it is noted beside them."""
    return Operation(
        name="retry",
        past_tense="retried",
        states=(State.FAILED, State.RETRYABLE, State.SCHEDULED, State.CANCELLED, State.COMPLETED),
        default_states=(State.FAILED, State.RETRYABLE),
        change=partial(jobs.retry_jobs, note=note),
    )


def move(*, queue: str | None = None, priority: int | None = None) -> Operation:
    """Into another queue, or to another priority, or both."""
    if queue is None and priority is None:
        raise ConfigError("nothing to move to: name a queue, a priority, or both")
    return Operation(
        name="move",
        past_tense="moved",
        states=WAITING,
        default_states=WAITING,
        skipped_states=(State.RUNNING,),
        change=partial(jobs.move_jobs, queue=queue, priority=priority),
    )


async def preview(session: Session, operation: Operation, selection: Selection, *, limit: int | None = None) -> Preview:
    """Counts what the operation would be about. It does not take long: what is too much is not counted to the end."""
    as_of = await session.now()
    states = operation.states_of(selection)
    most = MAX_COUNTED + 1 if limit is None else min(limit, MAX_COUNTED + 1)
    try:
        async with _bounded(session, PREVIEW_TIMEOUT):
            found = await _select(session, selection, states, as_of, limit=most)
            skipped = () if selection.states else operation.skipped_states
            others = await _select(session, selection, skipped, as_of, limit=MAX_COUNTED) if skipped else []
    except asyncpg.QueryCanceledError:
        return Preview(as_of=as_of, counts=None)
    counts = Counter((job.state, job.queue) for job in found)
    return Preview(as_of=as_of, counts=dict(sorted(counts.items())), skipped=len(others))


async def run_operation(
    session: Session,
    operation: Operation,
    selection: Selection,
    *,
    as_of: datetime,
    limit: int | None = None,
    size: int = BATCH_SIZE,
) -> AsyncIterator[BatchResult]:
    """Changes the jobs that the selection held at that moment, a batch at each turn; in between nothing is half done.

    No worker waits for it: what is being claimed or finished meanwhile goes its way.
    """
    states = operation.states_of(selection)
    after = 0
    changed = 0
    while limit is None or changed < limit:
        most = size if limit is None else min(size, limit - changed)
        async with _explained(session):
            found = await _select(session, selection, states, as_of, above=after, limit=most)
        if not found:
            return
        after = found[-1].id
        batch = BatchResult(len(found), await _change(session, operation, selection, states, as_of, found))
        changed += batch.changed
        yield batch


async def _change(
    session: Session,
    operation: Operation,
    selection: Selection,
    states: Sequence[State],
    as_of: datetime,
    found: Sequence[SelectedJob],
) -> int:
    """How many were changed. One that has changed its state meanwhile, and still fits, is come by once more."""
    changed: set[int] = set()
    for _ in repeat(None, MAX_TRIES):
        ids = [job.id for job in found]
        seen = SeenJobs([job.state for job in found], [job.lease for job in found])
        try:
            async with _explained(session):
                changed.update(await operation.change(session, ids, seen))
        except asyncpg.DeadlockDetectedError:  # with another operator; nothing was done
            continue
        missed = [job_id for job_id in ids if job_id not in changed]
        if not missed:
            break
        async with _explained(session):
            left = await _select(session, selection, states, as_of, ids=missed, limit=len(missed))
        if not left or left == found:  # as they were: it is not the moment that keeps them
            break
        found = left
    return len(changed)


async def _select(
    session: Session,
    selection: Selection,
    states: Sequence[State],
    as_of: datetime,
    *,
    above: int = 0,
    ids: Sequence[int] | None = None,
    limit: int,
) -> list[SelectedJob]:
    rows = await session.fetch(
        "select_jobs",
        states,
        selection.queue,
        selection.kind,
        selection.tag,
        selection.error,
        as_of,
        selection.older_than,
        selection.newer_than,
        above,
        ids,
        limit,
    )
    return [SelectedJob(id=row[0], state=State(row[1]), lease=row[2], queue=row[3]) for row in rows]


@asynccontextmanager
async def _bounded(session: Session, patience: timedelta) -> AsyncIterator[None]:
    """A transaction whose statements take no longer than that, each planned for its very values."""
    async with session.connection.transaction():
        await session.connection.execute(
            "SELECT set_config('statement_timeout', $1, true), set_config('plan_cache_mode', $2, true)",
            f"{patience.total_seconds():.0f}s",
            "force_custom_plan",
        )
        yield


@asynccontextmanager
async def _explained(session: Session) -> AsyncIterator[None]:
    try:
        async with _bounded(session, BATCH_TIMEOUT):
            yield
    except asyncpg.QueryCanceledError:
        raise AwaError(
            f"the next batch of jobs took longer than {short_duration(BATCH_TIMEOUT)}: "
            "choose fewer, by their queue or state"
        ) from None
