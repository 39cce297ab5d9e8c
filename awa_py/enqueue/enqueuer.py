"""Write new jobs into the tables: one job, a few in a statement, or many by COPY."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import Any, overload

from awa_py.model.job import Job, NewJob, State
from awa_py.store import jobs as job_store
from awa_py.store.copy import CopiedJobs, copy_jobs
from awa_py.store.enqueue import Enqueued, can_insert, enqueue_job, enqueue_jobs
from awa_py.store.session import Session

COPY_MIN_JOBS = 200  # from here on COPY is faster than one statement, despite its five round trips
MAX_STATEMENT_BYTES = 32 * 1024 * 1024  # of arguments: more than ordinary jobs have, less than a message may be
NO_JOBS: Mapping[int, Job] = {}

_decode = json.JSONDecoder().raw_decode  # for JSON that PostgreSQL accepted: a third of the work of json.loads


class Enqueuer:
    """Enqueues jobs in the fastest way that the login's privileges allow: with INSERT and COPY, or by SQL functions."""

    def __init__(self) -> None:
        self._can_insert: dict[str, bool] = {}  # by login: asked once

    async def can_insert(self, session: Session) -> bool:
        """Return whether the connection's login may write into the tables."""
        login = getattr(session.connection.get_settings(), "session_authorization", "")
        if login not in self._can_insert:
            self._can_insert[login] = await can_insert(session)
        return self._can_insert[login]

    async def enqueue_one(self, session: Session, job: NewJob) -> Job:
        """Enqueue a job in the connection's transaction, or in a new one."""
        enqueued = await enqueue_job(session, job, insert_directly=await self.can_insert(session))
        holders = await job_store.get_jobs(session, [enqueued.id]) if enqueued.can_read_holder else NO_JOBS
        return enqueued_job(job, enqueued, holders)

    async def enqueue_many(self, session: Session, jobs: Sequence[NewJob]) -> Sequence[Job]:
        """Enqueue all of the jobs or none, in the connection's transaction, or in a new one."""
        # One job with a unique key or of an undeclared kind sends all of them the slower way: that keeps their order.
        can_copy = all(job.unique is None and job.spec.given is None for job in jobs)
        if len(jobs) < COPY_MIN_JOBS or not can_copy or not await self.can_insert(session):
            return await _insert(session, jobs)
        async with _transaction(session):
            copied = await copy_jobs(session, jobs)
        return EnqueuedJobs(len(jobs), lambda n: enqueued_job(jobs[n], _copied_job(jobs[n], copied, n)))


async def _insert(session: Session, jobs: Sequence[NewJob]) -> list[Job]:
    statements = list(split_into_statements(jobs))
    async with _transaction(session) if len(statements) > 1 else nullcontext():
        enqueued = [one for statement in statements for one in await enqueue_jobs(session, statement)]
    held = [one.id for one in enqueued if one.can_read_holder]
    holders = await job_store.get_jobs(session, held) if held else NO_JOBS
    return [enqueued_job(job, one, holders) for job, one in zip(jobs, enqueued, strict=True)]


def _transaction(session: Session) -> AbstractAsyncContextManager[Any]:
    # Not a savepoint: an error aborts the caller's transaction, like any other statement.
    return nullcontext() if session.connection.is_in_transaction() else session.connection.transaction()


def split_into_statements(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
    """Split jobs into groups whose arguments fit into one statement."""
    group: list[NewJob] = []
    size = 0
    for job in jobs:
        if group and size + len(job.args_json) > MAX_STATEMENT_BYTES:
            yield group
            group, size = [], 0
        group.append(job)
        size += len(job.args_json)
    if group:
        yield group


def _copied_job(job: NewJob, copied: CopiedJobs, n: int) -> Enqueued:
    run_at = job.spec.resolve_run_at(copied.now)
    state = State.AVAILABLE if run_at <= copied.now else State.SCHEDULED
    return Enqueued(copied.ids[n], True, state, run_at, copied.now, copied.queues[id(job.spec)])


def enqueued_job(job: NewJob, enqueued: Enqueued, holders: Mapping[int, Job] = NO_JOBS) -> Job:
    """Return the enqueued job, or the job that holds its unique key.

    `holders` are the jobs that hold keys, by id. If the login may not read them, only the id of the result is right.
    """
    if not enqueued.is_new and enqueued.id in holders:
        holder = holders[enqueued.id]
        return Job(**{name: getattr(holder, name) for name in Job.__slots__ if name != "is_new"}, is_new=False)
    spec, keyed = job.spec, job.concurrency_key is not None
    made: Job = Job(
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
    return made if enqueued.declared is None else replace(made, **enqueued.declared)


class EnqueuedJobs(Sequence[Job]):
    """A list of enqueued jobs. Each Job is made when it is first read: most callers do not read them."""

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
