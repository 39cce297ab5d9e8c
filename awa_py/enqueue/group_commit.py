"""Group commit inside the process: single enqueues that come while another one is being committed go together.

    idle ── enqueue ──► busy: the caller inserts its own job, in its own task; who comes meanwhile waits
      ▲                   │
      ├── nobody waits ───┤
      │                   ▼
      └── nobody waits ── a task inserts, in one statement, all that wait; and again, while somebody does

Each caller returns after the commit of its own job, or with its own error. One that is cancelled leaves the others
alone; its own job is enqueued or not, as when any statement is cancelled.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.schema import Schema
from awa_py.db.types import Pool, Record
from awa_py.enqueue.enqueuer import STATEMENT_BYTES, Enqueuer
from awa_py.errors import InvalidJob
from awa_py.model.job import NewJob
from awa_py.store.enqueue import Enqueued, enqueue_job, enqueue_jobs
from awa_py.store.session import Session
from awa_py.text import describe

logger = logging.getLogger("awa.gather")

MAX_JOBS = 1000  # jobs in a statement
KEEP_S = 0.1  # the pool gets its connection back after once to twice that without an enqueue


@dataclass(frozen=True, slots=True)
class Waiting:
    """A caller and its job."""

    job: NewJob
    enqueued: "asyncio.Future[Enqueued]"


class GroupCommit:
    """Enqueues single jobs, on one connection of the pool that it keeps while they come thick and fast."""

    def __init__(self, pool: Pool, schema: Schema, enqueuer: Enqueuer) -> None:
        self._pool = pool
        self._schema = schema
        self._enqueuer = enqueuer
        self._insert_directly = True
        self._busy = False
        self._waiting: deque[Waiting] = deque()
        self._connection: PoolConnectionProxy[Record] | None = None
        self._session: Session | None = None
        self._was_used = False
        self._closing: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def enqueue(self, job: NewJob) -> Enqueued:
        """Enqueues a job without a unique key: one that waits for somebody's transaction would hold up all others."""
        if self._busy:
            waiting = Waiting(job, asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
            return await waiting.enqueued
        self._busy = True
        try:
            return await enqueue_job(self._kept() or await self._connect(), job, insert_directly=self._insert_directly)
        finally:
            if self._waiting:
                self._start(self._flush())
            else:
                self._rest()

    async def close(self) -> None:
        """Waits for what is under way, and gives the connection back."""
        self._closing = asyncio.Event()
        if not self._busy:
            self._rest()
        await self._closing.wait()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _flush(self) -> None:
        try:
            while self._waiting:
                await self._insert(self._next())
        finally:
            while self._waiting:  # only where this task was cancelled
                self._waiting.popleft().enqueued.cancel()
            self._rest()

    def _next(self) -> list[Waiting]:
        batch: list[Waiting] = []
        size = 0
        while self._waiting and len(batch) < MAX_JOBS and size < STATEMENT_BYTES:
            waiting = self._waiting.popleft()
            if not waiting.enqueued.done():  # its caller is still there
                batch.append(waiting)
                size += len(waiting.job.args_json)
        return batch

    async def _insert(self, batch: list[Waiting]) -> None:
        try:
            session = self._kept() or await self._connect()
            if len(batch) == 1:
                answers = [await enqueue_job(session, batch[0].job, insert_directly=self._insert_directly)]
            else:
                answers = await enqueue_jobs(session, [waiting.job for waiting in batch])
        except asyncio.CancelledError:
            for waiting in batch:
                waiting.enqueued.cancel()
            raise
        except Exception as error:  # whatever it is, it is the callers'
            if isinstance(error, InvalidJob) and len(batch) > 1:
                for waiting in batch:  # one by one: the others are not to suffer from the one that was refused
                    await self._insert([waiting])
                return
            for waiting in batch:
                if not waiting.enqueued.done():
                    waiting.enqueued.set_exception(error)
        else:
            for waiting, enqueued in zip(batch, answers, strict=True):
                if not waiting.enqueued.done():
                    waiting.enqueued.set_result(enqueued)

    def _kept(self) -> Session | None:
        self._was_used = True
        connection = self._connection
        return self._session if connection is not None and _is_usable(connection) else None

    async def _connect(self) -> Session:
        self._let_go()  # of one that broke
        self._connection = await self._pool.acquire()
        session = self._session = Session(self._connection, self._schema)
        self._timer = asyncio.get_running_loop().call_later(KEEP_S, self._look)
        self._insert_directly = await self._enqueuer.can_insert(session)
        return session

    def _look(self) -> None:
        if self._busy or self._was_used:
            self._was_used = False
            self._timer = asyncio.get_running_loop().call_later(KEEP_S, self._look)
        else:
            self._let_go()

    def _rest(self) -> None:
        self._busy = False
        if self._closing is not None:
            self._let_go()
            self._closing.set()

    def _let_go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connection, self._connection, self._session = self._connection, None, None
        if connection is not None:
            self._start(self._give_back(connection))

    async def _give_back(self, connection: "PoolConnectionProxy[Record]") -> None:
        try:
            await self._pool.release(connection)
        except CONNECTION_LOST as error:
            logger.debug("a connection was lost on its way back to the pool: %s", describe(error))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_usable(connection: "PoolConnectionProxy[Record]") -> bool:
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:  # the pool took it back when it broke
        return False
