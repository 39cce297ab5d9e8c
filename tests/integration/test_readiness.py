"""Readiness problems of a worker and of a candidate."""

import asyncio

from awa_py import App
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from tests.support import QUICK, eventually, working


async def test_running_worker_has_no_problems(database: Database) -> None:
    app = App(database.url, settings=QUICK)
    assert app.worker(["default"]).problems() == ["the database has not been reached yet"]
    async with working(app) as worker:
        await eventually(lambda: not worker.problems())
        worker.stop()
        assert worker.problems() == ["the worker is stopping"]


async def test_worker_that_does_not_listen_has_a_problem(database: Database) -> None:
    app = App(database.url, settings=QUICK)
    async with working(app) as worker:
        assert worker._parts is not None
        worker._parts.listener.active = False
        assert worker.problems() == ["not listening for notifications: the worker polls"]


async def test_candidate_in_the_election_has_no_problems(database: Database) -> None:
    app = App(database.url, settings=QUICK)
    first, second = app.candidate(), app.candidate()
    assert first.problems() == ["not taking part in the election: the database has not been reached yet"]
    for candidate in (first, second):
        candidate.start()
    try:
        await eventually(lambda: not first.problems() and not second.problems())
        await eventually(lambda: first.is_leader or second.is_leader)
    finally:
        await asyncio.gather(first.stop(), second.stop())
    assert first.problems() == second.problems() == ["no longer taking part in the election"]


async def test_candidate_without_a_schema_has_a_problem(fresh_database_url: str) -> None:
    app = App(fresh_database_url, settings=QUICK)
    app.connect_to(Database(fresh_database_url, Schema()))
    candidate = app.candidate()
    candidate.start()
    try:
        await eventually(lambda: "cannot take part in the election" in candidate.problems()[0])
        assert "run `awa migrate`" in candidate.problems()[0]
    finally:
        await candidate.stop()
