"""Wait for the ends of jobs: one statement looks for all jobs that the callers of a process wait for.

    callers ── ids ──► all ids that wait ── one look every 60 ms, on one connection ──► the ends of some of them

So the number of transactions does not depend on the number of callers. No notification is needed, which works through
any pooler and costs the workers nothing. A look at a job that has not ended is one or two lookups in small tables.
"""

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import TypeAlias

from awa_py.background import cancel_and_wait, wait_for_event
from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.reconnecting import RECONNECT_DELAYS_S
from awa_py.errors import AwaError
from awa_py.settings import Settings
from awa_py.store.jobs import FinalState, find_ended_jobs, list_unserved_jobs
from awa_py.store.session import Session
from awa_py.text import count, describe

logger = logging.getLogger("awa.results")

UNSERVED_INTERVAL_S = 2.0  # between two searches for jobs that no worker can run
GRACE = timedelta(seconds=2)  # no warning because a worker is about to start
MAX_ID = 2**63 - 1

Caller: TypeAlias = "asyncio.Future[FinalState | None]"


class ResultWaiter:
    """Waits for jobs on behalf of all callers of a client."""

    def __init__(self, open_session: Callable[[], AbstractAsyncContextManager[Session]], settings: Settings) -> None:
        self._loop = asyncio.get_running_loop()
        self._open_session = open_session
        self._interval_s = settings.result_interval.total_seconds()
        self._staleness = settings.heartbeat_staleness
        self._callers: dict[int, set[Caller]] = {}
        self._new: set[int] = set()  # ids that no look has looked for
        self._arrived = asyncio.Event()  # there are new ids
        self._last_new_had_ended = False
        self._due_at = 0.0  # of the next look for all ids
        self._unserved_due_at = 0.0
        self._unserved: dict[int, str] = {}  # ids of jobs that no live worker can run, and a sentence about that
        self._problem = ""  # a sentence, if the database cannot be reached
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    async def wait(self, job_id: int) -> FinalState | None:
        """Return how the job ended, once it has. Return None if it does not exist."""
        if asyncio.get_running_loop() is not self._loop:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.wait(job_id), self._loop))
        if self._is_closed:
            raise _closed()
        job_id = int(job_id)  # not a bool: all ids go into one statement, which one wrong value would break
        if not 0 < job_id <= MAX_ID:
            return None
        caller: Caller = self._loop.create_future()
        self._add(job_id, caller)
        try:
            return await caller
        finally:
            self._remove(job_id, caller)

    def why(self, job_id: int) -> str:
        """Say why this job may take long, or return an empty string."""
        return self._problem or self._unserved.get(job_id, "")

    async def close(self) -> None:
        """Stop looking. The callers that wait get an error."""
        self._is_closed = True
        if self._task is not None:
            await cancel_and_wait(self._task)
        self._fail_all(_closed())

    def _add(self, job_id: int, caller: Caller) -> None:
        callers = self._callers.get(job_id)
        if callers is None:
            callers = self._callers[job_id] = set()
            self._new.add(job_id)
            self._arrived.set()
        callers.add(caller)
        if self._task is None or self._task.done():
            # In a context of its own: the first caller's context names the job that this caller runs in.
            self._task = self._loop.create_task(self._run(), context=contextvars.Context())

    def _remove(self, job_id: int, caller: Caller) -> None:
        callers = self._callers.get(job_id)
        if callers is not None:
            callers.discard(caller)
            if not callers:
                del self._callers[job_id]
                self._new.discard(job_id)

    async def _run(self) -> None:
        """Look for the jobs until no caller waits."""
        failures = 0
        self._unserved_due_at = time.monotonic() + UNSERVED_INTERVAL_S
        while self._callers:
            try:
                async with self._open_session() as session:
                    while self._callers:
                        await self._look(session)
                        failures, self._problem = 0, ""
            except CONNECTION_LOST as error:
                self._problem = f"the database cannot be reached: {describe(error)}"
                level = logging.DEBUG if failures else logging.WARNING
                logger.log(level, "waiting for %s: %s", count(len(self._callers), "job"), self._problem)
                await asyncio.sleep(RECONNECT_DELAYS_S[min(failures, len(RECONNECT_DELAYS_S) - 1)])
                failures += 1
            except Exception as error:  # all other errors go to the callers
                self._fail_all(error)

    async def _look(self, session: Session) -> None:
        """Wait until the next look is due, and answer the callers whose jobs have ended.

        Looks for all ids are an interval apart, or twice as far as the last one took. New ids are looked for at once if
        the last new ones had ended: a caller that reads the results of many ended jobs one by one must not wait.
        """
        left_s = self._due_at - time.monotonic()
        only_new = self._last_new_had_ended and left_s > 0 and await wait_for_event(self._arrived, left_s)
        if not only_new:
            await asyncio.sleep(self._due_at - time.monotonic())
        new, self._new = self._new, set()
        self._arrived.clear()
        ids = list(new if only_new else self._callers)
        if not ids:  # their callers were cancelled
            return
        started_at = time.monotonic()
        ended = await find_ended_jobs(session, ids)
        if new:
            self._last_new_had_ended = new <= ended.keys()
        if not only_new:
            now = time.monotonic()
            self._due_at = max(started_at + self._interval_s, now + (now - started_at))
        for job_id, final in ended.items():
            _answer(self._callers.pop(job_id, ()), final)
        if time.monotonic() >= self._unserved_due_at:
            self._unserved_due_at = time.monotonic() + UNSERVED_INTERVAL_S
            await self._find_unserved(session)

    async def _find_unserved(self, session: Session) -> None:
        """Warn of jobs that no live worker can run, once per queue and kind until that changes."""
        ids = list(self._callers)
        found = await list_unserved_jobs(session, ids, staleness=self._staleness, grace=GRACE) if ids else []
        known, self._unserved = set(self._unserved.values()), {}
        for jobs in found:
            why = f'no live worker of queue "{jobs.queue}" has a handler for kind "{jobs.kind}"'
            self._unserved |= dict.fromkeys(jobs.ids, why)
            if why not in known:
                logger.warning("waiting for %s, e.g. job %d: %s", count(len(jobs.ids), "job"), jobs.ids[0], why)

    def _fail_all(self, error: Exception) -> None:
        callers = [caller for callers in self._callers.values() for caller in callers if not caller.done()]
        self._callers.clear()
        self._new.clear()
        for caller in callers:
            caller.set_exception(error)


def _answer(callers: Iterable[Caller], final: FinalState | None) -> None:
    for caller in callers:
        if not caller.done():  # it was not cancelled
            caller.set_result(final)


def _closed() -> AwaError:
    return AwaError("the app was closed before the job ended")
