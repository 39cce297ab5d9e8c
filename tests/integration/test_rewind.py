"""Rewinding durable jobs: forget a step and all that followed, and run the job again from there."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from awa_py import App, AwaError, Context, Fail, InvalidStep, JobNotFound, State
from awa_py.store.rewind import rewind
from awa_py.store.session import Session
from tests.support import drain, eventually, insert, look, running, working
from tests.waiting import is_waiting

pytestmark = pytest.mark.integration

Calls = list[str]


@pytest.fixture
def calls(app: App) -> Calls:
    """Declare `order`, a job of three steps that fails after the second one if it is told to. Return its calls."""
    done: Calls = []

    def step(name: str) -> Callable[[], Coroutine[Any, Any, str]]:
        async def call() -> str:
            done.append(name)
            return name.upper()

        return call

    @app.job(max_attempts=1)
    async def order(ctx: Context, fails: bool = False) -> list[str]:
        first = [await ctx.step("reserve", step("reserve")), await ctx.step("charge", step("charge"))]
        if fails and done.count("charge") < 2:
            raise Fail("no stamps")
        return [*first, await ctx.step("ship", step("ship"))]

    return done


async def checkpoints(session: Session, job_id: int) -> list[str]:
    rows = await session.connection.fetch("SELECT name FROM awa.checkpoints WHERE job_id = $1 ORDER BY number", job_id)
    return [row["name"] for row in rows]


async def test_completed_job_runs_again_from_the_step(app: App, session: Session, calls: Calls) -> None:
    async with app:
        job = await app.enqueue("order")
        await drain(app)
        before = await session.connection.fetchval("SELECT checkpoints::text FROM awa.completed")
        await app.rewind(job, to="charge")
        rewound = await app.get(job.id)
        assert (rewound.state, rewound.attempt, rewound.result) == (State.AVAILABLE, 0, None)
        assert await checkpoints(session, job.id) == ["reserve"]
        kept = await session.connection.fetchval("SELECT row_to_json(c)::text FROM awa.checkpoints c")
        assert before.startswith(f"[{kept}, ")  # it is exactly what it was
        await drain(app)
        assert calls == ["reserve", "charge", "ship", "charge", "ship"]
        assert await app.result(job.id) == ["RESERVE", "CHARGE", "SHIP"]
        assert await checkpoints(session, job.id) == []
        events = [(event.event, event.detail) for event in await app.history(job.id)]
        assert ("rewound", 'to the step "charge"') in events
        assert [name for name, _ in events].count("completed") == 2


async def test_failed_job_runs_again_from_the_step_with_all_attempts(app: App, session: Session, calls: Calls) -> None:
    async with app:
        job = await app.enqueue("order", {"fails": True})
        await drain(app)
        assert (await app.get(job.id)).state is State.FAILED
        await app.rewind(job.id, to="charge")
        assert await checkpoints(session, job.id) == ["reserve"]
        await drain(app)
        assert calls == ["reserve", "charge", "charge", "ship"]
        assert (await app.get(job.id)).state is State.COMPLETED


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("dead", {"state": "cancelled"}),
        ("dead", {"state": "failed"}),
        ("scheduled", {"state": "scheduled"}),
        ("scheduled", {"state": "retryable"}),
        ("scheduled", {"state": "waiting", "waits": '{"signals": ["go"]}'}),
        ("ready", {}),
    ],
)
async def test_job_in_any_state_but_running_is_rewound(session: Session, table: str, columns: dict[str, Any]) -> None:
    (job_id,) = await insert(session, table, attempt=3, lease=7, rescues=2, **columns)
    await session.connection.execute(
        "INSERT INTO awa.checkpoints (job_id, name, number, type, lease) "
        "VALUES ($1, 'a', 1, 'step', 1), ($1, 'b', 2, 'step', 1), ($1, 'c', 3, 'timer', 2)",
        job_id,
    )
    done = await rewind(session, job_id, to="b", write_events=True)
    assert (done.forgotten, done.cancelled) == (["b", "c"], [])
    job = await look(session, job_id)
    assert (job.state, job.attempt, job.lease, job.rescues) == (State.AVAILABLE, 0, 7, 0)
    assert await checkpoints(session, job_id) == ["a"]


async def test_running_job_is_refused(app: App, session: Session) -> None:
    goes_on = asyncio.Event()

    @app.job
    async def order(ctx: Context) -> None:
        await ctx.step("reserve", asyncio.sleep, 0)
        await goes_on.wait()

    async with app, working(app):
        job = await app.enqueue("order")
        await eventually(lambda: running(app, job.id))
        with pytest.raises(AwaError, match=f"job {job.id} is running: wait until it has ended, or cancel it"):
            await app.rewind(job.id, to="reserve")
        goes_on.set()
        await app.result(job.id, timeout="30s")


async def test_unknown_step_is_an_error_that_lists_the_steps(app: App, calls: Calls) -> None:
    async with app:
        job = await app.enqueue("order")
        with pytest.raises(InvalidStep, match=f"job {job.id} has no steps to rewind to"):
            await app.rewind(job.id, to="charge")
        await drain(app)
        with pytest.raises(InvalidStep, match=r'no step "pay"\. Its steps are "reserve", "charge", "ship"'):
            await app.rewind(job.id, to="pay")
        assert (await app.get(job.id)).state is State.COMPLETED
        with pytest.raises(JobNotFound):
            await app.rewind(job.id + 1, to="charge")


async def test_children_of_forgotten_steps_are_cancelled_with_their_children(app: App, session: Session) -> None:
    @app.job(queue="nobody")
    async def pack(n: int) -> int:
        return n

    @app.job
    async def box(ctx: Context) -> None:
        await (await ctx.spawn(pack, 9))

    @app.job
    async def order(ctx: Context) -> None:
        early = await ctx.spawn(pack, 1)
        late = await ctx.spawn(box)
        await early
        await late

    async with app, working(app, maintenance=True):
        job = await app.enqueue("order")
        await eventually(lambda: is_waiting(app, job.id))
        early, late = await app.children(job.id)
        await eventually(lambda: is_waiting(app, late.id))
        (below,) = await app.children(late.id)
    async with app:
        done = await app.client.rewind(job.id, to="box")
        assert (done.forgotten, done.cancelled) == (["box"], [late.id])
        found = {each.id: (await app.get(each.id)).state for each in (early, late, below)}
        assert found == {early.id: State.AVAILABLE, late.id: State.CANCELLED, below.id: State.CANCELLED}


async def test_only_children_of_the_job_are_cancelled(session: Session) -> None:
    """Whatever ids an operator has written into a checkpoint."""
    (other,) = await insert(session, "ready")
    (job_id,) = await insert(session, "dead", state="failed")
    await session.connection.execute(
        "INSERT INTO awa.checkpoints (job_id, name, number, type, lease, result) VALUES ($1, 'a', 1, 'spawn', 1, $2)",
        job_id,
        f"[[{other}, {other}], [5, 3], 7, null, [1, {10**30}]]",
    )
    assert (await rewind(session, job_id, to="a", write_events=False)).cancelled == []
    assert (await look(session, other)).state is State.AVAILABLE


async def test_job_whose_unique_key_another_job_holds_is_left_alone(app: App, session: Session, calls: Calls) -> None:
    async with app:
        job = await app.enqueue("order", unique=True)
        await drain(app)
        other = await app.enqueue("order", unique=True)
        assert other.id != job.id
        with pytest.raises(AwaError, match="was not rewound: another job holds its unique key"):
            await app.rewind(job.id, to="charge")
        assert (await app.get(job.id)).state is State.COMPLETED
        await app.cancel(other.id)
        await app.rewind(job.id, to="charge")
        assert (await app.get(job.id)).state is State.AVAILABLE


async def test_checkpoints_that_cannot_be_restored_are_an_error(app: App, session: Session, calls: Calls) -> None:
    async with app:
        job = await app.enqueue("order")
        await drain(app)
        await session.connection.execute(
            """UPDATE awa.completed SET checkpoints = '[{"name": null, "number": 1}, {"name": "b", "number": 2}]'"""
        )
        with pytest.raises(AwaError, match=f"the checkpoints of job {job.id} cannot be restored"):
            await app.rewind(job.id, to="b")
        assert (await app.get(job.id)).state is State.COMPLETED


async def test_job_that_is_signalled_at_the_same_time_is_rewound_once(app: App, session: Session) -> None:
    ids = await insert(session, "scheduled", 100, state="waiting", waits='{"signals": ["go"]}', lease=1)
    await session.connection.execute(
        "INSERT INTO awa.checkpoints (job_id, name, number, type, lease) "
        "SELECT id, name, n, 'step', 1 FROM unnest($1::bigint[]) AS id, (VALUES ('a', 1), ('b', 2)) AS s(name, n)",
        ids,
    )
    async with app:
        await asyncio.gather(
            *(call for job_id in ids for call in (app.signal(job_id, "go"), app.rewind(job_id, to="b")))
        )
    rows = await session.connection.fetch("SELECT id FROM awa.ready ORDER BY id")
    assert [row["id"] for row in rows] == ids
    left = await session.connection.fetch("SELECT DISTINCT name FROM awa.checkpoints")
    assert [row["name"] for row in left] == ["a"]
    assert await session.connection.fetchval("SELECT count(*) FROM awa.signals") == 100
