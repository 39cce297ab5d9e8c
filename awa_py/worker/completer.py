"""Writes outcomes in batches: what gathers while one flush is under way goes with the next."""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from logging import ERROR, INFO, WARNING
from operator import attrgetter
from typing import TypeAlias, TypeVar, cast
from uuid import UUID

import asyncpg

from awa_py.db.errors import CONNECTION_LOST
from awa_py.db.reconnecting import ReconnectingConnection
from awa_py.db.schema import Schema
from awa_py.model.job import State
from awa_py.observability.logs import LogThrottle
from awa_py.observability.metrics import Metrics, Reason
from awa_py.store import finish, heartbeat
from awa_py.store.session import Session
from awa_py.text import clean_text, describe, format_frames, ordinal
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.event_log import GOES_ON, RETRIED, EventLog
from awa_py.worker.in_flight import InFlightJobs
from awa_py.worker.outcomes import AttemptFailed, Completed, Discarded, LeaseLost, Released, Snoozed, Throttled

logger = logging.getLogger("awa.worker")

T = TypeVar("T")
Writer: TypeAlias = Callable[[Session, Sequence[ClaimedJob]], Awaitable[set[int] | None]]
RETRY_S = 1.0
PROGRESS_INTERVAL_S = 0.5


class Completer:
    """Makes outcomes durable. However long the database is away, none is forgotten."""

    def __init__(
        self,
        link: ReconnectingConnection,
        schema: Schema,
        flights: InFlightJobs,
        metrics: Metrics,
        timeline: EventLog,
        worker_id: UUID,
        *,
        keep_completed: bool,
    ) -> None:
        self._link = link
        self._schema = schema
        self._flights = flights
        self._metrics = metrics
        self._timeline = timeline
        self._worker_id = worker_id
        self._log_throttle = LogThrottle(logger)
        self._keep = keep_completed
        self._settled: list[ClaimedJob] = []
        self._progress: dict[int, ClaimedJob] = {}
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._progress_due: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._writers: dict[type, Writer] = {
            Completed: self._complete,
            AttemptFailed: self._fail,
            Snoozed: self._snooze,
            Throttled: self._throttle,
            Discarded: self._bury,
            Released: self._release,
        }
        # The others are counted one by one, where they are logged.
        self._counters = {
            Completed: metrics.completed,
            Snoozed: metrics.snoozed,
            Throttled: metrics.throttled,
            Released: metrics.released,
        }

    def settle(self, flights: Sequence[ClaimedJob]) -> None:
        """Takes jobs whose outcomes are to be written with the next flush."""
        if flights and not self._settled:
            self._idle.clear()
            self._wake.set()
        self._settled += flights

    def report_progress(self, flight: ClaimedJob) -> None:
        """Takes a job's progress, from any thread, to be written within about half a second."""
        self._loop.call_soon_threadsafe(self._note_progress, flight)

    async def drained(self) -> None:
        """Returns once every outcome so far is durable."""
        await self._idle.wait()

    async def run(self) -> None:
        """Flushes until it is cancelled."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._flush_gathered()
        finally:
            self._log_throttle.close()

    async def _flush_gathered(self) -> None:
        batch, self._settled = self._settled, []
        if self._progress:
            await self._write_progress({flight.id for flight in batch})
        try:
            await self._flush(batch)
        except Exception as error:
            words = (len(batch), describe(error), format_frames(error))
            self._log_throttle.log(ERROR, "flush", "%d outcomes could not be written, trying again: %s\n%s", *words)
            self._settled = [*batch, *self._settled]
            self._wake.set()
            await asyncio.sleep(RETRY_S)
        if not self._settled:
            self._idle.set()

    def _note_progress(self, flight: ClaimedJob) -> None:
        self._progress[flight.id] = flight
        if self._progress_due is None:
            self._progress_due = self._loop.call_later(PROGRESS_INTERVAL_S, self._progress_is_due)

    def _progress_is_due(self) -> None:
        self._progress_due = None
        self._wake.set()

    async def _write_progress(self, ending: set[int]) -> None:
        """Writes what is due, and the last word of those that end now."""
        all_due = self._progress_due is None
        due = [flight for flight in self._progress.values() if all_due or flight.id in ending]
        for flight in due:
            del self._progress[flight.id]
        due = [flight for flight in due if self._is_current(flight)]
        if not due:
            return
        try:
            session = Session(await self._link.get(), self._schema)
            progress = [flight.progress or "null" for flight in due]
            await heartbeat.update_progress(session, *self._keys(due), progress)
        except (*CONNECTION_LOST, asyncpg.PostgresError) as error:
            words = (len(due), describe(error))
            self._log_throttle.log(WARNING, "progress", "the progress of %d jobs was not written: %s", *words)

    async def _flush(self, batch: Sequence[ClaimedJob]) -> None:
        began = time.monotonic()
        await self._write_groups(batch)
        self._metrics.flush_seconds.observe(time.monotonic() - began)
        self._metrics.flush_jobs.observe(len(batch))
        self._metrics.observe_runs()

    async def _write_groups(self, batch: Sequence[ClaimedJob]) -> None:
        # In the order of ids, so that two statements that touch the same rows cannot deadlock.
        # First the queues that have to rest: what is given back must not be claimed again at once.
        groups: dict[type, list[ClaimedJob]] = defaultdict(list, {Throttled: []})
        for flight in sorted(batch, key=attrgetter("id")):
            groups[type(flight.outcome) if self._is_current(flight) else LeaseLost].append(flight)
        for kind, flights in groups.items():
            if kind is LeaseLost:
                self._end(flights, held=set(), sure=True)
            elif flights:
                await self._write(self._writers[kind], flights)

    async def _write(self, writer: Writer, flights: Sequence[ClaimedJob]) -> None:
        sure = True
        while True:
            try:
                session = Session(await self._link.get(), self._schema)
                held = await writer(session, flights)
            except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
                await self._write_apart(writer, flights, error)
                return
            except CONNECTION_LOST as error:
                words = (len(flights), describe(error))
                self._log_throttle.log(WARNING, "lost", "%d outcomes wait for the database: %s", *words)
                self._link.drop()
                sure = False  # the lost connection may have taken a commit with it
            except asyncpg.PostgresError as error:
                words = (len(flights), describe(error))
                self._log_throttle.log(ERROR, "refused", "%d outcomes could not be written, trying again: %s", *words)
                await asyncio.sleep(RETRY_S)
            else:
                self._end(flights, held, sure=sure)
                return

    async def _write_apart(self, writer: Writer, flights: Sequence[ClaimedJob], error: Exception) -> None:
        """One outcome of many cannot be stored: the others must not suffer for it."""
        if len(flights) > 1:
            for one in flights:
                await self._write(writer, [one])
            return
        (flight,) = flights
        if isinstance(flight.outcome, Discarded):
            words = (flight, describe(error))
            self._log(ERROR, flight, "unstorable", "%s: its end cannot be stored, a rescue will end it: %s", *words)
            self._end(flights, held=None, sure=False)
            return
        text = clean_text(f"the outcome cannot be stored: {describe(error)}")
        flight.outcome = Discarded(State.FAILED, text, reason=Reason.RESULT)
        await self._write(self._bury, flights)

    def _is_current(self, flight: ClaimedJob) -> bool:
        """Whether its job was not claimed here once more: an earlier attempt has lost its lease, even where a crash of
        the server took back the first claim and both have the same number."""
        return self._flights.get(flight.id) is flight

    def _keys(self, flights: Sequence[ClaimedJob]) -> tuple[UUID, list[int], list[int]]:
        """By what the database knows them for ours."""
        return self._worker_id, [flight.id for flight in flights], [flight.lease for flight in flights]

    def _end(self, flights: Sequence[ClaimedJob], held: set[int] | None, *, sure: bool) -> None:
        """The outcomes are durable, or were not ours to write. `held`: the ids that were ours; None: all."""
        counts = _by_queue(flights)
        self._flights.remove(flights, counts)
        metric = self._counters.get(type(flights[0].outcome))
        if metric is not None:
            ours = counts if held is None else _by_queue(flight for flight in flights if flight.id in held)
            for queue, count in ours.items():
                metric.labels(queue).inc(count)
        event = GOES_ON.get(type(flights[0].outcome))
        if event is not None:
            self._timeline.note(event, [flight for flight in flights if held is None or flight.id in held])
        if held is None:
            return
        for flight in flights:
            if flight.id in held:
                continue
            if sure:
                self._metrics.lost_leases.inc()
                words = (flight, ordinal(flight.attempt))
                self._log(WARNING, flight, "lost", "%s: the %s attempt was no longer ours when it ended", *words)
            else:
                sentence = "%s: its outcome was written before the connection broke, or it was lost"
                self._log(INFO, flight, "unsure", sentence, flight)

    def _log(
        self,
        level: int,
        flight: ClaimedJob,
        event: str,
        sentence: str,
        *words: object,
        error: BaseException | None = None,
    ) -> None:
        """A line about a job, unless there is one already about the same with another job of its kind."""
        same = (event, flight.kind, type(error).__name__)
        self._log_throttle.log(level, same, sentence, *words, exc_info=error, extra=flight.fields())

    async def _complete(self, session: Session, flights: Sequence[ClaimedJob]) -> set[int] | None:
        results = [outcome.result for outcome in _outcomes(flights, Completed)]
        return await finish.complete_jobs(
            session, *self._keys(flights), results if any(results) else None, keep=self._keep
        )

    async def _fail(self, session: Session, flights: Sequence[ClaimedJob]) -> set[int] | None:
        outcomes = _outcomes(flights, AttemptFailed)
        answers = await finish.fail_attempts(
            session,
            *self._keys(flights),
            [outcome.error for outcome in outcomes],
            [outcome.delay for outcome in outcomes],
        )
        retried: list[ClaimedJob] = []
        for flight, outcome in zip(flights, outcomes, strict=True):
            answer = answers.get(flight.id)
            if answer is None:
                continue
            words = (flight, ordinal(answer.attempt), answer.max_attempts)
            if answer.retry_s is None:
                self._metrics.failed.labels(flight.queue, outcome.reason).inc()
                sentence = "%s failed for good at its %s attempt of %d: %s"
                self._log(ERROR, flight, "failed", sentence, *words, outcome.error, error=outcome.exception)
            else:
                retried.append(flight)
                self._metrics.retried.labels(flight.queue, outcome.reason).inc()
                sentence = "%s: its %s attempt of %d failed, retry in %.3g s: %s"
                ends = (answer.retry_s, outcome.error)
                self._log(WARNING, flight, "retried", sentence, *words, *ends, error=outcome.exception)
        self._timeline.note(RETRIED, retried)
        return set(answers)

    async def _snooze(self, session: Session, flights: Sequence[ClaimedJob]) -> set[int] | None:
        delays = [outcome.delay for outcome in _outcomes(flights, Snoozed)]
        return await finish.snooze_jobs(session, *self._keys(flights), delays)

    async def _throttle(self, session: Session, flights: Sequence[ClaimedJob]) -> set[int] | None:
        reasons = [outcome.reason for outcome in _outcomes(flights, Throttled)]
        answers = await finish.throttle_jobs(session, *self._keys(flights), reasons)
        for flight, reason in zip(flights, reasons, strict=True):
            answer = answers.get(flight.id)
            if answer is not None and answer.started:
                words = (flight.queue, answer.cooldown_s, ordinal(answer.throttles), flight, reason)
                sentence = "queue %s rests for %.0f s, for the %s time in a row: %s was throttled: %s"
                self._log(WARNING, flight, "throttled", sentence, *words)
        return set(answers)

    async def _bury(self, session: Session, flights: Sequence[ClaimedJob]) -> set[int] | None:
        outcomes = _outcomes(flights, Discarded)
        held = await finish.discard_jobs(
            session,
            *self._keys(flights),
            [outcome.state for outcome in outcomes],
            [outcome.error for outcome in outcomes],
        )
        for flight, outcome in zip(flights, outcomes, strict=True):
            if flight.id not in held:
                continue
            if outcome.state is State.CANCELLED:
                self._metrics.cancelled.labels(flight.queue).inc()
                self._log(INFO, flight, "cancelled", "%s was cancelled: %s", flight, outcome.error)
            else:
                self._metrics.failed.labels(flight.queue, outcome.reason).inc()
                words = (flight, ordinal(flight.attempt), outcome.error)
                self._log(ERROR, flight, "failed", "%s failed for good at its %s attempt: %s", *words)
        return held

    async def _release(self, session: Session, flights: Sequence[ClaimedJob]) -> set[int] | None:
        return await finish.release_jobs(session, *self._keys(flights))


def _outcomes(flights: Sequence[ClaimedJob], _kind: type[T]) -> list[T]:
    """Their outcomes, which are all of that kind."""
    return cast(list[T], [flight.outcome for flight in flights])


def _by_queue(flights: Iterable[ClaimedJob]) -> Counter[str]:
    return Counter(map(attrgetter("queue"), flights))
