"""Concurrent single enqueues share a commit, but not errors or cancellations."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from awa_py import App, InvalidJob, Job, NewJob, State, Unique
from awa_py.enqueue.group_commit import MAX_JOBS, GroupCommit
from awa_py.store.session import Session
from tests.support import PATIENCE_S, eventually, states

pytestmark = pytest.mark.integration

BAD = NewJob(kind="bad", parent_id=2**70)


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[App]:
    app = App(database_url)

    @app.job
    async def work(number: int = 0) -> None: ...

    async with asyncio.timeout(2 * PATIENCE_S), app:
        yield app


@asynccontextmanager
async def blocked(session: Session) -> AsyncIterator[Callable[[], Coroutine[Any, Any, None]]]:
    """Block all enqueues inside. Yield a function that waits until the first one is blocked."""

    async def is_blocked() -> None:
        await eventually(lambda: session.connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    async with session.connection.transaction():
        await session.connection.execute("LOCK TABLE awa.ready IN ACCESS EXCLUSIVE MODE")
        yield is_blocked


def start(app: App, *jobs: NewJob) -> list["asyncio.Task[Job]"]:
    return [asyncio.create_task(app.client.enqueue(job)) for job in jobs]


def numbered(app: App, *numbers: int) -> list[NewJob]:
    return [app.new("work", {"number": number}) for number in numbers]


async def test_jobs_enqueued_during_a_commit_are_written_together(app: App, session: Session) -> None:
    async with blocked(session) as is_blocked:
        (first,) = start(app, *numbered(app, 0))
        await is_blocked()
        others = start(app, *numbered(app, *range(1, 40)), app.new("work", delay="1h"))
        await asyncio.sleep(0)
    jobs = await asyncio.gather(first, *others)
    assert [job.args.get("number") for job in jobs] == [*range(40), None]
    assert len({job.created_at for job in jobs[1:]}) == 1  # one statement
    assert jobs[0].created_at != jobs[1].created_at
    assert [job.id for job in jobs] == sorted(job.id for job in jobs)
    assert [job.state for job in jobs] == [State.AVAILABLE] * 40 + [State.SCHEDULED]
    for job in (jobs[0], jobs[1], jobs[-1]):
        assert await app.get(job.id) == job


async def test_job_is_committed_when_its_caller_returns(app: App, session: Session) -> None:
    async def enqueue(number: int) -> None:
        for _ in range(10):
            job = await app.enqueue("work", {"number": number})
            assert await is_committed(job.id)

    lock = asyncio.Lock()

    async def is_committed(job_id: int) -> bool:
        async with lock:  # one statement at a time on the connection
            return bool(await session.connection.fetchval("SELECT true FROM awa.ready WHERE id = $1", job_id))

    await asyncio.gather(*(enqueue(number) for number in range(32)))
    assert await states(session) == {"available": 320}


async def test_order_of_each_caller_is_kept(app: App, session: Session) -> None:
    async def enqueue(queue: str) -> None:
        for number in range(20):
            await app.enqueue("work", {"number": number}, queue=queue)

    await asyncio.gather(*(enqueue(f"queue {n}") for n in range(16)))
    for n in range(16):
        rows = await session.connection.fetch(
            "SELECT args ->> 'number' AS number FROM awa.ready WHERE queue = $1 ORDER BY pos", f"queue {n}"
        )
        assert [int(row["number"]) for row in rows] == list(range(20))


async def test_rejected_job_does_not_fail_the_others(app: App, session: Session) -> None:
    async with blocked(session) as is_blocked:
        (first,) = start(app, *numbered(app, 0))
        await is_blocked()
        others = start(app, *numbered(app, 1), BAD, *numbered(app, 2, 3), BAD)
        await asyncio.sleep(0)
    answers = await asyncio.gather(first, *others, return_exceptions=True)
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    assert [str(error)[:39] for error in errors] == ["bad: PostgreSQL refused the job: invali"] * 2
    assert [type(answers[n]) for n in (2, 5)] == [InvalidJob, InvalidJob]
    assert [answer.args["number"] for answer in answers if isinstance(answer, Job)] == [0, 1, 2, 3]
    assert await states(session) == {"available": 4}


async def test_caller_cancelled_while_waiting_does_not_affect_the_others(app: App, session: Session) -> None:
    async with blocked(session) as is_blocked:
        (first,) = start(app, *numbered(app, 0))
        await is_blocked()
        second, third, fourth = start(app, *numbered(app, 1, 2, 3))
        await asyncio.sleep(0)
        third.cancel()
        await asyncio.wait({third})
    assert [job.args["number"] for job in await asyncio.gather(first, second, fourth)] == [0, 1, 3]
    assert third.cancelled()
    assert await states(session) == {"available": 3}  # it was not being written yet


async def test_cancelled_first_caller_does_not_affect_waiting_callers(app: App, session: Session) -> None:
    async with blocked(session) as is_blocked:
        (first,) = start(app, *numbered(app, 0))
        await is_blocked()
        others = start(app, *numbered(app, 1, 2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        assert first.cancelled()
    assert [job.args["number"] for job in await asyncio.gather(*others)] == [1, 2]
    assert await states(session) == {"available": 2}


async def test_caller_cancelled_during_the_write_does_not_affect_its_batch(app: App, session: Session) -> None:
    async with blocked(session) as is_blocked:
        (first,) = start(app, *numbered(app, 0))
        await is_blocked()
        others = start(app, *numbered(app, 1, 2, 3))
        await asyncio.sleep(0)
    await first
    async with blocked(session) as is_blocked:  # whether they are being written by now or not
        others[1].cancel()
        await asyncio.wait({others[1]})
    assert [job.args["number"] for job in await asyncio.gather(others[0], others[2])] == [1, 3]


async def test_lost_connection_fails_only_the_enqueue_that_used_it(app: App, session: Session) -> None:
    async with blocked(session) as is_blocked:
        (first,) = start(app, *numbered(app, 0))
        await is_blocked()
        others = start(app, *numbered(app, 1, 2))
        await asyncio.sleep(0)
        await session.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'awa client' AND datname = current_database()"
        )
        with pytest.raises(Exception, match=r"terminat|clos"):
            await first
    assert [job.args["number"] for job in await asyncio.gather(*others)] == [1, 2]
    assert await states(session) == {"available": 2}


async def test_connection_lost_between_enqueues_is_replaced(app: App, session: Session) -> None:
    await app.enqueue("work")
    await session.connection.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE application_name = 'awa client' AND datname = current_database()"
    )
    await asyncio.sleep(0.05)  # until the client has noticed it
    await app.enqueue("work")
    assert await states(session) == {"available": 2}


async def test_idle_connection_goes_back_to_the_pool(app: App) -> None:
    await app.enqueue("work")
    pool = app.client._pool
    assert pool.get_idle_size() == 0
    await eventually(lambda: pool.get_idle_size() == 1)
    await app.enqueue("work")
    assert pool.get_size() == 1


async def test_waiting_unique_job_does_not_delay_the_others(app: App, session: Session) -> None:
    transaction = session.connection.transaction()
    await transaction.start()
    first = await app.enqueue("work", unique=Unique(key="k"), connection=session.connection)
    second = asyncio.create_task(app.enqueue("work", unique=Unique(key="k")))
    await eventually(lambda: session.connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))
    await asyncio.gather(*(app.enqueue("work") for _ in range(5)))
    assert not second.done()
    await transaction.commit()
    assert (await second).id == first.id


async def test_close_waits_for_running_enqueues(database_url: str, session: Session) -> None:
    app = App(database_url)

    @app.job
    async def work() -> None: ...

    async with app:
        tasks = [asyncio.create_task(work.enqueue()) for _ in range(20)]
        await asyncio.sleep(0)
    assert len({job.id for job in await asyncio.gather(*tasks)}) == 20
    assert await states(session) == {"available": 20}
    async with app:  # it can be opened again
        await app.enqueue("work")


async def test_statement_has_a_maximum_of_jobs(app: App, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write = GroupCommit._write

    async def counting(self: GroupCommit, batch: Any) -> None:
        sizes.append(len(batch))
        await write(self, batch)

    monkeypatch.setattr(GroupCommit, "_write", counting)
    await asyncio.gather(*(app.enqueue("work") for _ in range(MAX_JOBS + 11)))
    assert sizes == [MAX_JOBS, 10]
    assert await states(session) == {"available": MAX_JOBS + 11}
