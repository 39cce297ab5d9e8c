"""Single enqueues at the same time share a commit, and nothing else: neither errors nor cancellations."""

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

BAD = NewJob(kind="spoilt", parent_id=2**70)


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[App]:
    app = App(database_url)

    @app.job
    async def work(number: int = 0) -> None: ...

    async with asyncio.timeout(2 * PATIENCE_S), app:
        yield app


@asynccontextmanager
async def held_up(session: Session) -> AsyncIterator[Callable[[], Coroutine[Any, Any, None]]]:
    """Nothing can be enqueued inside; what it gives waits until a first one tries to."""

    async def somebody_waits() -> None:
        await eventually(
            lambda: session.connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted")  # the first one's
        )

    async with session.connection.transaction():
        await session.connection.execute("LOCK TABLE awa.ready IN ACCESS EXCLUSIVE MODE")
        yield somebody_waits


def begin(app: App, *jobs: NewJob) -> list["asyncio.Task[Job]"]:
    return [asyncio.create_task(app.client.enqueue(job)) for job in jobs]


def numbered(app: App, *numbers: int) -> list[NewJob]:
    return [app.new("work", {"number": number}) for number in numbers]


async def test_those_that_come_during_a_commit_go_together(app: App, session: Session) -> None:
    async with held_up(session) as somebody_waits:
        (first,) = begin(app, *numbered(app, 0))
        await somebody_waits()
        others = begin(app, *numbered(app, *range(1, 40)), app.new("work", delay="1h"))
        await asyncio.sleep(0)
    jobs = await asyncio.gather(first, *others)
    assert [job.args.get("number") for job in jobs] == [*range(40), None]
    assert len({job.created_at for job in jobs[1:]}) == 1  # one statement
    assert jobs[0].created_at != jobs[1].created_at
    assert [job.id for job in jobs] == sorted(job.id for job in jobs)
    assert [job.state for job in jobs] == [State.AVAILABLE] * 40 + [State.SCHEDULED]
    for job in (jobs[0], jobs[1], jobs[-1]):
        assert await app.get(job.id) == job


async def test_a_job_is_there_when_its_caller_returns(app: App, session: Session) -> None:
    async def enqueue(number: int) -> None:
        for _ in range(10):
            job = await app.enqueue("work", {"number": number})
            assert await session_lock(job.id)

    lock = asyncio.Lock()

    async def session_lock(job_id: int) -> bool:
        async with lock:  # one statement at a time on the test's own connection
            return bool(await session.connection.fetchval("SELECT true FROM awa.ready WHERE id = $1", job_id))

    await asyncio.gather(*(enqueue(number) for number in range(32)))
    assert await states(session) == {"available": 320}


async def test_the_order_of_each_caller_is_kept(app: App, session: Session) -> None:
    async def enqueue(queue: str) -> None:
        for number in range(20):
            await app.enqueue("work", {"number": number}, queue=queue)

    await asyncio.gather(*(enqueue(f"queue {n}") for n in range(16)))
    for n in range(16):
        rows = await session.connection.fetch(
            "SELECT args ->> 'number' AS number FROM awa.ready WHERE queue = $1 ORDER BY pos", f"queue {n}"
        )
        assert [int(row["number"]) for row in rows] == list(range(20))


async def test_one_that_is_refused_does_not_fail_the_others(app: App, session: Session) -> None:
    async with held_up(session) as somebody_waits:
        (first,) = begin(app, *numbered(app, 0))
        await somebody_waits()
        others = begin(app, *numbered(app, 1), BAD, *numbered(app, 2, 3), BAD)
        await asyncio.sleep(0)
    answers = await asyncio.gather(first, *others, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert [str(refusal)[:39] for refusal in refused] == ["spoilt: PostgreSQL refused the job: inv"] * 2
    assert [type(answers[n]) for n in (2, 5)] == [InvalidJob, InvalidJob]
    assert [answer.args["number"] for answer in answers if isinstance(answer, Job)] == [0, 1, 2, 3]
    assert await states(session) == {"available": 4}


async def test_one_that_is_cancelled_while_it_waits_leaves_the_others_alone(app: App, session: Session) -> None:
    async with held_up(session) as somebody_waits:
        (first,) = begin(app, *numbered(app, 0))
        await somebody_waits()
        second, third, fourth = begin(app, *numbered(app, 1, 2, 3))
        await asyncio.sleep(0)
        third.cancel()
        await asyncio.wait({third})
    assert [job.args["number"] for job in await asyncio.gather(first, second, fourth)] == [0, 1, 3]
    assert third.cancelled()
    assert await states(session) == {"available": 3}  # it was not yet on its way


async def test_the_first_one_cancelled_leaves_those_that_wait_alone(app: App, session: Session) -> None:
    async with held_up(session) as somebody_waits:
        (first,) = begin(app, *numbered(app, 0))
        await somebody_waits()
        others = begin(app, *numbered(app, 1, 2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        assert first.cancelled()
    assert [job.args["number"] for job in await asyncio.gather(*others)] == [1, 2]
    assert await states(session) == {"available": 2}


async def test_one_cancelled_on_its_way_leaves_its_batch_alone(app: App, session: Session) -> None:
    async with held_up(session) as somebody_waits:
        (first,) = begin(app, *numbered(app, 0))
        await somebody_waits()
        others = begin(app, *numbered(app, 1, 2, 3))
        await asyncio.sleep(0)
    await first
    async with held_up(session) as somebody_waits:  # whether they are on their way by now or not
        others[1].cancel()
        await asyncio.wait({others[1]})
    assert [job.args["number"] for job in await asyncio.gather(others[0], others[2])] == [1, 3]


async def test_a_lost_connection_is_an_error_for_whom_it_concerns_and_then_forgotten(
    app: App, session: Session
) -> None:
    async with held_up(session) as somebody_waits:
        (first,) = begin(app, *numbered(app, 0))
        await somebody_waits()
        others = begin(app, *numbered(app, 1, 2))
        await asyncio.sleep(0)
        await session.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'awa client' AND datname = current_database()"
        )
        with pytest.raises(Exception, match=r"terminat|clos"):
            await first
    assert [job.args["number"] for job in await asyncio.gather(*others)] == [1, 2]
    assert await states(session) == {"available": 2}


async def test_a_connection_that_was_lost_in_between_goes_unnoticed(app: App, session: Session) -> None:
    await app.enqueue("work")
    await session.connection.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE application_name = 'awa client' AND datname = current_database()"
    )
    await asyncio.sleep(0.05)  # the end of the connection has been read
    await app.enqueue("work")
    assert await states(session) == {"available": 2}


async def test_the_pool_gets_its_connection_back(app: App) -> None:
    await app.enqueue("work")
    assert app.pool.get_idle_size() == 0
    await eventually(lambda: app.pool.get_idle_size() == 1)
    await app.enqueue("work")
    assert app.pool.get_size() == 1


async def test_a_unique_job_that_has_to_wait_holds_nobody_up(app: App, session: Session) -> None:
    transaction = session.connection.transaction()
    await transaction.start()
    first = await app.enqueue("work", unique=Unique(key="k"), connection=session.connection)
    second = asyncio.create_task(app.enqueue("work", unique=Unique(key="k")))
    await eventually(lambda: session.connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))
    await asyncio.gather(*(app.enqueue("work") for _ in range(5)))
    assert not second.done()
    await transaction.commit()
    assert (await second).id == first.id


async def test_closing_waits_for_what_is_under_way(database_url: str, session: Session) -> None:
    app = App(database_url)
    async with app:
        tasks = [asyncio.create_task(app.enqueue("work")) for _ in range(20)]
        await asyncio.sleep(0)
    assert len({job.id for job in await asyncio.gather(*tasks)}) == 20
    assert await states(session) == {"available": 20}
    async with app:  # and it opens again
        await app.enqueue("work")


async def test_however_many_wait_a_statement_has_its_limits(
    app: App, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    insert = GroupCommit._insert

    async def watched(self: GroupCommit, batch: Any) -> None:
        sizes.append(len(batch))
        await insert(self, batch)

    monkeypatch.setattr(GroupCommit, "_insert", watched)
    await asyncio.gather(*(app.enqueue("work") for _ in range(MAX_JOBS + 11)))
    assert sizes == [MAX_JOBS, 10]
    assert await states(session) == {"available": MAX_JOBS + 11}
