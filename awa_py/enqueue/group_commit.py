"""Group commit: jobs that are enqueued one by one while another enqueue is running are written together.

    idle ── enqueue ──► busy: the caller writes its own job, in its own task; later callers wait
      ▲                   │
      ├── none waiting ───┤
      │                   ▼
      └── none waiting ── a task writes all waiting jobs in one statement, until none is waiting

Each caller returns after the commit of its own job, or with its own error. A caller that is cancelled does not affect
the others; its own job may be enqueued or not, as when any statement is cancelled.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from awa_py.connections import Pool, Record
from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.schema import Schema
from awa_py.enqueue.enqueuer import MAX_STATEMENT_BYTES, Enqueuer
from awa_py.errors import InvalidJob
from awa_py.model.job import NewJob
from awa_py.store.enqueue import Enqueued, enqueue_job, enqueue_jobs
from awa_py.store.session import Session
from awa_py.text import describe

logger = logging.getLogger("awa.enqueue")

MAX_JOBS = 1000  # in a statement
IDLE_CHECK_S = 0.1  # the connection goes back to the pool after 0.1 to 0.2 s without an enqueue


@dataclass(frozen=True, slots=True)
class WaitingCaller:
    job: NewJob
    enqueued: "asyncio.Future[Enqueued]"


class GroupCommit:
    """Enqueues single jobs on one connection of the pool, which it keeps while they are frequent."""

    def __init__(self, pool: Pool, schema: Schema, enqueuer: Enqueuer) -> None:
        self._pool = pool
        self._schema = schema
        self._enqueuer = enqueuer
        self._insert_directly = True
        self._busy = False
        self._waiting: deque[WaitingCaller] = deque()
        self._connection: PoolConnectionProxy[Record] | None = None
        self._session: Session | None = None
        self._was_used = False  # since the last idle check
        self._closing: asyncio.Event | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def enqueue(self, job: NewJob) -> Enqueued:
        """Enqueue a job without a unique key: waiting for another transaction's key would delay all other callers."""
        if self._busy:
            caller = WaitingCaller(job, asyncio.get_running_loop().create_future())
            self._waiting.append(caller)
            return await caller.enqueued
        self._busy = True
        try:
            return await enqueue_job(
                self._get_session() or await self._connect(), job, insert_directly=self._insert_directly
            )
        finally:
            if self._waiting:
                self._start_task(self._write_waiting())
            else:
                self._become_idle()

    async def close(self) -> None:
        """Wait for running enqueues, and return the connection to the pool."""
        self._closing = asyncio.Event()
        if not self._busy:
            self._become_idle()
        await self._closing.wait()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _write_waiting(self) -> None:
        try:
            while self._waiting:
                await self._write(self._next_batch())
        finally:
            while self._waiting:  # only if this task was cancelled
                self._waiting.popleft().enqueued.cancel()
            self._become_idle()

    def _next_batch(self) -> list[WaitingCaller]:
        batch: list[WaitingCaller] = []
        size = 0
        while self._waiting and len(batch) < MAX_JOBS and size < MAX_STATEMENT_BYTES:
            caller = self._waiting.popleft()
            if not caller.enqueued.done():  # it was not cancelled
                batch.append(caller)
                size += len(caller.job.args_json)
        return batch

    async def _write(self, batch: list[WaitingCaller]) -> None:
        try:
            session = self._get_session() or await self._connect()
            if len(batch) == 1:
                results = [await enqueue_job(session, batch[0].job, insert_directly=self._insert_directly)]
            else:
                results = await enqueue_jobs(session, [caller.job for caller in batch])
        except asyncio.CancelledError:
            for caller in batch:
                caller.enqueued.cancel()
            raise
        except Exception as error:  # all errors go to the callers
            if isinstance(error, InvalidJob) and len(batch) > 1:
                for caller in batch:  # one by one: only the caller of the invalid job gets the error
                    await self._write([caller])
                return
            for caller in batch:
                if not caller.enqueued.done():
                    caller.enqueued.set_exception(error)
        else:
            for caller, enqueued in zip(batch, results, strict=True):
                if not caller.enqueued.done():
                    caller.enqueued.set_result(enqueued)

    def _get_session(self) -> Session | None:
        self._was_used = True
        connection = self._connection
        return self._session if connection is not None and _is_usable(connection) else None

    async def _connect(self) -> Session:
        self._release()  # the previous connection, which broke
        self._connection = await self._pool.acquire()
        session = self._session = Session(self._connection, self._schema)
        self._idle_timer = asyncio.get_running_loop().call_later(IDLE_CHECK_S, self._check_idle)
        self._insert_directly = await self._enqueuer.can_insert(session)
        return session

    def _check_idle(self) -> None:
        if self._busy or self._was_used:
            self._was_used = False
            self._idle_timer = asyncio.get_running_loop().call_later(IDLE_CHECK_S, self._check_idle)
        else:
            self._release()

    def _become_idle(self) -> None:
        self._busy = False
        if self._closing is not None:
            self._release()
            self._closing.set()

    def _release(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        connection, self._connection, self._session = self._connection, None, None
        if connection is not None:
            self._start_task(self._return_to_pool(connection))

    async def _return_to_pool(self, connection: "PoolConnectionProxy[Record]") -> None:
        try:
            await self._pool.release(connection)
        except CONNECTION_LOST as error:
            logger.debug("lost a connection while returning it to the pool: %s", describe(error))

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_usable(connection: "PoolConnectionProxy[Record]") -> bool:
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:  # the connection broke, and the pool took it back
        return False
