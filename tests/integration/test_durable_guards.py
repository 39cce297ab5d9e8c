"""What durable jobs write is guarded by lease and worker, and a repeated statement changes nothing."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from awa_py import NewJob
from awa_py.model.job import JobSpec
from awa_py.store import checkpoints as store
from awa_py.store.checkpoints import Holder, NewCheckpoint, SignalRequest, Suspension
from awa_py.store.session import Session
from awa_py.worker.durable.spawner import NotHeld, Spawner, SpawnRequest
from tests.support import OWNER, insert_running, new_owner

pytestmark = pytest.mark.integration

Write = Callable[[Session, Holder], Awaitable[Any]]


def step(holder: Holder, name: str = "new", **values: Any) -> NewCheckpoint:
    return NewCheckpoint(holder=holder, name=name, number=9, type="step", **values)


def signal_request(holder: Holder) -> SignalRequest:
    return SignalRequest(holder=holder, name="wait", number=9, signal="go", timeout=None)


def keys(holder: Holder) -> tuple[UUID, list[int], list[int]]:
    return OWNER, [holder.job_id], [holder.lease]


WRITES: Mapping[str, Write] = {
    "record": lambda session, holder: store.record_checkpoints(session, OWNER, [step(holder)]),
    "forget": lambda session, holder: store.forget_checkpoints(session, OWNER, [(holder, "old")]),
    "take a signal": lambda session, holder: store.take_signals(session, OWNER, [signal_request(holder)]),
    "suspend": lambda session, holder: store.suspend_jobs(session, *keys(holder), [Suspension(until=None)]),
    "complete": lambda session, holder: store.complete_durable_jobs(session, *keys(holder), ["1"], keep=True),
    "record a transaction": lambda session, holder: store.record_transaction(session, OWNER, step(holder, result="1")),
    "complete in a transaction": lambda session, holder: store.complete_in_transaction(session, OWNER, holder, "1"),
    "spawn": lambda session, holder: Spawner(OWNER).spawn(session, [spawn_request(holder)]),
}


def spawn_request(holder: Holder) -> SpawnRequest:
    spec = JobSpec(kind="child", queue="default", parent_id=holder.job_id)
    new = NewCheckpoint(holder=holder, name="new", number=9, type="spawn")
    return SpawnRequest(new, [NewJob.from_spec(spec, "{}", None, None)] * 2)


async def state(session: Session) -> list[Any]:
    """Return all that the writes could change."""
    tables = ("jobs", "running", "checkpoints", "signals")
    return [await session.connection.fetch(f"SELECT t::text FROM awa.{table} AS t ORDER BY 1") for table in tables]


async def insert_durable(session: Session, **columns: Any) -> int:
    (job_id,) = await insert_running(session, **columns)
    await session.connection.execute(
        "INSERT INTO awa.checkpoints (job_id, name, number, type, lease) VALUES ($1, 'old', 1, 'step', 1)", job_id
    )
    await session.connection.execute("INSERT INTO awa.signals (job_id, name) VALUES ($1, 'go')", job_id)
    return job_id


@pytest.mark.parametrize("write", WRITES)
async def test_holder_of_the_lease_changes_something(session: Session, write: str) -> None:
    job_id = await insert_durable(session, lease=5)
    before = await state(session)
    await WRITES[write](session, Holder(job_id, 5))
    assert await state(session) != before


@pytest.mark.parametrize("write", WRITES)
async def test_wrong_lease_changes_nothing(session: Session, write: str) -> None:  # A19 Y3
    job_id = await insert_durable(session, lease=5)
    before = await state(session)
    for lease in (4, 6, 1):
        await WRITES[write](session, Holder(job_id, lease))
    assert await state(session) == before


@pytest.mark.parametrize("write", WRITES)
async def test_same_lease_of_another_worker_changes_nothing(session: Session, write: str) -> None:  # Y3
    job_id = await insert_durable(session, worker_id=new_owner())
    before = await state(session)
    await WRITES[write](session, Holder(job_id, 1))
    assert await state(session) == before


@pytest.mark.parametrize(("lease", "worker_id"), [(4, OWNER), (5, new_owner())])
async def test_records_are_read_by_the_holder_alone(session: Session, lease: int, worker_id: UUID) -> None:
    job_id = await insert_durable(session, lease=5, worker_id=OWNER)
    held = await store.read_checkpoints(session, OWNER, [Holder(job_id, 5)])
    assert [*held[job_id]] == ["old"]
    assert await store.read_checkpoints(session, worker_id, [Holder(job_id, lease)]) == {}


async def test_repeated_record_of_a_timer_keeps_its_time(session: Session) -> None:
    job_id = await insert_durable(session)
    timer = NewCheckpoint(holder=Holder(job_id, 1), name="sleep", number=1, type="timer", delay=timedelta(hours=1))
    await store.record_checkpoints(session, OWNER, [timer])
    before = await state(session)
    await store.record_checkpoints(session, OWNER, [timer])
    assert await state(session) == before


async def test_lost_lease_is_the_answer_of_its_spawn_alone(session: Session) -> None:
    ours, lost = await insert_running(session, 2)
    holders = [Holder(ours, 1), Holder(lost, 7)]
    answer, refused = await Spawner(OWNER).spawn(session, [spawn_request(holder) for holder in holders])
    assert isinstance(answer, str)
    assert isinstance(refused, NotHeld)
    assert await session.connection.fetchval("SELECT count(*) FROM awa.ready WHERE parent_id = $1", ours) == 2


async def test_repeated_spawn_returns_the_children_that_are_there(session: Session) -> None:
    (job_id,) = await insert_running(session)
    request = spawn_request(Holder(job_id, 1))
    first = await Spawner(OWNER).spawn(session, [request])
    assert await Spawner(OWNER).spawn(session, [request._replace(may_exist=True)]) == first
    assert await session.connection.fetchval("SELECT count(*) FROM awa.ready") == 2
