"""Writes and reads checkpoints for all jobs of a worker: requests that arrive during a flush share the next one."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from logging import ERROR, WARNING
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import asyncpg

from awa_py.background import cancel_and_wait
from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.db.schema import Schema
from awa_py.errors import InvalidStep
from awa_py.observability.logs import LogThrottle
from awa_py.observability.metrics import Metrics
from awa_py.store import checkpoints
from awa_py.store.checkpoints import (
    AwaitedChildren,
    DueTime,
    EndedChild,
    Holder,
    NewCheckpoint,
    SignalAnswer,
    SignalRequest,
)
from awa_py.store.session import Session
from awa_py.text import clean_text, describe
from awa_py.worker.durable.spawner import NotHeld, Spawner, SpawnRequest

logger = logging.getLogger("awa.worker")

RETRY_S = 1.0
# A value cannot be stored, or two requests of a flush have the same name.
UNSTORABLE = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.CardinalityViolationError,
    asyncpg.ProgramLimitExceededError,
)
A = TypeVar("A")


class ForgetRequest(NamedTuple):
    """A checkpoint to remove."""

    holder: Holder
    name: str


class ChildrenRequest(NamedTuple):
    """Children to look at: have they ended?"""

    holder: Holder
    awaited: AwaitedChildren


class WasCompleted(NamedTuple):
    """Whether an attempt has completed its job."""

    holder: Holder


class NowRequest(NamedTuple):
    """The database's time."""


Request: TypeAlias = (
    Holder | NewCheckpoint | SignalRequest | ForgetRequest | SpawnRequest | ChildrenRequest | WasCompleted | NowRequest
)


class PendingRequest(Generic[A]):
    """A request that waits for its flush, or for the answer."""

    __slots__ = ("answer", "is_sent", "request")

    def __init__(self, request: Request, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.answer: asyncio.Future[A] = loop.create_future()
        self.is_sent = False


Flush: TypeAlias = "Callable[[Recorder, Session, Sequence[Any]], Awaitable[Sequence[object]]]"


class Recorder:
    """Makes checkpoints durable. It waits while the database is away; its connection opens with the first request."""

    def __init__(self, connection: ReconnectingConnection, schema: Schema, metrics: Metrics, worker_id: UUID) -> None:
        self._connection = connection
        self._schema = schema
        self.metrics = metrics
        self._worker_id = worker_id
        self._spawner = Spawner(worker_id)
        self._log_throttle = LogThrottle(logger)
        # Kept, because Python 3.11 asks the system for the process id whenever it is asked for the running loop.
        self._loop = asyncio.get_running_loop()
        self._pending: list[PendingRequest[Any]] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)
        self._log_throttle.close()
        await self._connection.close()

    def submit(self, request: Request) -> PendingRequest[Any]:
        """Queue a request for the next flush."""
        pending: PendingRequest[Any] = PendingRequest(request, self._loop)
        self._pending.append(pending)
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="awa recorder")
        return pending

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            pending, self._pending = self._pending, []
            for request_type, flush in FLUSHES.items():
                group = [each for each in pending if type(each.request) is request_type and not each.answer.done()]
                if group:
                    await self._flush(flush, group)

    async def _flush(self, flush: Flush, group: Sequence[PendingRequest[Any]]) -> None:
        """Write a group of requests, and answer them. Try again while the database is away."""
        for each in group:
            each.is_sent = True
        while True:
            try:
                session = Session(await self._connection.get(), self._schema)
                began_at = time.monotonic()
                answers = await flush(self, session, [each.request for each in group])
                self.metrics.record_seconds.observe(time.monotonic() - began_at)
            except UNSTORABLE as error:
                await self._flush_one_by_one(flush, group, error)
                return
            except CONNECTION_LOST as error:
                message = "%d requests of durable jobs are waiting for the database: %s"
                self._log_throttle.log(WARNING, "records lost", message, len(group), describe(error))
                self._connection.drop()
                for each in group:
                    if isinstance(each.request, SpawnRequest):
                        each.request = each.request._replace(may_exist=True)
            except Exception as error:
                message = "%d requests of durable jobs failed, trying again: %s"
                self._log_throttle.log(ERROR, "records refused", message, len(group), describe(error))
                await asyncio.sleep(RETRY_S)
            else:
                for each, answer in zip(group, answers, strict=True):
                    _answer(each.answer, answer)
                return

    async def _flush_one_by_one(self, flush: Flush, group: Sequence[PendingRequest[Any]], error: Exception) -> None:
        """Write each request alone, since one of them cannot be stored."""
        if len(group) == 1:
            problem = clean_text(describe(error))
            _answer(group[0].answer, InvalidStep(f"{_name(group[0].request)} cannot be recorded: {problem}"))
            return
        for each in group:
            await self._flush(flush, [each])

    async def _read(self, session: Session, holders: Sequence[Holder]) -> Sequence[object]:
        found = await checkpoints.read_checkpoints(session, self._worker_id, holders)
        return [found.get(holder.job_id, NotHeld()) for holder in holders]

    async def _record(self, session: Session, new: Sequence[NewCheckpoint]) -> Sequence[DueTime | NotHeld | None]:
        held, timers = await checkpoints.record_checkpoints(session, self._worker_id, new)
        return [
            timers.get((each.holder.job_id, each.name)) if each.holder.job_id in held else NotHeld() for each in new
        ]

    async def _take_signals(
        self, session: Session, requests: Sequence[SignalRequest]
    ) -> Sequence[SignalAnswer | NotHeld]:
        answers = await checkpoints.take_signals(session, self._worker_id, requests)
        return [answers.get(n) or NotHeld() for n in range(len(requests))]

    async def _forget(self, session: Session, requests: Sequence[ForgetRequest]) -> Sequence[None]:
        pairs = [(request.holder, request.name) for request in requests]
        await checkpoints.forget_checkpoints(session, self._worker_id, pairs)
        return [None] * len(requests)

    async def _spawn(self, session: Session, requests: Sequence[SpawnRequest]) -> Sequence[str | Exception]:
        return await self._spawner.spawn(session, requests)

    async def _read_children(
        self, session: Session, requests: Sequence[ChildrenRequest]
    ) -> Sequence[list[EndedChild] | None]:
        return [await checkpoints.read_children(session, each.holder.job_id, each.awaited) for each in requests]

    async def _were_completed(self, session: Session, requests: Sequence[WasCompleted]) -> Sequence[bool]:
        return [await checkpoints.was_completed(session, request.holder) for request in requests]

    async def _now(self, session: Session, requests: Sequence[NowRequest]) -> Sequence[object]:
        now = await session.now()
        return [now] * len(requests)


# A flush handles its requests in this order: what was forgotten can be recorded again.
FLUSHES: dict[type, Flush] = {
    Holder: Recorder._read,
    ForgetRequest: Recorder._forget,
    NewCheckpoint: Recorder._record,
    SignalRequest: Recorder._take_signals,
    SpawnRequest: Recorder._spawn,
    ChildrenRequest: Recorder._read_children,
    WasCompleted: Recorder._were_completed,
    NowRequest: Recorder._now,
}


def _answer(future: "asyncio.Future[Any]", answer: object) -> None:
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
        future.exception()  # retrieved: its caller may have been cancelled
    else:
        future.set_result(answer)


def _name(request: Request) -> str:
    return f'step "{request.name}"' if isinstance(request, NewCheckpoint | SignalRequest) else "the request"
