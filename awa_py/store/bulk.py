"""Change many jobs: select them by common properties, count them, and change them batch by batch.

One statement selects a batch and another one changes it, except jobs that changed in between. Batches are in order of
id, so that each job is selected once: a job that is retried and fails again at once is not retried forever.
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
MAX_COUNTED = 100_000  # by a preview
PREVIEW_TIMEOUT = timedelta(seconds=15)
BATCH_TIMEOUT = timedelta(seconds=60)
MAX_TRIES = 5  # for jobs that change concurrently and still match

WAITING = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.WAITING)
ENDED = (State.COMPLETED, State.FAILED, State.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Jobs by common properties. None matches all jobs.

    A job's age counts from its end, or from its enqueue if it has not ended. `error` is a part of its last error.
    Without states, the operation's default applies.
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
    """A job as it was when it was selected."""

    id: int
    state: State
    lease: int
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A change that can be applied to many jobs."""

    name: str
    past_tense: str  # for messages: "5 jobs cancelled"
    states: tuple[State, ...]  # to which it can be applied
    default_states: tuple[State, ...]  # if the selection has none
    skipped_states: tuple[State, ...] = ()  # to which it cannot be applied, although the user may expect it
    change: Callable[[Session, Sequence[int], SeenJobs], Awaitable[Collection[int]]]

    def states_of(self, selection: Selection) -> tuple[State, ...]:
        """Return the states of the jobs to change. Raise ConfigError if the operation does not apply to one of them."""
        for state in selection.states:
            if state not in self.states:
                applies = ", ".join(self.states)
                raise ConfigError(f"{self.name} does not apply to {state} jobs: it applies to {applies}")
        return tuple(selection.states) or self.default_states


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The jobs that an operation would change at the time `as_of`."""

    as_of: datetime
    counts: dict[tuple[State, str], int] | None  # by state and queue; None: counting timed out
    skipped: int = 0

    @property
    def jobs(self) -> int | None:
        """Return the number of jobs, or None if it is unknown."""
        return None if self.counts is None or not self.exact else sum(self.counts.values())

    @property
    def exact(self) -> bool:
        """Return whether all jobs were counted, not only the first ones."""
        return self.counts is not None and sum(self.counts.values()) <= MAX_COUNTED


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The number of jobs selected, and of those changed.

    The others changed concurrently, or cannot be retried because another job holds their unique key.
    """

    found: int
    changed: int


CANCEL = Operation(
    name="cancel",
    past_tense="cancelled",
    states=(*WAITING, State.RUNNING),
    default_states=(*WAITING, State.RUNNING),
    change=jobs.cancel_trees,
)
DELETE = Operation(
    name="delete",
    past_tense="deleted",
    states=(*WAITING, *ENDED),
    default_states=(*WAITING, *ENDED),
    skipped_states=(State.RUNNING,),
    change=jobs.delete_jobs,
)


def retry(*, write_events: bool = True) -> Operation:
    """Return the operation that makes jobs available now. `write_events`: see `retry_jobs`."""
    return Operation(
        name="retry",
        past_tense="retried",
        states=(State.FAILED, State.RETRYABLE, State.SCHEDULED, State.CANCELLED, State.COMPLETED),
        default_states=(State.FAILED, State.RETRYABLE),
        change=partial(jobs.retry_jobs, write_events=write_events),
    )


def move(*, queue: str | None = None, priority: int | None = None) -> Operation:
    """Return the operation that moves jobs to a queue, a priority, or both."""
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
    """Count the jobs that the operation would change, up to MAX_COUNTED and within PREVIEW_TIMEOUT."""
    as_of = await session.now()
    states = operation.states_of(selection)
    count_to = MAX_COUNTED + 1 if limit is None else min(limit, MAX_COUNTED + 1)
    try:
        async with _bounded(session, PREVIEW_TIMEOUT):
            selected = await _select(session, selection, states, as_of, limit=count_to)
            skipped = () if selection.states else operation.skipped_states
            others = await _select(session, selection, skipped, as_of, limit=MAX_COUNTED) if skipped else []
    except asyncpg.QueryCanceledError:
        return Preview(as_of=as_of, counts=None)
    counts = Counter((job.state, job.queue) for job in selected)
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
    """Change the jobs that matched the selection at `as_of`, one batch per iteration, each in its own transaction.

    Workers never wait for it: jobs that are claimed or finished concurrently are skipped.
    """
    states = operation.states_of(selection)
    after = 0
    changed = 0
    while limit is None or changed < limit:
        batch_limit = size if limit is None else min(size, limit - changed)
        async with _batch_transaction(session):
            selected = await _select(session, selection, states, as_of, above=after, limit=batch_limit)
        if not selected:
            return
        after = selected[-1].id
        batch_changed = await _change(session, operation, selection, states, as_of, selected)
        changed += batch_changed
        yield BatchResult(found=len(selected), changed=batch_changed)


async def _change(
    session: Session,
    operation: Operation,
    selection: Selection,
    states: Sequence[State],
    as_of: datetime,
    selected: Sequence[SelectedJob],
) -> int:
    """Change the jobs. Try those again that changed concurrently and still match. Return the number changed."""
    changed: set[int] = set()
    for _ in repeat(None, MAX_TRIES):
        ids = [job.id for job in selected]
        seen = SeenJobs([job.state for job in selected], [job.lease for job in selected])
        try:
            async with _batch_transaction(session):
                changed.update(await operation.change(session, ids, seen))
        except asyncpg.DeadlockDetectedError:  # with another operator; nothing was changed
            continue
        missed = [job_id for job_id in ids if job_id not in changed]
        if not missed:
            break
        async with _batch_transaction(session):
            left = await _select(session, selection, states, as_of, ids=missed, limit=len(missed))
        if not left or left == selected:  # unchanged: another try would not help
            break
        selected = left
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
    return [SelectedJob(**{**dict(row), "state": State(row["state"])}) for row in rows]


@asynccontextmanager
async def _bounded(session: Session, timeout: timedelta) -> AsyncIterator[None]:
    """Run a transaction with a statement timeout, and with plans made for the actual values."""
    async with session.connection.transaction():
        await session.connection.execute(
            "SELECT pg_catalog.set_config('statement_timeout', $1, true), "
            "pg_catalog.set_config('plan_cache_mode', $2, true)",
            f"{timeout.total_seconds():.0f}s",
            "force_custom_plan",
        )
        yield


@asynccontextmanager
async def _batch_transaction(session: Session) -> AsyncIterator[None]:
    """Run a transaction with the timeout of a batch. Raise AwaError if it is exceeded."""
    try:
        async with _bounded(session, BATCH_TIMEOUT):
            yield
    except asyncpg.QueryCanceledError:
        raise AwaError(
            f"the next batch of jobs took longer than {short_duration(BATCH_TIMEOUT)}: "
            "choose fewer, by their queue or state"
        ) from None
