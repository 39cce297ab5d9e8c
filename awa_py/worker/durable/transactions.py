"""Steps and completions inside a transaction of the user: its writes and what awa records commit together."""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg

from awa_py.connections import Connection, Pool
from awa_py.db.database import Database
from awa_py.db.errors import CONNECTION_LOST
from awa_py.errors import InvalidStep
from awa_py.model.durable import Step
from awa_py.store import checkpoints
from awa_py.store.checkpoints import NewCheckpoint
from awa_py.store.session import Session
from awa_py.text import describe
from awa_py.worker.durable.memory import Memory
from awa_py.worker.durable.recorder import WasCompleted
from awa_py.worker.durable.spawner import NotHeld

logger = logging.getLogger("awa.worker")

POOL_SIZE = 10
CLOSE_TIMEOUT_S = 5.0
CONFLICTS = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
MAX_CONFLICTS = 10
CONFLICT_PAUSE_S = 0.05

in_transaction: ContextVar[bool] = ContextVar("awa_in_transaction", default=False)


class CommitUnknown(Exception):
    """The connection was lost before the answer to a COMMIT."""


class Transactions:
    """Runs transactions on a pool that keeps the settings of the login. The pool opens with the first one."""

    def __init__(self, database: Database, worker_id: UUID) -> None:
        self._database = database
        self._worker_id = worker_id
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()

    @property
    def schema(self) -> str:
        return self._database.schema.name

    async def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._pool.close()
            except (TimeoutError, *CONNECTION_LOST):
                self._pool.terminate()

    async def run_step(self, memory: Memory, new: NewCheckpoint, step: Step[Any], dump: Callable[[object], str]) -> str:
        """Call the step's function in a transaction that also records its result. Return the result as JSON.

        The function is called again after a conflict with another transaction. If the answer to the COMMIT is lost, the
        record tells if it was committed.
        """
        if not inspect.iscoroutinefunction(step.function):
            raise InvalidStep(f'"{step.name}": transact takes an asynchronous function, whose connection is asyncpg\'s')
        conflicts = 0
        while True:
            try:
                with _no_nesting(step.name):
                    return await self._try_step(new, step, dump)
            except CONFLICTS as error:
                conflicts += 1
                if conflicts == MAX_CONFLICTS:
                    raise
                logger.debug('step "%s" of job %d runs again: %s', step.name, memory.holder.job_id, describe(error))
                await asyncio.sleep(CONFLICT_PAUSE_S * conflicts)
            except NotHeld:
                memory.lose_lease()
                raise asyncio.CancelledError from None
            except (CommitUnknown, asyncpg.UniqueViolationError) as error:
                if not isinstance(error, CommitUnknown) and not self._is_record(error):
                    raise
                recorded = (await memory.request(memory.holder)).get(step.name)
                if recorded is not None:
                    return recorded.result or "null"

    def _is_record(self, error: asyncpg.UniqueViolationError) -> bool:
        """Return whether a record of the step was there: an earlier COMMIT without an answer has been done since."""
        return (error.schema_name, error.table_name) == (self.schema, "checkpoints")

    async def _try_step(self, new: NewCheckpoint, step: Step[Any], dump: Callable[[object], str]) -> str:
        began_at = time.monotonic()
        async with self._transaction(f'step "{step.name}"') as connection:
            text = dump(await step.function(connection, *step.args, **step.kwargs))
            record = replace(new, took_s=time.monotonic() - began_at, result=text)
            session = Session(connection, self._database.schema, is_own=False)
            if not await checkpoints.record_transaction(session, self._worker_id, record):
                raise NotHeld
        return text

    @asynccontextmanager
    async def complete(
        self, memory: Memory, result: Callable[[], str | None], on_completed: Callable[[], None]
    ) -> AsyncIterator[Connection]:
        """Open a transaction that completes the job at its end, with what `result` returns then."""
        with _no_nesting("transaction"):
            try:
                async with self._transaction("transaction()") as connection:
                    yield connection
                    session = Session(connection, self._database.schema, is_own=False)
                    holder = memory.holder
                    if not await checkpoints.complete_in_transaction(session, self._worker_id, holder, result()):
                        raise NotHeld
            except NotHeld:
                memory.lose_lease()
                raise asyncio.CancelledError from None
            except CommitUnknown as error:
                if not await memory.request(WasCompleted(memory.holder)):
                    raise ConnectionError(f"the transaction was not committed: {describe(error)}") from error
            on_completed()

    @asynccontextmanager
    async def _transaction(self, what: str) -> AsyncIterator[Connection]:
        """Open a transaction of the user. Raise CommitUnknown if its COMMIT had no answer."""
        pool = await self._get_pool()
        async with pool.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            try:
                yield connection
            except asyncpg.InFailedSQLTransactionError as error:
                await _roll_back(transaction)
                raise InvalidStep(
                    f"{what}: a statement of the transaction failed, and the error was ignored"
                ) from error
            except BaseException:
                await _roll_back(transaction)
                raise
            try:
                await transaction.commit()
            except CONNECTION_LOST as error:
                raise CommitUnknown(describe(error)) from error

    async def _get_pool(self) -> Pool:
        async with self._opening:
            if self._pool is None:
                self._pool = await self._database.pool(max_size=POOL_SIZE, is_own=False)
            return self._pool


@contextmanager
def _no_nesting(name: str) -> Iterator[None]:
    if in_transaction.get():
        raise InvalidStep(f'"{name}": a transaction of this job is open: transactions cannot be nested')
    token = in_transaction.set(True)
    try:
        yield
    finally:
        in_transaction.reset(token)


async def _roll_back(transaction: Any) -> None:
    with suppress(*CONNECTION_LOST, asyncpg.InterfaceError):
        await transaction.rollback()
