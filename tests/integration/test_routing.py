"""A job without a queue is routed by its kind, whichever way it is enqueued."""  # F4

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from awa_py import App, Job, Unique
from awa_py.db import migrations
from awa_py.enqueue.enqueuer import COPY_MIN_JOBS
from awa_py.maintenance.cron import evaluate, sync
from awa_py.model.routes import Routes
from awa_py.store.routes import delete_route, list_routes, route_kinds, set_route
from awa_py.store.schedules import trigger_schedule
from awa_py.store.session import Session
from tests.roles import installation
from tests.support import another_session, count, listen, look

pytestmark = pytest.mark.integration


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[App]:
    app = App(database_url, routes={"gh_*": "gh", "slack_*": "slack"})

    @app.job(queue="own")
    async def gh_declared() -> None: ...

    async with app:
        yield app


async def queue_of(app: App, job: Job) -> str:
    """Return the queue of the job. It is the one that the enqueue returned."""
    found = await app.get(job.id)
    assert found == job
    return found.queue


# What is enqueued, its queue with the routes in code, and with those that `operate` sets.
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("gh_issue", {}, "gh", "gh-priority"),
    ("gh_issue", {"queue": "mine"}, "mine", "mine"),
    ("gh_issue", {"queue": "default"}, "default", "default"),
    ("gh_hook_push", {}, "gh", "hooks"),
    ("gh_hook_ping", {}, "gh", "quick"),
    ("gh_declared", {}, "own", "own"),
    ("slack_post", {}, "slack", "slack"),
    ("work", {}, "default", "default"),
]


async def operate(session: Session) -> None:
    for pattern, queue in {"gh_*": "gh-priority", "gh_hook_*": "hooks", "gh_hook_ping": "quick"}.items():
        await set_route(session, pattern, queue)


@pytest.mark.parametrize("options", [{}, {"delay": "1h"}, {"unique": Unique(key="k")}], ids=["now", "later", "unique"])
async def test_single_enqueue_is_routed(app: App, session: Session, options: dict[str, Any]) -> None:
    for kind, chosen, by_code, _ in CASES:
        assert await queue_of(app, await app.enqueue(kind, **chosen, **options)) == by_code
        await session.connection.execute("DELETE FROM awa.unique_keys")
    await operate(session)
    for kind, chosen, _, by_operator in CASES:
        assert await queue_of(app, await app.enqueue(kind, **chosen, **options)) == by_operator
        await session.connection.execute("DELETE FROM awa.unique_keys")


async def test_group_commit_is_routed(app: App, session: Session) -> None:
    await operate(session)
    jobs = await asyncio.gather(*(app.enqueue(kind, **options) for kind, options, *_ in CASES))
    for job, (*_, by_operator) in zip(jobs, CASES, strict=True):
        assert await queue_of(app, job) == by_operator


@pytest.mark.parametrize("times", [1, COPY_MIN_JOBS], ids=["by JSON", "by COPY"])
@pytest.mark.parametrize("delay", [None, "1h"], ids=["now", "later"])
async def test_copy_is_routed(app: App, session: Session, times: int, delay: str | None) -> None:
    wanted = [app.new(kind, **options, delay=delay) for kind, options, *_ in CASES] * times
    jobs = await app.enqueue_many(wanted)
    for job, (_, _, by_code, _) in zip(jobs[-len(CASES) :], CASES, strict=True):
        assert await queue_of(app, job) == by_code
    await operate(session)
    jobs = await app.enqueue_many(wanted)
    for job, (*_, by_operator) in zip(jobs[-len(CASES) :], CASES, strict=True):
        assert await queue_of(app, job) == by_operator


async def test_sql_enqueue_is_routed(app: App, session: Session) -> None:
    async def put(call: str) -> str:
        return (await look(session, await session.connection.fetchval(f"SELECT awa.enqueue({call})"))).queue

    assert await put("'gh_issue'") == "default"  # routes in code do not apply to SQL
    await operate(session)
    assert await put("'gh_issue'") == "gh-priority"
    assert await put("'gh_issue', queue => 'mine'") == "mine"
    assert await put("'work'") == "default"


async def test_schedule_is_routed(database_url: str, session: Session) -> None:
    app = App(database_url)

    @app.cron("* * * * *")
    @app.job
    async def gh_sync() -> None: ...

    @app.cron("* * * * *")
    @app.job(queue="own")
    async def gh_own() -> None: ...

    app.route("gh_*", "gh")  # after the schedule was declared
    await sync(session, app.registry.schedules)

    async def fire() -> dict[str, str]:
        await session.connection.execute("DELETE FROM awa.ready")
        await session.connection.execute(
            "UPDATE awa.cron SET effective_from = now() - interval '1 hour', last_enqueued_at = NULL, next_at = NULL"
        )
        assert (await evaluate(session)).rows_changed == 2
        return {row[0]: row[1] for row in await session.connection.fetch("SELECT kind, queue FROM awa.ready")}

    assert await fire() == {"gh_sync": "gh", "gh_own": "own"}
    await operate(session)
    assert await fire() == {"gh_sync": "gh-priority", "gh_own": "own"}
    triggered = await trigger_schedule(session, "gh_sync")
    assert triggered is not None
    assert (await look(session, triggered)).queue == "gh-priority"


async def test_producer_is_routed(fresh_database_url: str) -> None:
    async with installation(fresh_database_url) as installed:
        await migrations.migrate(installed.database, roles=True)
        async with another_session(installed.database) as session:
            await operate(session)
        for role in ("producer", "worker"):
            login = await installed.login(role)
            async with App(login.url, schema=installed.name, routes={"gh_*": "gh", "slack_*": "slack"}) as app:
                assert (await app.enqueue("gh_issue")).queue == "gh-priority"
                many = await app.enqueue_many([app.new("gh_hook_ping"), app.new("slack_post")] * COPY_MIN_JOBS)
                assert [job.queue for job in many[-2:]] == ["quick", "slack"]


async def test_login_that_cannot_read_routes_calls_functions(fresh_database_url: str) -> None:
    async with installation(fresh_database_url) as installed:
        await migrations.migrate(installed.database, roles=True)
        login = await installed.login("worker")
        await installed.execute(f"REVOKE SELECT ON {installed.name}.routes FROM {installed.name}_worker")
        async with App(login.url, schema=installed.name) as app:
            assert (await app.enqueue("work")).queue == "default"
            assert len(await app.enqueue_many([app.new("work")] * COPY_MIN_JOBS)) == COPY_MIN_JOBS


async def test_workers_of_the_routed_queue_are_woken(app: App, session: Session) -> None:
    await operate(session)
    notifications = await listen(session, "gh", "gh-priority", "hooks")
    await app.enqueue("gh_issue")
    await app.enqueue_many([app.new("gh_hook_push")] * COPY_MIN_JOBS)
    await session.connection.execute("SELECT pg_notify('awa', 'end:')")
    assert await count(session.connection, "SELECT count(*) FROM awa.ready") == 1 + COPY_MIN_JOBS
    await asyncio.sleep(0)
    assert notifications == ["ready:gh-priority", "ready:hooks", "end:"]


async def test_python_and_sql_choose_the_same_pattern(session: Session) -> None:
    patterns = ["*", "a*", "ab*", "abc", "abc*", "ab_c*", "a%*", "A*", "ü*", "a.b", "\\*"]
    for pattern in patterns:
        await set_route(session, pattern, f"to {pattern}")
    kinds = ["a", "ab", "abc", "abcd", "ab_c", "abxc", "a%b", "axb", "Abc", "üb", "a.b", "a.bc", "\\x", "b", "*"]
    code = Routes({pattern: f"to {pattern}" for pattern in patterns})
    assert await route_kinds(session, kinds) == {kind: code.queue_for(kind) for kind in kinds}
    await delete_route(session, "*")
    assert "b" not in await route_kinds(session, kinds)


class TestRows:
    async def test_routes_can_be_set_changed_and_deleted(self, session: Session) -> None:
        await set_route(session, "gh_*", "gh")
        (route,) = await list_routes(session)
        await set_route(session, "gh_*", "gh")
        assert await list_routes(session) == [route]  # an unchanged route is not written
        await set_route(session, "gh_*", "other")
        (changed,) = await list_routes(session)
        assert (changed.pattern, changed.queue) == ("gh_*", "other")
        assert changed.updated_at > route.updated_at
        assert [await delete_route(session, "gh_*"), await delete_route(session, "gh_*")] == [True, False]

    @pytest.mark.parametrize(("pattern", "queue"), [("g*h", "q"), ("", "q"), ("x" * 201, "q"), ("gh", "a,b")])
    async def test_table_refuses_an_invalid_route(self, session: Session, pattern: str, queue: str) -> None:
        with pytest.raises(asyncpg.CheckViolationError):
            await set_route(session, pattern, queue)
