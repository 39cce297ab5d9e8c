"""Enqueueing jobs and asking after them, from Python."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import repeat
from types import TracebackType
from typing import Any, Self

import asyncpg

from awa_py import durations
from awa_py.background import wait_for_event
from awa_py.db.database import Database
from awa_py.db.errors import CONNECTION_LOST, not_permitted, translate_permission_errors
from awa_py.db.reconnecting import RECONNECT_DELAYS_S
from awa_py.db.types import Connection, Pool
from awa_py.durations import Duration
from awa_py.enqueue.enqueuer import Enqueuer, answer
from awa_py.enqueue.group_commit import GroupCommit
from awa_py.errors import AwaError, JobCancelled, JobFailed, JobNotFound, ResultTimeout
from awa_py.model.job import UNFINISHED, Job, NewJob, State
from awa_py.observability.explain import explain
from awa_py.observability.history import Event, history
from awa_py.observability.tracing import add_trace_context
from awa_py.rate_limiter import RateLimiter
from awa_py.settings import Settings
from awa_py.store import bulk
from awa_py.store import election as election_store
from awa_py.store import events as event_store
from awa_py.store import jobs as job_store
from awa_py.store import rate_limits as rate_store
from awa_py.store.rate_limits import TokenGrant
from awa_py.store.session import Session
from awa_py.text import describe

logger = logging.getLogger("awa.client")

RESULT_POLLS_S = (0.02, 0.05, 0.1, 0.2, 0.5)
POOL_SIZE = 10
CLOSE_TIMEOUT_S = 5.0
EVENTS_SHOWN = 1_000


class Client:
    """A door to the queue: `async with Client(database) as client: …`"""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.settings = settings
        self._pool: Pool | None = None
        self._group_commit: GroupCommit | None = None
        self._limiter: RateLimiter | None = None
        self._closing = asyncio.Event()
        self._enqueuer = Enqueuer()
        self._opened = 0  # `async with` may be nested: the outermost one opens and closes

    async def __aenter__(self) -> Self:
        if self._opened == 0:
            self._pool = await self.database.pool(max_size=POOL_SIZE)
            self._group_commit = GroupCommit(self._pool, self.database.schema, self._enqueuer)
            self._limiter = RateLimiter(self._take_tokens)
            self._closing = asyncio.Event()
        self._opened += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened -= 1
        if self._opened:
            return
        pool, self._pool = self._pool, None
        group_commit, self._group_commit = self._group_commit, None
        limiter, self._limiter = self._limiter, None
        assert pool is not None
        assert group_commit is not None
        assert limiter is not None
        self._closing.set()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await limiter.close()
                await group_commit.close()
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
            raise _not_open()
        return self._pool

    @asynccontextmanager
    async def _session(self, connection: Connection | None = None) -> AsyncIterator[Session]:
        """The caller's connection, where it is given, else one of the pool."""
        with translate_permission_errors(self.database.schema):
            if connection is not None:
                yield self.session(connection)
                return
            async with self.pool.acquire() as own:
                yield self.session(own)

    async def enqueue_new(self, job: NewJob, connection: Connection | None = None) -> Job:
        """Enqueues a job; inside the caller's transaction, where its connection is given."""
        (job,) = add_trace_context((job,))
        try:  # not _session(), whose price one job would pay alone
            if connection is not None:
                return await self._enqueuer.enqueue_one(self.session(connection), job)
            if job.unique is None and self._group_commit is not None:
                return answer(job, await self._group_commit.enqueue(job))
            async with self.pool.acquire() as own:
                return await self._enqueuer.enqueue_one(self.session(own), job)
        except asyncpg.InsufficientPrivilegeError as error:
            raise not_permitted(error, self.database.schema) from error

    async def enqueue_all(self, jobs: Sequence[NewJob], connection: Connection | None = None) -> Sequence[Job]:
        """Enqueues all of them or none; inside the caller's transaction, where its connection is given."""
        async with self._session(connection) as session:
            return await self._enqueuer.enqueue_many(session, add_trace_context(jobs))

    async def get(self, job_id: int) -> Job:
        """The job as it is now."""
        async with self._session() as session:
            found = await job_store.get_jobs(session, [job_id])
        if job_id not in found:
            raise _no_job(job_id)
        return found[job_id]

    async def history(self, job_id: int) -> list[Event]:
        """What happened to the job, in its order: from its row, and from what was noted beside it."""
        async with self._session() as session:
            found = await job_store.get_jobs(session, [job_id])
            noted = await event_store.list_events(session, job_id, limit=EVENTS_SHOWN)
        if job_id not in found:
            raise _no_job(job_id)
        return history(found[job_id], noted)

    async def children(self, job_id: int) -> list[Job]:
        """The jobs that were enqueued with this one as their parent, in their order."""
        async with self._session() as session:
            return await job_store.list_children(session, job_id)

    async def result(self, job_id: int, *, timeout: Duration | None = None) -> Any:
        """What the job returned, once it has ended. Raises JobFailed or JobCancelled where it ended otherwise."""
        limit = None if timeout is None else durations.parse(timeout)
        try:
            async with asyncio.timeout(None if limit is None else limit.total_seconds()):
                return await self._wait_for_result(job_id)
        except TimeoutError:
            assert limit is not None
            raise ResultTimeout(f"job {job_id} did not end within {durations.text(limit)}") from None

    async def _wait_for_result(self, job_id: int) -> Any:
        polls = 0
        while True:
            async with self._session() as session:
                final = await job_store.get_final_state(session, job_id)
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

        async def cancel(session: Session, ids: Sequence[int]) -> Collection[int]:
            answers.update(await job_store.cancel_jobs(session, ids))
            return answers

        await self._change(job_ids, cancel, UNFINISHED)
        return answers

    async def explain(self, job_id: int) -> list[str]:
        """Why the job is not running, or what became of it, in sentences."""
        async with (
            self._session() as session,
            session.connection.transaction(isolation="repeatable_read", readonly=True),  # one moment, one now()
        ):
            found = await job_store.get_jobs(session, [job_id])
            circumstances = await job_store.explain_job(session, job_id, staleness=self.settings.heartbeat_staleness)
            leader = await election_store.get_leader(session)
            now = await session.now()
        if circumstances is None:
            raise _no_job(job_id)
        return explain(found[job_id], circumstances, has_leader=leader is not None, now=now)

    async def retry(self, job_id: int) -> bool:
        """Makes a job available: an ended one again, its counters fresh; a waiting one now. False while it runs, or
        while another job holds its unique key."""
        return bool(await self.retry_many([job_id]))

    async def retry_many(self, job_ids: Sequence[int]) -> set[int]:
        """Those that are available now."""
        note = bool(self.settings.events_retention)
        change = partial(job_store.retry_jobs, note=note)
        return await self._change(job_ids, change, bulk.retry(note=note).states, wanted=State.AVAILABLE)

    async def delete(self, job_id: int) -> bool:
        """Deletes a job. False while it runs."""
        return bool(await self.delete_many([job_id]))

    async def delete_many(self, job_ids: Sequence[int]) -> set[int]:
        """Those that were deleted: the others run, or were not there."""
        return await self._change(job_ids, job_store.delete_jobs, bulk.DELETE.states)

    async def move_many(self, job_ids: Sequence[int], *, queue: str | None, priority: int | None) -> set[int]:
        """The waiting jobs that are now in this queue, with this priority; None leaves it as it is."""
        change = partial(job_store.move_jobs, queue=queue, priority=priority)
        return await self._change(job_ids, change, bulk.WAITING)

    async def _change(
        self,
        job_ids: Sequence[int],
        change: Callable[[Session, Sequence[int]], Awaitable[Collection[int]]],
        states: Collection[State],
        *,
        wanted: State | None = None,
    ) -> set[int]:
        """Changes the jobs that are in one of the states: which they were. One that came into the `wanted` state by
        itself is as good.

        A job that changes tables at this very moment is missed by the statement, and found by the next.
        """
        done: set[int] = set()
        ids = list(job_ids)
        before: dict[int, tuple[State, int]] = {}
        async with self._session() as session:
            for _ in repeat(None, bulk.MAX_TRIES):
                done.update(await change(session, ids))
                missed = [job_id for job_id in ids if job_id not in done]
                if not missed:
                    break
                found = (await job_store.get_jobs(session, missed)).values()
                done.update(job.id for job in found if job.state is wanted)
                left = {job.id: (job.state, job.lease) for job in found if job.state in states}
                # One that is as it was is not kept by the moment.
                ids = [job_id for job_id, now in left.items() if now != before.get(job_id)]
                before = left
                if not ids:
                    break
        return done

    async def rate_limit(self, name: str, tokens: int = 1, max_wait: Duration | None = None) -> None:
        """Waits for tokens of a rate limit, as `ctx.rate_limit` does; for code that has no Context."""
        if self._limiter is None:
            raise _not_open()
        await self._limiter.take(name, tokens, None if max_wait is None else durations.parse(max_wait))

    async def _take_tokens(self, name: str, tokens: int, callers: int, patience_s: float) -> TokenGrant:
        """Asks for as long as it takes to reach the database, or until the app is closed."""
        closing = self._closing
        failures = 0
        while True:
            try:
                async with self._session() as session:
                    return await rate_store.take_tokens(
                        session, name, tokens=tokens, callers=callers, max_wait_s=patience_s
                    )
            except CONNECTION_LOST as error:
                level = logging.DEBUG if failures else logging.WARNING
                logger.log(level, 'rate limit "%s": cannot reach the database, asking again: %s', name, describe(error))
            if await wait_for_event(closing, RECONNECT_DELAYS_S[min(failures, len(RECONNECT_DELAYS_S) - 1)]):
                raise _not_open()
            failures += 1


def _not_open() -> AwaError:
    return AwaError("the app is not open: use it inside `async with app:`")


def _no_job(job_id: int) -> JobNotFound:
    return JobNotFound(f"there is no job {job_id}: it never was, or its retention has passed")
