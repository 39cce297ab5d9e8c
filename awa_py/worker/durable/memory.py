"""What one attempt of a durable job knows of earlier ones, and what it adds."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from awa_py.errors import InvalidStep, ReplayMismatch
from awa_py.store.checkpoints import Checkpoint, DueTime, Holder, NewCheckpoint
from awa_py.worker.claimed_job import ClaimedJob
from awa_py.worker.durable.recorder import ForgetRequest, PendingRequest, Recorder, Request
from awa_py.worker.durable.spawner import NotHeld
from awa_py.worker.durable.waits import DueAt

MAX_JOB_BYTES = 64 * 2**20  # of all results and errors: they become one value in the row of the completed job


class Memory:
    """The checkpoints of a job. The first attempt reads nothing."""

    def __init__(
        self, job: ClaimedJob, recorder: Recorder, *, max_checkpoints: int, on_lease_lost: Callable[[], None]
    ) -> None:
        self.holder = Holder(job.id, job.lease)
        self._job = job
        self._recorder = recorder
        self._max_checkpoints = max_checkpoints
        self.lose_lease = on_lease_lost
        self._checkpoints: dict[str, Checkpoint] = {}
        self._is_read = job.lease == 1
        self._reading = asyncio.Lock()
        self._read_at = 0.0
        self._bytes = 0
        self._begun: set[str] = set()  # calls without a record
        self._counts: Counter[str] = Counter()  # the last number of each name
        self._numbers: dict[str, int] = {}  # the order of the calls
        self._next_number = itertools.count(1)
        self.not_awaited: dict[str, None] = {}  # the names of such calls, in order
        self._requests: set[PendingRequest[Any]] = set()

    def take_name(self, name: str) -> str:
        """Return the name of the next call of this name that is free: `a`, `a#2`, `a#3`."""
        count = self._counts[name] + 1
        while (numbered := name if count == 1 else f"{name}#{count}") in self._numbers:
            count += 1
        self._counts[name] = count
        self._numbers[numbered] = next(self._next_number)
        self.not_awaited[numbered] = None
        return numbered

    def return_name(self, name: str, numbered: str) -> None:
        """Take back what `take_name(name)` returned: the call gets another name."""
        del self._numbers[numbered]
        self.not_awaited.pop(numbered, None)
        count = int(numbered.removeprefix(name).removeprefix("#") or 1)
        self._counts[name] = min(self._counts[name], count - 1)

    def number(self, name: str) -> int:
        """Return the position of a call in the order of the calls."""
        if name not in self._numbers:
            self._numbers[name] = next(self._next_number)
        return self._numbers[name]

    async def read(self) -> None:
        """Read the checkpoints, once."""
        if self._is_read:
            return
        async with self._reading:
            if not self._is_read:
                self._checkpoints = await self.request(self.holder)
                self._read_at = time.monotonic()
                self._bytes = sum(len(each.result or each.error or "") for each in self._checkpoints.values())
                self._is_read = True
                if self._checkpoints:
                    self._recorder.metrics.replays.inc()

    def get(self, name: str) -> Checkpoint | None:
        return self._checkpoints.get(name)

    def recall(self, name: str, call_type: str, digest: int | None = None) -> Checkpoint | None:
        """Return the checkpoint of a call, or raise ReplayMismatch if it was another call."""
        checkpoint = self._checkpoints.get(name)
        if checkpoint is None:
            self._begun.add(name)
            if len(self._checkpoints) + len(self._begun) > self._max_checkpoints:
                raise InvalidStep(
                    f'"{name}": {self._job} has {self._max_checkpoints} checkpoints, which is the limit '
                    "(AWA_MAX_STEPS): split it into several jobs"
                )
            return None
        if checkpoint.type != call_type:
            raise ReplayMismatch(
                f'"{name}" of {self._job} was recorded as a {checkpoint.type}, and is a {call_type} now: give the new '
                "call another name"
            )
        if digest is not None and checkpoint.digest is not None and checkpoint.digest != digest:
            raise ReplayMismatch(
                f'step "{name}" of {self._job} was recorded with other arguments than it is called with now: the order '
                "of a loop has changed, or an argument depends on the time. Name each call by .key(…), or record the "
                "argument with side_effect"
            )
        return checkpoint

    def check_size(self, name: str, text: str) -> None:
        """Raise InvalidStep if the job's checkpoints become too large with this result or error."""
        if self._bytes + len(text) > MAX_JOB_BYTES:
            raise InvalidStep(
                f'step "{name}": with its result, the checkpoints of {self._job} would be larger than '
                f"{MAX_JOB_BYTES // 2**20} MiB: store large values elsewhere, and return where they are"
            )

    def due(self, checkpoint: Checkpoint) -> DueAt | None:
        """Return when the timer of a checkpoint fires."""
        return DueAt.from_answer(checkpoint.due, self._read_at)

    def new(self, name: str, call_type: str, **values: Any) -> NewCheckpoint:
        """Return a checkpoint to record."""
        return NewCheckpoint(holder=self.holder, name=name, number=self.number(name), type=call_type, **values)

    async def record(self, name: str, call_type: str, **values: Any) -> DueAt | None:
        """Record a checkpoint. Return when it fires, if it is a timer."""
        new = self.new(name, call_type, **values)
        self._job.remembers = True
        due: DueTime | None = await self.request(new)
        read_at = time.monotonic()
        self.add(
            name,
            call_type,
            due=due and due._replace(left_s=due.left_s + read_at - self._read_at),
            digest=new.digest,
            tries=new.tries,
            result=new.result,
            error=new.error,
        )
        return DueAt.from_answer(due, read_at)

    def add(
        self,
        name: str,
        call_type: str,
        *,
        is_open: bool = False,
        due: DueTime | None = None,
        digest: int | None = None,
        tries: int = 1,
        result: str | None = None,
        error: str | None = None,
    ) -> None:
        """Remember a checkpoint that was recorded."""
        self._job.remembers = True
        if not is_open:  # the end of the wait is counted
            self._recorder.metrics.records.inc()
        self._begun.discard(name)
        self._bytes += len(result or error or "")
        self._checkpoints[name] = Checkpoint(
            name=name, type=call_type, is_open=is_open, digest=digest, tries=tries, result=result, error=error, due=due
        )

    async def forget(self, name: str) -> None:
        """Remove a checkpoint."""
        await self.request(ForgetRequest(self.holder, name))
        self._checkpoints.pop(name, None)

    async def request(self, request: Request) -> Any:
        """Send a request, and return its answer. The attempt ends if another worker has the job."""
        pending = self._recorder.submit(request)
        self._requests.add(pending)
        pending.answer.add_done_callback(lambda _: self._requests.discard(pending))
        try:
            return await asyncio.shield(pending.answer)
        except NotHeld:
            self.lose_lease()
            raise asyncio.CancelledError from None

    async def settle(self) -> None:
        """Wait for the requests that were sent, and drop the others."""
        for pending in [*self._requests]:
            if not pending.is_sent:
                pending.answer.cancel()
        if self._requests:
            await asyncio.wait([pending.answer for pending in self._requests])
