"""How new jobs get into the tables: alone, a few in a statement, or many by COPY; and what their enqueuer is told."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from copy import deepcopy
from typing import Any, overload

from awa_py.model.job import Job, NewJob, State
from awa_py.store import jobs as job_store
from awa_py.store.copy import CopiedJobs, copy_jobs
from awa_py.store.enqueue import Enqueued, can_insert, enqueue_job, enqueue_jobs
from awa_py.store.session import Session

MANY = 200  # from here on COPY, with its five round trips, is quicker than one statement
STATEMENT_BYTES = 32 * 1024 * 1024  # of arguments: far more than ordinary jobs have, far less than a message may be
NOBODY: Mapping[int, Job] = {}

_decode = json.JSONDecoder().raw_decode  # of JSON that PostgreSQL accepted: a third of the work of json.loads


class Enqueuer:
    """Enqueues the quickest way that a login may: straight into the tables, or by functions that write for it."""

    def __init__(self) -> None:
        self._can_insert: dict[str, bool] = {}  # by login: rights are asked for once

    async def can_insert(self, session: Session) -> bool:
        """Whether the connection's login may write into the tables."""
        login = getattr(session.connection.get_settings(), "session_authorization", "")
        if login not in self._can_insert:
            self._can_insert[login] = await can_insert(session)
        return self._can_insert[login]

    async def enqueue_one(self, session: Session, job: NewJob) -> Job:
        """Enqueues a job in the transaction that the connection is in, or in one of its own."""
        enqueued = await enqueue_job(session, job, insert_directly=await self.can_insert(session))
        return enqueued_job(
            job, enqueued, await job_store.get_jobs(session, [enqueued.id]) if enqueued.can_read_holder else NOBODY
        )

    async def enqueue_many(self, session: Session, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """Enqueues all of them or none, in the transaction that the connection is in, or in one of its own."""
        # One unique job takes all of them the slower way: so that their order is kept whatever they are.
        if len(jobs) < MANY or any(job.unique is not None for job in jobs) or not await self.can_insert(session):
            return await _insert(session, jobs)
        async with _transaction(session):
            copied = await copy_jobs(session, jobs)
        return EnqueuedJobs(len(jobs), lambda n: enqueued_job(jobs[n], _enqueued(jobs[n], copied, n)))


async def _insert(session: Session, jobs: Sequence[NewJob]) -> list[Job]:
    parts = list(chunks(jobs))
    async with _transaction(session) if len(parts) > 1 else nullcontext():
        enqueued = [one for part in parts for one in await enqueue_jobs(session, part)]
    held = [one.id for one in enqueued if one.can_read_holder]
    holders = await job_store.get_jobs(session, held) if held else NOBODY
    return [enqueued_job(job, one, holders) for job, one in zip(jobs, enqueued, strict=True)]


def _transaction(session: Session) -> AbstractAsyncContextManager[Any]:
    # Not a savepoint: what fails ends the caller's transaction, like any other statement of it.
    return nullcontext() if session.connection.is_in_transaction() else session.connection.transaction()


def chunks(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
    """The jobs in statements of a size that PostgreSQL takes."""
    chunk: list[NewJob] = []
    size = 0
    for job in jobs:
        if chunk and size + len(job.args_json) > STATEMENT_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(job)
        size += len(job.args_json)
    if chunk:
        yield chunk


def _enqueued(job: NewJob, copied: CopiedJobs, n: int) -> Enqueued:
    run_at = job.spec.resolve_run_at(copied.now)
    state = State.AVAILABLE if run_at <= copied.now else State.SCHEDULED
    return Enqueued(copied.ids[n], True, state, run_at, copied.now, copied.queues[id(job.spec)])


def enqueued_job(job: NewJob, enqueued: Enqueued, holders: Mapping[int, Job] = NOBODY) -> Job:
    """The job as it was enqueued, or the one that holds its unique key; of that, a producer learns the id only."""
    if not enqueued.is_new and enqueued.id in holders:
        existing = holders[enqueued.id]
        return Job(**{name: getattr(existing, name) for name in Job.__slots__ if name != "is_new"}, is_new=False)
    spec, keyed = job.spec, job.concurrency_key is not None
    return Job(
        id=enqueued.id,
        kind=spec.kind,
        queue=enqueued.queue,
        state=enqueued.state,
        priority=spec.priority,
        attempt=0,
        max_attempts=spec.max_attempts,
        args=_decode(job.args_json.lstrip())[0],
        run_at=enqueued.run_at,
        created_at=enqueued.created_at,
        deadline_at=spec.deadline,
        tags=list(spec.tags),
        metadata=deepcopy(dict(spec.metadata)) if spec.metadata else {},
        unique_key=None if job.unique is None else job.unique.key,
        parent_id=spec.parent_id,
        timeout=spec.timeout,
        concurrency_key=job.concurrency_key,
        concurrency_limit=spec.concurrency_limit if keyed else None,
        ordered=spec.ordered if keyed else None,
        is_new=enqueued.is_new,
    )


class EnqueuedJobs(Sequence[Job]):
    """Jobs like a list of them; each is made when somebody looks at it."""

    def __init__(self, count: int, make: Callable[[int], Job]) -> None:
        self._count = count
        self._make = make
        self._made: dict[int, Job] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Job: ...
    @overload
    def __getitem__(self, index: slice) -> list[Job]: ...
    def __getitem__(self, index: int | slice) -> Job | list[Job]:
        if isinstance(index, slice):
            return [self[n] for n in range(self._count)[index]]
        n = range(self._count)[index]
        if n not in self._made:
            self._made[n] = self._make(n)
        return self._made[n]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (EnqueuedJobs, list)):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __repr__(self) -> str:
        return f"<{self._count} enqueued jobs>"
