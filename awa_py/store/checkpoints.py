"""What durable jobs remember: their checkpoints, the signals that they take, and how they are suspended.

Each function takes the ids and leases of a worker's jobs, and ignores jobs that the worker no longer holds.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from awa_py.connections import Record
from awa_py.store.session import Session


class Holder(NamedTuple):
    """The attempt that writes: a job with its lease."""

    job_id: int
    lease: int


class DueTime(NamedTuple):
    """When a timer fires or a timeout passes: by the database's clock, and in seconds from when it was read."""

    at: datetime
    left_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint as it was recorded. An open one is a wait that has begun."""

    name: str
    type: str
    is_open: bool
    digest: int | None
    tries: int
    result: str | None  # JSON
    error: str | None  # JSON
    due: DueTime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCheckpoint:
    """A checkpoint to record. A timer has a `delay` or an `until`."""

    holder: Holder
    name: str
    number: int
    type: str
    tries: int = 1
    took_s: float | None = None
    digest: int | None = None
    result: str | None = None
    error: str | None = None
    delay: timedelta | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRequest:
    """A wait that takes the next signal of a name, if there is one."""

    holder: Holder
    name: str  # of the checkpoint
    number: int
    signal: str
    timeout: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalAnswer:
    """What a wait got: a signal, as JSON; nothing, because its timeout has passed; or it stays open."""

    is_open: bool
    due: DueTime | None
    result: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """What a suspended job waits for: the earliest timer, signals by name, and groups of children."""

    until: datetime | None
    signals: Sequence[str] = ()
    children: Sequence["AwaitedChildren"] = ()

    @property
    def text(self) -> str:
        """Return what it waits for, e.g. `for the signal "approved", until 2026-05-03 09:00:00+00:00`."""
        awaited = [f'the signal "{name}"' for name in self.signals]
        numbers = [sum(last - first + 1 for first, last in each.ids) for each in self.children]
        awaited += ["1 child" if number == 1 else f"{number} children" for number in numbers]
        parts = [f"for {' or '.join(awaited)}"] if awaited else []
        if self.until is not None:
            parts.append(f"until {self.until.isoformat(sep=' ', timespec='seconds')}")
        return ", ".join(parts)

    def to_json(self) -> str:
        """Return the value of the column `waits`."""
        waits: dict[str, Any] = {}
        if self.signals:
            waits["signals"] = list(self.signals)
        if self.children:
            waits["children"] = [awaited._asdict() for awaited in self.children]
        return json.dumps(waits)


class AwaitedChildren(NamedTuple):
    """Children that a job waits for, as ranges of ids. With `fail_fast`, a failed one ends the wait."""

    ids: Sequence[tuple[int, int]]
    fail_fast: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedChild:
    """A child that has ended: its result as JSON, or its error."""

    id: int
    kind: str
    completed: bool
    result: str | None
    error: str | None


async def read_checkpoints(
    session: Session, worker_id: UUID, holders: Sequence[Holder]
) -> dict[int, dict[str, Checkpoint]]:
    """Return the checkpoints of jobs, by job and name. Jobs that the worker does not hold are left out."""
    rows = await session.fetch("read_checkpoints", *_arrays(holders), worker_id)
    found: dict[int, dict[str, Checkpoint]] = {row["job_id"]: {} for row in rows}
    for row in rows:
        if row["name"] is not None:
            found[row["job_id"]][row["name"]] = Checkpoint(
                name=row["name"],
                type=row["type"],
                is_open=row["is_open"],
                digest=row["digest"],
                tries=row["tries"],
                result=row["result"],
                error=row["error"],
                due=_due(row),
            )
    return found


async def record_checkpoints(
    session: Session, worker_id: UUID, new: Sequence[NewCheckpoint]
) -> tuple[set[int], Mapping[tuple[int, str], DueTime]]:
    """Record checkpoints. Return the jobs that the worker holds, and when each timer fires."""
    row = await session.fetchrow(
        "record_checkpoints",
        *_arrays(list({checkpoint.holder: None for checkpoint in new})),
        worker_id,
        [checkpoint.holder.job_id for checkpoint in new],
        *([getattr(checkpoint, column) for checkpoint in new] for column in _COLUMNS),
    )
    assert row is not None
    timers = zip(row["timer_jobs"], row["timer_names"], row["timer_untils"], row["timers_left_s"], strict=True)
    return set(row["held"]), {(job_id, name): DueTime(at, left_s) for job_id, name, at, left_s in timers}


_COLUMNS = ("name", "number", "type", "tries", "took_s", "digest", "result", "error", "delay", "until")


async def forget_checkpoints(session: Session, worker_id: UUID, forgotten: Sequence[tuple[Holder, str]]) -> None:
    """Remove checkpoints by name."""
    holders = list({holder: None for holder, _ in forgotten})
    ids, names = [holder.job_id for holder, _ in forgotten], [name for _, name in forgotten]
    await session.fetch("forget_checkpoints", *_arrays(holders), worker_id, ids, names)


async def take_signals(session: Session, worker_id: UUID, requests: Sequence[SignalRequest]) -> dict[int, SignalAnswer]:
    """Take a signal for each wait that can have one, by the position of the request."""
    rows = await session.fetch(
        "take_signals",
        worker_id,
        [request.holder.job_id for request in requests],
        [request.holder.lease for request in requests],
        [request.name for request in requests],
        [request.number for request in requests],
        [request.signal for request in requests],
        [request.timeout for request in requests],
    )
    return {row["n"]: SignalAnswer(is_open=row["is_open"], due=_due(row), result=row["result"]) for row in rows}


async def suspend_jobs(
    session: Session,
    worker_id: UUID,
    ids: Sequence[int],
    leases: Sequence[int],
    suspensions: Sequence[Suspension],
) -> dict[int, bool | None]:
    """Suspend jobs: running → waiting. Return whether each job went on at once; None: its row is locked, try again."""
    rows = await session.fetch(
        "suspend_jobs",
        worker_id,
        ids,
        leases,
        [suspension.until for suspension in suspensions],
        [suspension.to_json() for suspension in suspensions],
    )
    return {row["id"]: row["woken"] for row in rows}


async def complete_durable_jobs(
    session: Session,
    worker_id: UUID,
    ids: Sequence[int],
    leases: Sequence[int],
    results: Sequence[str | None],
    *,
    keep: bool,
) -> set[int]:
    """Complete jobs that have checkpoints. Return those that the worker held."""
    rows = await session.fetch("complete_durable_jobs", ids, leases, worker_id, results, keep)
    return {row["id"] for row in rows}


async def record_transaction(session: Session, worker_id: UUID, new: NewCheckpoint) -> bool:
    """Record a step in the connection's transaction. Return False if the worker does not hold the job."""
    holder = (new.holder.job_id, new.holder.lease)
    values = (new.name, new.number, new.tries, new.took_s, new.digest, new.result)
    return bool(await session.fetchval("record_transaction", worker_id, *holder, *values))


async def complete_in_transaction(session: Session, worker_id: UUID, holder: Holder, result: str | None) -> bool:
    """Complete a job in the connection's transaction. Return False if the worker does not hold the job."""
    return bool(await session.fetchval("complete_in_transaction", worker_id, *holder, result))


async def was_completed(session: Session, holder: Holder) -> bool:
    """Return whether this attempt has completed the job."""
    return bool(await session.fetchval("was_completed", *holder))


async def lock_parents(session: Session, worker_id: UUID, holders: Sequence[Holder]) -> set[int]:
    """Lock jobs until the end of the transaction that spawns their children. Return those that may spawn."""
    return {row["id"] for row in await session.fetch("lock_parents", *_arrays(holders), worker_id)}


async def get_results(session: Session, names: Sequence[tuple[int, str]]) -> dict[tuple[int, str], str]:
    """Return the results of the checkpoints that exist, by job and name."""
    rows = await session.fetch("get_checkpoints", [job_id for job_id, _ in names], [name for _, name in names])
    return {(row["job_id"], row["name"]): row["result"] for row in rows}


async def read_children(session: Session, parent_id: int, awaited: AwaitedChildren) -> list[EndedChild] | None:
    """Return the children that have ended, or None if their parent has to wait."""
    rows = await session.fetch("read_children", parent_id, json.dumps(awaited.ids), awaited.fail_fast)
    if not rows[0]["ended"]:
        return None
    return [
        EndedChild(
            id=row["id"],
            kind=row["kind"],
            completed=row["state"] == "completed",
            result=row["result"],
            error=row["error"],
        )
        for row in rows
        if row["id"] is not None
    ]


async def list_waiting_parents(session: Session, *, after: int, limit: int) -> list[int]:
    """Return jobs that wait for children, in the order of their ids."""
    return [row["id"] for row in await session.fetch("list_waiting_parents", after, limit)]


async def wake_parents(session: Session, ids: Sequence[int]) -> int:
    """Wake the jobs whose awaited children have ended. Call it after the commit that ended a child."""
    return len(await session.fetch("wake_parents", ids))


def _due(row: Record) -> DueTime | None:
    return None if row["until"] is None else DueTime(row["until"], row["left_s"])


def _arrays(holders: Sequence[Holder]) -> tuple[list[int], list[int]]:
    return [holder.job_id for holder in holders], [holder.lease for holder in holders]
