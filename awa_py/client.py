"""Enqueueing jobs and asking after them, from Python."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from awa_py import duration
from awa_py.config import Settings
from awa_py.db import Connection, Database, Pool
from awa_py.duration import Duration
from awa_py.errors import AwaError, JobCancelled, JobFailed, JobNotFound, ResultTimeout
from awa_py.explain import explain
from awa_py.job import Job, NewJob, State
from awa_py.store import election as election_store
from awa_py.store import enqueue as enqueue_store
from awa_py.store import jobs as job_store
from awa_py.store.session import Session

RESULT_POLLS_S = (0.02, 0.05, 0.1, 0.2, 0.5)
POOL_SIZE = 10
CLOSE_TIMEOUT_S = 5.0
STATEMENT_BYTES = 32 * 1024 * 1024  # of arguments: far more than 100,000 ordinary jobs, far less than a message may be


class Client:
    """A door to the queue: `async with Client(database) as client: …`"""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.settings = settings
        self._pool: Pool | None = None
        self._opened = 0  # `async with` may be nested: the outermost one opens and closes

    async def __aenter__(self) -> Self:
        if self._opened == 0:
            self._pool = await self.database.pool(max_size=POOL_SIZE)
        self._opened += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened -= 1
        if self._opened:
            return
        pool, self._pool = self._pool, None
        assert pool is not None
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await pool.close()
        except TimeoutError:  # somebody keeps a connection: a handler that was left behind, say
            pool.terminate()

    def session(self, connection: Connection) -> Session:
        """The store's view of a connection."""
        return Session(connection, self.database.schema)

    @property
    def pool(self) -> Pool:
        """The open pool."""
        if self._pool is None:
            raise AwaError("the app is not open: use it inside `async with app:`")
        return self._pool

    async def enqueue_new(self, jobs: Sequence[NewJob], connection: Connection | None = None) -> list[Job]:
        """Enqueues all of them or none; inside the caller's transaction, where its connection is given."""
        chunks = list(_chunks(jobs))
        if connection is not None:
            return await self._insert(self.session(connection), chunks)
        async with self.pool.acquire() as own:
            if len(chunks) == 1:  # one statement is a transaction of its own
                return await self._insert(self.session(own), chunks)
            async with own.transaction():
                return await self._insert(self.session(own), chunks)

    async def _insert(self, session: Session, chunks: Sequence[Sequence[NewJob]]) -> list[Job]:
        jobs = [job for chunk in chunks for job in chunk]
        enqueued = [answer for chunk in chunks for answer in await enqueue_store.enqueue_jobs(session, chunk)]
        if all(answer.is_new for answer in enqueued):
            return [_answer(job, answer, {}) for job, answer in zip(jobs, enqueued, strict=True)]
        held = await job_store.get_jobs(session, [answer.id for answer in enqueued if not answer.is_new])
        return [_answer(job, answer, held) for job, answer in zip(jobs, enqueued, strict=True)]

    async def get(self, job_id: int) -> Job:
        """The job as it is now."""
        async with self.pool.acquire() as connection:
            found = await job_store.get_jobs(self.session(connection), [job_id])
        if job_id not in found:
            raise _no_job(job_id)
        return found[job_id]

    async def children(self, job_id: int) -> list[Job]:
        """The jobs that were enqueued with this one as their parent, in their order."""
        async with self.pool.acquire() as connection:
            return await job_store.list_children(self.session(connection), job_id)

    async def result(self, job_id: int, *, timeout: Duration | None = None) -> Any:
        """What the job returned, once it has ended. Raises JobFailed or JobCancelled where it ended otherwise."""
        limit = None if timeout is None else duration.parse(timeout)
        try:
            async with asyncio.timeout(None if limit is None else limit.total_seconds()):
                return await self._wait_for_result(job_id)
        except TimeoutError:
            assert limit is not None
            raise ResultTimeout(f"job {job_id} did not end within {duration.text(limit)}") from None

    async def _wait_for_result(self, job_id: int) -> Any:
        polls = 0
        while True:
            async with self.pool.acquire() as connection:
                final = await job_store.get_final_state(self.session(connection), job_id)
            if final is None:
                raise _no_job(job_id)
            if final.state is State.COMPLETED:
                return final.result
            if final.state is State.CANCELLED:
                raise JobCancelled(f"job {job_id} was cancelled: {final.error}")
            if final.state is State.FAILED:
                raise JobFailed(f"job {job_id} failed: {final.error}")
            await asyncio.sleep(RESULT_POLLS_S[min(polls, len(RESULT_POLLS_S) - 1)])
            polls += 1

    async def cancel(self, job_id: int) -> bool:
        """Cancels the job; a running one through its worker, within about a second. False where it has ended."""
        return bool(await self.cancel_many([job_id]))

    async def cancel_many(self, job_ids: Sequence[int]) -> dict[int, str]:
        """For each unfinished job: `cancelled`, or `requested` of the worker that runs it."""
        answers: dict[int, str] = {}
        missing = list(job_ids)
        async with self.pool.acquire() as connection:
            session = self.session(connection)
            # A job that changes tables at this very moment is missed by the statement, and found by the next.
            while missing:
                answers |= await job_store.cancel_jobs(session, missing)
                found = await job_store.get_jobs(session, [job_id for job_id in missing if job_id not in answers])
                missing = [job_id for job_id, job in found.items() if not job.state.final]
        return answers

    async def explain(self, job_id: int) -> list[str]:
        """Why the job is not running, or what became of it, in sentences."""
        async with (
            self.pool.acquire() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),  # one moment, one now()
        ):
            session = self.session(connection)
            found = await job_store.get_jobs(session, [job_id])
            circumstances = await job_store.explain_job(session, job_id, staleness=self.settings.heartbeat_staleness)
            leader = await election_store.get_leader(session)
            now = await session.now()
        if circumstances is None:
            raise _no_job(job_id)
        return explain(found[job_id], circumstances, led=leader is not None, now=now)

    async def retry(self, job_id: int) -> bool:
        """Makes a job available: an ended one again, its counters fresh; a waiting one now. False while it runs."""
        async with self.pool.acquire() as connection:
            return bool(await job_store.retry_jobs(self.session(connection), [job_id]))

    async def delete(self, job_id: int) -> bool:
        """Deletes a job. False while it runs."""
        async with self.pool.acquire() as connection:
            return bool(await job_store.delete_jobs(self.session(connection), [job_id]))


def _no_job(job_id: int) -> JobNotFound:
    return JobNotFound(f"there is no job {job_id}: it never was, or its retention has passed")


def _chunks(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
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


def _answer(job: NewJob, answer: enqueue_store.Enqueued, held: Mapping[int, Job]) -> Job:
    if not answer.is_new and answer.id in held:
        existing = held[answer.id]
        return Job(**{name: getattr(existing, name) for name in Job.__slots__ if name != "is_new"}, is_new=False)
    return Job(
        id=answer.id,
        kind=job.kind,
        queue=job.queue,
        state=answer.state,
        priority=job.priority,
        attempt=0,
        max_attempts=job.max_attempts,
        args=json.loads(job.args_json),
        run_at=answer.run_at,
        created_at=answer.created_at,
        deadline_at=job.deadline,
        tags=list(job.tags),
        metadata=dict(job.metadata or {}),
        unique_key=None if job.unique is None else job.unique.key,
        parent_id=job.parent_id,
        timeout=job.timeout,
        is_new=answer.is_new,
    )
