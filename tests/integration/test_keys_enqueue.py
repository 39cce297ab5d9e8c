"""A job's concurrency key is stored, however the job is enqueued."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from awa_py import App, InvalidJob, Job, NewJob, State, Unique
from awa_py.db import migrations
from awa_py.enqueue.enqueuer import COPY_MIN_JOBS
from awa_py.maintenance.cron import evaluate, sync
from awa_py.store.maintenance import promote_jobs
from awa_py.store.schedules import trigger_schedule
from awa_py.store.session import Session
from tests.roles import installation
from tests.support import FromNow, insert, insert_queue, insert_running, look, put, states

pytestmark = pytest.mark.integration

WITHOUT = (None, None, None)


def key_of(job: Job) -> tuple[str | None, int | None, bool | None]:
    return job.concurrency_key, job.concurrency_limit, job.ordered


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[App]:
    app = App(database_url)

    @app.job(concurrency_key="customer:{customer}", concurrency_limit=2)
    async def bill(customer: int, amount: int = 0) -> None: ...

    @app.job
    async def work(number: int = 0) -> None: ...

    async with app:
        yield app


async def stored(app: App, job: Job) -> tuple[str | None, int | None, bool | None]:
    """Return the key of the job. It is the one that the enqueue returned."""
    found = await app.get(job.id)
    assert replace(found, is_new=job.is_new) == job
    return key_of(found)


async def test_single_enqueue_stores_the_key(app: App, session: Session) -> None:
    job = await app.enqueue("bill", {"customer": 7})
    assert await stored(app, job) == ("customer:7", 2, False)
    assert await stored(app, await app.enqueue("work")) == WITHOUT
    plain = await app.enqueue("work", concurrency_key="k")
    assert await stored(app, plain) == ("k", 1, False)
    ordered = await app.enqueue("work", {"number": 3}, concurrency_key="n:{number}", ordered=True)
    assert await stored(app, ordered) == ("n:3", 1, True)
    async with session.connection.transaction():
        inside = await app.enqueue("bill", {"customer": 8}, connection=session.connection)
    assert await stored(app, inside) == ("customer:8", 2, False)


async def test_scheduled_and_unique_jobs_have_their_keys(app: App, session: Session) -> None:
    later = await app.enqueue("bill", {"customer": 7}, delay="1h")
    assert later.state is State.SCHEDULED
    assert await stored(app, later) == ("customer:7", 2, False)
    first = await app.enqueue("bill", {"customer": 7}, unique=True)
    again = await app.enqueue("bill", {"customer": 7}, unique=True)
    assert (again.id, again.is_new) == (first.id, False)
    assert await stored(app, again) == ("customer:7", 2, False)
    await session.connection.execute("UPDATE awa.scheduled SET run_at = now()")
    await promote_jobs(session, limit=10)
    assert key_of(await app.get(later.id)) == ("customer:7", 2, False)


async def test_group_commit_keeps_order_and_keys(app: App) -> None:
    jobs = await asyncio.gather(
        *(app.enqueue("work", {"number": n}, concurrency_key="k{number}", ordered=n % 2 == 0) for n in range(50))
    )
    assert [job.id for job in jobs] == sorted(job.id for job in jobs)
    for n, job in enumerate(jobs):
        assert await stored(app, job) == (f"k{n}", 1, n % 2 == 0)


@pytest.mark.parametrize("count", [3, COPY_MIN_JOBS], ids=["by JSON", "by COPY"])
async def test_copy_stores_the_keys(app: App, count: int) -> None:
    odd = 'ünï \\. "quoted" {b race}'
    shapes: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
        ({}, WITHOUT),
        ({"concurrency_key": "k:{number}", "concurrency_limit": 5}, ("k:{number}", 5, False)),
        ({"concurrency_key": "{number}", "ordered": True, "delay": "1h"}, ("{number}", 1, True)),
        ({"concurrency_key": odd, "queue": "q", "tags": ["t"]}, (odd, 1, False)),
        ({"delay": "1h"}, WITHOUT),
    ]
    wanted = [app.new("work", {"number": n}, **options) for n in range(count) for options, _ in shapes]
    jobs = await app.enqueue_many(wanted)
    assert [job.id for job in jobs] == sorted({job.id for job in jobs})
    for n in (0, count - 1):
        for job, (_, (key, limit, ordered)) in zip(jobs[n * len(shapes) :], shapes, strict=False):
            filled = key and key.replace("{number}", str(n))
            assert await stored(app, job) == (filled, limit, ordered)


async def test_jobs_of_one_spec_can_have_a_key_or_none(app: App) -> None:
    keyed, plain = NewJob(kind="work", concurrency_key="k", concurrency_limit=2), NewJob(kind="work")
    jobs = await app.enqueue_many([NewJob.from_spec(keyed.spec, "{}"), keyed, plain] * COPY_MIN_JOBS)
    assert [await stored(app, job) for job in jobs[-3:]] == [WITHOUT, ("k", 2, False), WITHOUT]


async def test_enqueue_many_with_unique_jobs_stores_the_keys(app: App) -> None:
    unique = [app.new("bill", {"customer": n}, unique=Unique(key=str(n))) for n in range(COPY_MIN_JOBS)]
    jobs = await app.enqueue_many(unique)
    assert await stored(app, jobs[-1]) == (f"customer:{COPY_MIN_JOBS - 1}", 2, False)


async def test_producer_stores_the_keys(fresh_database_url: str) -> None:
    async with installation(fresh_database_url) as installed:
        await migrations.migrate(installed.database, roles=True)
        producer = await installed.login("producer")
        async with App(producer.url, schema=installed.name) as app:
            one = await app.enqueue("work", {"n": 1}, concurrency_key="k{n}", ordered=True)
            many = await app.enqueue_many([app.new("work", concurrency_key="k", concurrency_limit=3)] * COPY_MIN_JOBS)
        async with App(fresh_database_url, schema=installed.name) as owner:
            assert await stored(owner, one) == ("k1", 1, True)
            assert await stored(owner, many[-1]) == ("k", 3, False)


async def test_sql_enqueue_stores_the_key(app: App, session: Session) -> None:
    query = "SELECT awa.enqueue('work', concurrency_key => 'k', concurrency_limit => 4)"
    assert key_of(await look(session, await session.connection.fetchval(query))) == ("k", 4, False)
    query = "SELECT awa.enqueue('work', concurrency_key => 'k:{n}', ordered => true)"  # a literal text
    assert key_of(await look(session, await session.connection.fetchval(query))) == ("k:{n}", 1, True)
    query = "SELECT awa.enqueue('work', concurrency_limit => 4)"
    assert key_of(await look(session, await session.connection.fetchval(query))) == WITHOUT


async def test_schedule_stores_the_key(database_url: str, session: Session) -> None:
    app = App(database_url)

    @app.cron("* * * * *", name="tick")
    @app.job(concurrency_key="one by one", concurrency_limit=3)
    async def work() -> None: ...

    await sync(session, app.registry.schedules)
    assert (await sync(session, app.registry.schedules)).rows_changed == 0
    triggered = await trigger_schedule(session, "tick")
    assert triggered is not None
    assert key_of(await look(session, triggered)) == ("one by one", 3, False)
    await session.connection.execute("UPDATE awa.cron SET effective_from = now() - interval '1 hour'")
    assert (await evaluate(session)).rows_changed == 1
    rows = await session.connection.fetch("SELECT concurrency_key, concurrency_limit, ordered FROM awa.ready")
    assert {tuple(row) for row in rows} == {("one by one", 3, False)}


@pytest.mark.parametrize("many", [1, 3, COPY_MIN_JOBS], ids=["one", "by JSON", "by COPY"])
async def test_key_too_large_for_an_index_is_refused_with_a_clear_error(app: App, session: Session, many: int) -> None:
    wide = "".join(chr(0x10000 + n * 37) for n in range(500))  # 2,000 bytes, and hard to compress
    queue = "".join(chr(0x20000 + n * 41) for n in range(200))
    new = app.new("work", concurrency_key=wide, queue=queue)
    with pytest.raises(InvalidJob, match="PostgreSQL refused the job: index row size"):
        await (app.client.enqueue(new) if many == 1 else app.enqueue_many([new] * many))
    assert await states(session) == {}


async def test_error_names_the_refused_job_among_jobs_with_keys(app: App) -> None:
    keyed = app.new("work", concurrency_key="k", tags=["t"])
    bad = NewJob(kind="spoilt", concurrency_key="k", parent_id=2**70)
    with pytest.raises(InvalidJob, match=rf"spoilt \(job {COPY_MIN_JOBS + 1} of {2 * COPY_MIN_JOBS + 1}\)"):
        await app.enqueue_many([*[keyed] * COPY_MIN_JOBS, bad, *[keyed] * COPY_MIN_JOBS])


class TestExplain:
    async def test_explain_names_the_running_jobs_of_a_key_at_its_limit(self, app: App, session: Session) -> None:
        key: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 2, "ordered": False}
        running = await insert_running(session, 1, queue="elsewhere", **key)
        job, behind = await put(session, *[NewJob(kind="work", concurrency_key="k", concurrency_limit=2)] * 2)
        assert "limit" not in " ".join(await app.explain(job))
        running += await insert_running(session, 1, **key)
        explanation = " ".join(await app.explain(behind))
        assert (
            f'Its concurrency key "k" is at its limit: 2 of 2 jobs are running (jobs {running[0]}, {running[1]}).'
            in explanation
        )
        assert '1 job with its concurrency key "k" is ahead of it.' in explanation

    async def test_explain_names_the_first_job_of_an_ordered_key(self, app: App, session: Session) -> None:
        new = NewJob(kind="work", concurrency_key="k", ordered=True)
        first, second = await put(session, new, new)
        assert f'Its concurrency key "k" is ordered: job {first} (available) must end first.' in await app.explain(
            second
        )
        assert "ordered" not in " ".join(await app.explain(first))
        await session.connection.execute("DELETE FROM awa.ready WHERE id = $1", first)
        key: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 1, "ordered": True}
        await insert(session, "scheduled", id=first, state="retryable", lease=1, attempt=1, **key)
        assert f'Its concurrency key "k" is ordered: job {first} (retryable) must end first.' in await app.explain(
            second
        )
        await session.connection.execute("UPDATE awa.scheduled SET lease = 0, attempt = 0, state = 'scheduled'")
        assert "ordered" not in " ".join(await app.explain(second))  # it has not been claimed before

    async def test_explain_names_the_limits_of_the_queue(self, app: App, session: Session) -> None:
        (job,) = await put(session, NewJob(kind="work"))
        await insert_running(session, 2, limited=True)
        await insert_running(session, 1, queue="other", limited=True)
        await insert_queue(session, max_workers=3)
        assert "full" not in " ".join(await app.explain(job))
        await insert_queue(session, max_workers=2, rate_jobs=10, rate_period=timedelta(minutes=1))
        explanation = " ".join(await app.explain(job))
        assert 'Its queue "default" is at its max_workers: 2 of 2 jobs are running.' in explanation
        assert 'Its queue "default" starts at most 10 jobs in 1m.' in explanation
        await insert_queue(session, throttled_until=FromNow(60), throttle_reason="slow down")
        explanation = " ".join(await app.explain(job))
        assert 'Its queue "default" is throttled until ' in explanation
        assert "(in 60s): slow down." in explanation
        await insert_queue(session, throttled_until=FromNow(-1))
        assert "throttled" not in " ".join(await app.explain(job))

    async def test_explain_counts_jobs_ahead_of_the_same_key(self, app: App, session: Session) -> None:
        keyed = NewJob(kind="work", concurrency_key="k")
        *_, last_keyed, last = await put(session, NewJob(kind="work"), keyed, keyed, keyed, NewJob(kind="work"))
        assert '1 job is ahead of it in its queue "default".' in await app.explain(last)
        assert '2 jobs with its concurrency key "k" are ahead of it.' in await app.explain(last_keyed)
