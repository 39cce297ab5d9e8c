"""The client: enqueues jobs, reads and changes them, and waits for their results, over a pool of connections.

`App` uses it for the methods that talk to the database, and the command line uses it directly.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import repeat
from typing import Any, Self

import asyncpg

from awa_py import durations
from awa_py.arguments.untyped import dump_untyped
from awa_py.background import wait_for_event
from awa_py.connections import Connection, Pool
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.errors import (
    CONNECTION_LOST,
    CONNECTION_REFUSED,
    cannot_connect,
    not_permitted,
    translate_permission_errors,
)
from awa_py.db.reconnecting import RECONNECT_DELAYS_S
from awa_py.durations import Duration
from awa_py.enqueue.enqueuer import Enqueuer, enqueued_job
from awa_py.enqueue.group_commit import GroupCommit
from awa_py.errors import AwaError, JobCancelled, JobFailed, JobNotFound, ResultTimeout
from awa_py.model.job import UNFINISHED, Job, NewJob, State
from awa_py.model.names import check_signal
from awa_py.observability.explain import explain
from awa_py.observability.history import Event, history
from awa_py.observability.tracing import add_trace_context
from awa_py.rate_limiter import RateLimiter
from awa_py.result_waiter import ResultWaiter
from awa_py.settings import Settings
from awa_py.store import bulk, durable_jobs, job_trees
from awa_py.store import election as election_store
from awa_py.store import events as event_store
from awa_py.store import jobs as job_store
from awa_py.store import rate_limits as rate_store
from awa_py.store import signals as signal_store
from awa_py.store.job_trees import JobTree
from awa_py.store.rate_limits import TokenGrant
from awa_py.store.rewind import Rewind, rewind
from awa_py.store.session import Session
from awa_py.text import describe

logger = logging.getLogger("awa.client")

POOL_SIZE = 10
CLOSE_TIMEOUT_S = 5.0
MAX_EVENTS = 1_000


class Client:
    """An open client: `async with Client.open(database, settings) as client: …`"""

    def __init__(self, database: Database, settings: Settings, own_pool: Pool, user_pool: Pool) -> None:
        self.database = database
        self.settings = settings
        self.user_pool = user_pool  # keeps the search path of the login
        self._pool = own_pool
        self._enqueuer = Enqueuer()
        self._group_commit = GroupCommit(own_pool, database.schema, self._enqueuer)
        self._rate_limiter = RateLimiter(self._take_tokens)
        self._results = ResultWaiter(self.session, settings)
        self._closing = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def open(cls, database: Database, settings: Settings) -> AsyncIterator[Self]:
        own_pool = await database.pool(max_size=POOL_SIZE, is_own=True)
        user_pool = await database.pool(max_size=POOL_SIZE, is_own=False)
        client = cls(database, settings, own_pool, user_pool)
        try:
            yield client
        finally:
            await client._close()

    async def check(self) -> None:
        """Raise DatabaseUnavailable, SchemaError or NotPermitted if the database cannot be used."""
        try:
            async with self._pool.acquire() as own:
                with translate_permission_errors(self.database.schema):
                    await migrations.check(own, self.database.schema)
        except (*CONNECTION_LOST, *CONNECTION_REFUSED, ValueError) as error:
            raise cannot_connect(error) from error

    async def _close(self) -> None:
        self._closing.set()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._rate_limiter.close()
                await self._results.close()
                await self._group_commit.close()
                await self._pool.close()
                await self.user_pool.close()
        except TimeoutError:  # a connection is still in use, e.g. by a handler that was left running
            self._pool.terminate()
            self.user_pool.terminate()

    @asynccontextmanager
    async def session(self, connection: Connection | None = None) -> AsyncIterator[Session]:
        """Use the user's connection if there is one, or else a connection of awa's own pool."""
        with translate_permission_errors(self.database.schema):
            if connection is not None:
                yield self._user_session(connection)
                return
            async with self._pool.acquire() as own:
                yield Session(own, self.database.schema)

    def _user_session(self, connection: Connection) -> Session:
        return Session(connection, self.database.schema, is_own=False)

    async def enqueue(self, job: NewJob, connection: Connection | None = None) -> Job[Any]:
        """Enqueue a job. With `connection`, do so in that connection's transaction."""
        (job,) = add_trace_context((job,))
        try:  # not session(): its overhead is noticeable for a single job
            if connection is not None:
                return await self._enqueuer.enqueue_one(self._user_session(connection), job)
            if job.unique is None and job.spec.given is None:  # an undeclared kind may have a unique key
                return enqueued_job(job, await self._group_commit.enqueue(job))
            async with self._pool.acquire() as own:
                return await self._enqueuer.enqueue_one(Session(own, self.database.schema), job)
        except asyncpg.InsufficientPrivilegeError as error:
            raise not_permitted(error, self.database.schema) from error

    async def enqueue_many(self, jobs: Sequence[NewJob], connection: Connection | None = None) -> Sequence[Job]:
        """Enqueue all of the jobs or none. With `connection`, do so in that connection's transaction."""
        async with self.session(connection) as session:
            return await self._enqueuer.enqueue_many(session, add_trace_context(jobs))

    async def get(self, job_id: int) -> Job:
        """Return the job as it is now, or raise JobNotFound."""
        async with self.session() as session:
            found = await job_store.get_jobs(session, [job_id])
        if job_id not in found:
            raise _job_not_found(job_id)
        return found[job_id]

    async def history(self, job_id: int) -> list[Event]:
        """Return what happened to the job, in order. It is put together from the job's row and its recorded events."""
        async with self.session() as session:
            found = await job_store.get_jobs(session, [job_id])
            events = await event_store.list_events(session, job_id, limit=MAX_EVENTS)
        if job_id not in found:
            raise _job_not_found(job_id)
        return history(found[job_id], events)

    async def children(self, job_id: int) -> list[Job]:
        """Return the jobs that were enqueued with this one as their parent, in order."""
        async with self.session() as session:
            return await job_store.list_children(session, job_id)

    async def result(self, job_id: int, *, timeout: Duration | None = None) -> Any:
        """Wait until the job has ended and return its result. Raise JobFailed or JobCancelled if it has none."""
        limit = None if timeout is None else durations.parse(timeout)
        try:
            async with asyncio.timeout(None if limit is None else limit.total_seconds()):
                final = await self._results.wait(job_id)
        except TimeoutError:
            assert limit is not None
            why = self._results.why(job_id)
            late = f"job {job_id} did not end within {durations.text(limit)}"
            raise ResultTimeout(f"{late}: {why}" if why else late) from None
        if final is None:
            raise _job_not_found(job_id)
        if final.state is State.CANCELLED:
            raise JobCancelled(f"job {job_id} was cancelled: {final.error}")
        if final.state is State.FAILED:
            raise JobFailed(f"job {job_id} failed: {final.error}")
        return None if final.result_json is None else json.loads(final.result_json)

    async def explain(self, job_id: int) -> list[str]:
        """Say in sentences why the job is not running, or how it ended."""
        async with (
            self.session() as session,
            session.connection.transaction(isolation="repeatable_read", readonly=True),  # one snapshot, one now()
        ):
            found = await job_store.get_jobs(session, [job_id])
            circumstances = await job_store.explain_job(session, job_id, staleness=self.settings.heartbeat_staleness)
            leader = await election_store.get_leader(session)
            now = await session.now()
            wait = await durable_jobs.get_wait(session, job_id)
        if circumstances is None:
            raise _job_not_found(job_id)
        return explain(found[job_id], circumstances, wait=wait, has_leader=leader is not None, now=now)

    async def tree(self, job_id: int) -> JobTree:
        """Return the tree of jobs that this one belongs to, from its root."""
        async with self.session() as session:
            tree = await job_trees.read_tree(session, job_id)
        if tree is None:
            raise _job_not_found(job_id)
        return tree

    async def rewind(self, job_id: int, *, to: str) -> Rewind:
        """Forget a step of a durable job and all that followed, and make the job available."""
        async with self.session() as session:
            return await rewind(session, job_id, to=to, write_events=bool(self.settings.events_retention))

    async def signal(
        self,
        job_id: int,
        name: str,
        data: object = None,
        *,
        key: str | None = None,
        connection: Connection | None = None,
    ) -> bool:
        """Send a signal to a job. Return False if one with the same name and key was sent before."""
        check_signal(name, key)
        text = None
        if data is not None:
            text = dump_untyped(data, what=f'signal "{name}"', noun="data", limit=self.settings.max_args_bytes)
        async with self.session(connection) as session:
            return await signal_store.send_signal(session, job_id, name, text, key)

    async def cancel_many(self, job_ids: Sequence[int], *, children: bool = True) -> dict[int, str]:
        """Cancel jobs. Return, for each unfinished one, `cancelled` or, if it runs, `requested` (of its worker)."""
        store_cancel = job_store.cancel_trees if children else job_store.cancel_jobs
        answers: dict[int, str] = {}

        async def cancel(session: Session, ids: Sequence[int]) -> Collection[int]:
            answers.update(await store_cancel(session, ids))
            return answers

        await self._change(job_ids, cancel, UNFINISHED)
        return answers

    async def retry_many(self, job_ids: Sequence[int]) -> set[int]:
        """Make jobs available. Return the ids of those that are."""
        write_events = bool(self.settings.events_retention)
        change = partial(job_store.retry_jobs, write_events=write_events)
        return await self._change(job_ids, change, bulk.retry(write_events=write_events).states, target=State.AVAILABLE)

    async def delete_many(self, job_ids: Sequence[int]) -> set[int]:
        """Delete jobs that do not run. Return the ids of those that were deleted."""
        return await self._change(job_ids, job_store.delete_jobs, bulk.DELETE.states)

    async def move_many(self, job_ids: Sequence[int], *, queue: str | None, priority: int | None) -> set[int]:
        """Change queue and priority of jobs that do not run; None keeps the value. Return the ids of those changed."""
        change = partial(job_store.move_jobs, queue=queue, priority=priority)
        return await self._change(job_ids, change, bulk.WAITING)

    async def _change(
        self,
        job_ids: Sequence[int],
        change: Callable[[Session, Sequence[int]], Awaitable[Collection[int]]],
        states: Collection[State],
        *,
        target: State | None = None,
    ) -> set[int]:
        """Apply `change` to the jobs that are in one of the states. Return the ids of those changed.

        A job that is in the `target` state counts as changed. A statement misses jobs that move from one table to
        another at the same moment: those are tried again.
        """
        done: set[int] = set()
        ids = list(job_ids)
        before: dict[int, tuple[State, int]] = {}
        async with self.session() as session:
            for _ in repeat(None, bulk.MAX_TRIES):
                done.update(await change(session, ids))
                missed = [job_id for job_id in ids if job_id not in done]
                if not missed:
                    break
                found = (await job_store.get_jobs(session, missed)).values()
                done.update(job.id for job in found if job.state is target)
                left = {job.id: (job.state, job.lease) for job in found if job.state in states}
                # A job that is as it was before did not move: another reason prevents the change.
                ids = [job_id for job_id, now in left.items() if now != before.get(job_id)]
                before = left
                if not ids:
                    break
        return done

    async def rate_limit(self, name: str, tokens: int = 1, max_wait: Duration | None = None) -> None:
        """Wait for tokens of a rate limit. This is `ctx.rate_limit` for code that has no Context."""
        await self._rate_limiter.take(name, tokens, None if max_wait is None else durations.parse(max_wait))

    async def _take_tokens(self, name: str, tokens: int, callers: int, max_wait_s: float) -> TokenGrant:
        """Take tokens, and try again while the database cannot be reached, until the client is closed."""
        failures = 0
        while True:
            try:
                async with self.session() as session:
                    return await rate_store.take_tokens(
                        session, name, tokens=tokens, callers=callers, max_wait_s=max_wait_s
                    )
            except CONNECTION_LOST as error:
                level = logging.DEBUG if failures else logging.WARNING
                logger.log(level, 'rate limit "%s": cannot reach the database, retrying: %s', name, describe(error))
            if await wait_for_event(self._closing, RECONNECT_DELAYS_S[min(failures, len(RECONNECT_DELAYS_S) - 1)]):
                raise not_open()
            failures += 1


def not_open() -> AwaError:
    return AwaError("the app is not open: use it inside `async with app:`")


def _job_not_found(job_id: int) -> JobNotFound:
    return JobNotFound(f"there is no job {job_id}: the id is wrong, or the job was deleted after its retention")
