"""No secret, e.g. a job's arguments, appears in logs, metrics or error texts: the tests put one in each place."""

import json
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit
from uuid import uuid4

import pytest

import awa_py as awa
from awa_py import App, NewJob, State
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.settings import database_url as checked_url
from awa_py.store.session import Session
from tests.acceptance.conftest import Awa
from tests.processes import FAST, eventually, processes
from tests.support import insert_running, leading

pytestmark = pytest.mark.integration

KINDS = (
    "answer",
    "breaks",
    "breaks_again",
    "wants_a_time",
    "cannot_be_stored",
    "not_even_by_postgresql",
    "too_large",
    "too_long",
    "blocks",
    "snoozes_once",
    "together",
    "enqueues_badly",
    "needs_more",
)
COPIED = 200  # jobs: from this number on, they are enqueued with COPY

TASKS = """
import asyncio
import logging
import time
from datetime import datetime

import awa_py as awa

app = awa.App()
mine = logging.getLogger("mine")


@app.job
async def answer(token: str) -> dict:
    mine.info("a line of my own")
    return {"token": token}


@app.job(max_attempts=1)
async def breaks(token: str) -> None:
    raise ValueError("it broke")


@app.job
async def breaks_again(token: str) -> None:
    raise ValueError("it broke")


@app.job(max_attempts=1)
async def wants_a_time(token: datetime) -> None: ...


@app.job
async def cannot_be_stored(token: str) -> object:
    return {"ok": token, "bad": object()}


@app.job
async def not_even_by_postgresql(token: str) -> object:
    return {"ok": token + chr(0)}


@app.job
async def too_large(token: str) -> str:
    return token * 100_000


@app.job(timeout="200ms", max_attempts=1)
async def too_long(token: str) -> None:
    await asyncio.sleep(60)


@app.job
async def blocks(token: str) -> None:
    time.sleep(1.5)


@app.job
def snoozes_once(ctx: awa.Context, token: str) -> None:
    if ctx.job.run_at == ctx.job.created_at:
        raise awa.Snooze(0.1)


@app.job(batch=10)
def together(jobs: list) -> None:
    for job in jobs:
        job.complete(job.args)


@app.job(max_attempts=1)
async def enqueues_badly(token: str) -> None:
    await app.client.enqueue(awa.NewJob(kind="answer", args_json='["' + token + '"]'))


@app.job(max_attempts=1)
async def needs_more(token: str, more: str) -> None: ...


@app.job
async def waits(token: str) -> None:
    await asyncio.sleep(3600)
"""


class Secret:
    """Secrets that must not appear anywhere, each with the place where it was put."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}

    def __call__(self, place: str) -> str:
        return self.add(place, f"{place.replace(' ', '')}x{uuid4().hex}")

    def add(self, place: str, text: str) -> str:
        self._places[text] = place
        return text

    def assert_hidden(self, *outputs: str) -> None:
        for text, place in self._places.items():
            for output in outputs:
                assert text not in output, f"the secret in {place} is visible: {_excerpt(output, text)}"


def _excerpt(output: str, text: str) -> str:
    at = output.index(text)
    return f"…{output[max(0, at - 300) : at]}<HERE>{output[at + len(text) :][:100]}…"


@pytest.fixture
def secret() -> Secret:
    return Secret()


class Colour(Enum):
    RED = "red"


@dataclass
class Card:
    number: int

    def __post_init__(self) -> None:
        self.number = int(self.number)


@dataclass
class Holder:
    card: str
    since: date


def full_text(error: BaseException) -> str:
    """Return all that a log could show of the error, including its causes."""
    return "".join([*traceback.format_exception(error), repr(error), str(error.__cause__)])


def typed(hint: Any) -> Any:
    def handler(value: Any) -> None: ...

    handler.__annotations__["value"] = hint
    return handler


INVALID_ARGUMENTS: list[tuple[Any, Callable[[str], object]]] = [
    (int, lambda token: token),
    (datetime, lambda token: token),
    (Literal["a", "b"], lambda token: token),
    (Colour, lambda token: token),
    (list[int], lambda token: [1, token]),
    (dict[str, int], lambda token: {f"{token}!": token}),
    (dict[int, int], lambda token: {token: 1}),
    (Holder, lambda token: {"card": token, "since": token}),
    (Holder, lambda token: {"card": token, f"{token}?": 1}),
    (Card, lambda token: {"number": token}),
    (str, lambda token: token * 100_000),
    (str, lambda token: f"{token}\x00"),
    (str, lambda token: f"{token}\ud800"),
    (Any, lambda token: {f"{token}-": object(), "b": token}),
    (Any, lambda token: [token, float("nan")]),
    (Any, lambda token: {token, f"{token}2"}),
]


class TestEnqueueErrors:
    @pytest.mark.parametrize("by_name", [False, True])
    @pytest.mark.parametrize(("hint", "make"), INVALID_ARGUMENTS)
    def test_error_for_invalid_arguments_hides_them(
        self, hint: Any, make: Callable[[str], object], by_name: bool, secret: Secret
    ) -> None:
        app = App("postgresql://nowhere.invalid/x")
        job = app.job(kind="work")(typed(hint))
        value = make(secret("an argument"))
        with pytest.raises(awa.InvalidJob) as raised:
            app.new("work", {"value": value}) if by_name else job.new(value)
        assert str(raised.value).startswith(("handler: ", "work: "))
        secret.assert_hidden(full_text(raised.value))

    @pytest.mark.parametrize(
        "options",
        [
            lambda token: {"metadata": {"a": token, "b": object()}},
            lambda token: {"metadata": {"a": token * 100_000}},
            lambda token: {"tags": [token * 10]},
            lambda token: {"unique": awa.Unique(key=f"{token}\x00")},
            lambda token: {"unique": awa.Unique(key=token, states=())},
        ],
    )
    def test_error_for_invalid_options_hides_them(
        self, options: Callable[[str], dict[str, Any]], secret: Secret
    ) -> None:
        app = App("postgresql://nowhere.invalid/x")
        with pytest.raises(awa.InvalidJob) as raised:
            app.new("work", {}, **options(secret("an option")))
        secret.assert_hidden(full_text(raised.value))

    @pytest.mark.parametrize("jobs", [1, 2, COPIED])
    @pytest.mark.parametrize(
        "args_json",
        [
            lambda token: f'["{token}"]',  # PostgreSQL's DETAIL quotes the whole row
            lambda token: f'{{"a": "{token}\\u0000"}}',
            lambda token: f'{{"a": {token}}}',  # and its message the invalid token
            lambda token: f'{{"a": "{token}\ud800"}}',  # asyncpg quotes it
        ],
    )
    async def test_error_of_postgresql_hides_the_arguments(
        self, database_url: str, jobs: int, args_json: Callable[[str], str], secret: Secret
    ) -> None:
        bad = NewJob(kind="work", args_json=args_json(secret("arguments that are not JSON")))
        async with App(database_url) as app:
            many = [*[NewJob(kind="work")] * (jobs - 1), bad]
            with pytest.raises(awa.InvalidJob) as raised:
                await (app.client.enqueue(bad) if jobs == 1 else app.enqueue_many(many))
        assert "PostgreSQL refused the job" in str(raised.value)
        secret.assert_hidden(full_text(raised.value))

    async def test_repr_hides_the_content_of_jobs(self, database_url: str, secret: Secret) -> None:
        app = App(database_url)
        unique = awa.Unique(key=secret("a unique key"))
        new = app.new("work", {"a": secret("an argument")}, metadata={"a": secret("metadata")}, unique=unique)
        async with app:
            (job,) = await app.enqueue_many([new])
            found = await app.get(job.id)
        reprs = [repr(each) for each in (new, new.spec, new.unique, job, found, app.database, app)]
        assert "kind='work'" in repr(found)
        secret.assert_hidden(*reprs)


class TestDatabaseUrl:
    @pytest.fixture
    def urls(self, database_url: str, secret: Secret) -> list[str]:
        """Return URLs that do not work, each with a password that must not appear, not even in part."""
        server = urlsplit(database_url)
        password = secret("a wrong password")
        special = "/?#@:%&"
        parts = [secret("the password's beginning"), secret("the password's end")]
        secret.add("a percent-encoded password", quote(parts[0] + special + parts[1], safe=""))
        good = f"{server.hostname}:{server.port}{server.path}"
        return [
            f"postgresql://awa:{password}@{good}",
            f"postgresql://awa:{quote(parts[0] + special + parts[1], safe='')}@{good}",
            f"postgresql://awa@{good}?password={password}",
            f"postgresql://awa:{password}@127.0.0.1:1/awa",
            f"postgresql://awa:{password}@127.0.0.1:{password}/awa",
            f"postgresql://awa:{password}@127.0.0.1:99999/awa",
            f"postgresql://awa:{password}@{server.hostname}:{server.port}/no_such_database",
            f"postgresql://awa:{password}@{good}?{password}",
            f"postgresql://awa:{password}@{good}?sslmode={password}",
            f"mysql://awa:{password}@{good}",
            password,
            *(f"postgresql://awa:{parts[0]}{letter}{parts[1]}@{good}" for letter in special),
        ]

    async def test_connection_error_hides_the_password(self, urls: list[str], secret: Secret) -> None:
        for url in urls:
            with pytest.raises(awa.AwaError) as raised:
                await Database(checked_url(url), Schema()).connect_sessionless("test")
            secret.assert_hidden(full_text(raised.value))

    def test_command_that_cannot_connect_hides_the_password(self, awa: Awa, urls: list[str], secret: Secret) -> None:
        for number, url in enumerate([*urls[:5], urls[-1]]):
            command = ("migrate",) if number % 2 else ("enqueue", "work")
            given = ("--database-url", url) if number % 3 else ()
            answer = awa(*command, "--log-level", "debug", *given, env={"AWA_DATABASE_URL": url})
            assert (answer.code, answer.out) == (1, "")
            assert answer.err.splitlines()[-1].startswith("awa: ")
            secret.assert_hidden(answer.err)

    async def test_worker_and_leader_that_cannot_connect_hide_the_password(
        self, awa: Awa, tmp_path: Path, urls: list[str], secret: Secret
    ) -> None:
        with processes(tmp_path, urls[0], {"AWA_LOG_LEVEL": "debug"}) as started:
            found = [
                each
                for url in urls[3:4]  # nothing listens there: the process keeps trying
                for each in (
                    started.worker(env={"AWA_DATABASE_URL": url}),
                    started.start("maintenance", env={"AWA_DATABASE_URL": url}),
                )
            ]
            for each in found:
                await eventually("the log line", lambda each=each: each.output.count("cannot reach the database") > 1)  # type: ignore[misc]
        for url, command in ((urls[0], ("worker", "tasks:app", "-q", "default")), (urls[8], ("maintenance",))):
            answer = awa(*command, "--log-level", "debug", env={"AWA_DATABASE_URL": url})
            assert answer.code == 1
            secret.assert_hidden(answer.err)
        secret.assert_hidden(started.outputs)


class TestWorker:
    async def test_worker_output_hides_the_content_of_jobs(
        self, awa: Awa, database_url: str, session: Session, tmp_path: Path, secret: Secret
    ) -> None:
        (awa.directory / "tasks.py").write_text(TASKS)
        secret.add("the database's URL", urlsplit(database_url).password or "")
        jobs = await self._enqueue(database_url, session, secret)
        environment = {
            **FAST,
            "AWA_DEADLINE_RESCUE_INTERVAL": "30s",
            "AWA_LOG_LEVEL": "debug",
            "AWA_MAX_ARGS_BYTES": "100000",
            "AWA_BLOCKED_AFTER": "300ms",
            "AWA_CRON_EVAL_INTERVAL": "200ms",
            "PYTHONASYNCIODEBUG": "1",
            "PYTHONPATH": str(awa.directory),
        }
        with processes(tmp_path, database_url, environment) as started:
            options = ("-q", "default", "-q", "rescued", "--metrics-port", "0", "--no-maintenance")
            # The leader of the other session must have watched the stale job, but runs no task that would rescue it.
            async with leading(Database(database_url, Schema()), since_s=3600):
                worker = started.start("worker", "tasks:app", *options)
                await eventually("the metrics port", lambda: "metrics at http://" in worker.output)
                await eventually("it took over the stale job", lambda: "took over 1 jobs" in worker.output)
            port = int(worker.output.partition("metrics at http://127.0.0.1:")[2].partition("/")[0])
            async with App(database_url) as app:
                late = jobs[KINDS.index("too_long")]
                await eventually("it has timed out", lambda: _ended(app, [late]))
                started.start("maintenance")  # only now, because a leader would rescue both
                await eventually("all have ended", lambda: _ended(app, jobs))
                running = await app.enqueue("waits", {"token": secret("a job that runs")})
                await eventually("it runs", lambda: _is(app, running.id, State.RUNNING))
                explained = [" ".join(await app.explain(job_id)) for job_id in (*jobs, running.id)]
                served = [_get(port, path) for path in ("metrics", "readyz", "healthz", "nowhere")]
                await session.connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND application_name LIKE 'awa %' "
                    "AND application_name NOT IN ('awa client', 'awa test')"
                )
                await eventually("it reconnects", lambda: worker.output.count("connected to the database again") >= 3)
                await app.cancel(running.id)
                await eventually("it was cancelled", lambda: _is(app, running.id, State.CANCELLED))
                errors = [json.dumps((await app.get(job_id)).errors) for job_id in jobs]
            last = await session.connection.fetchval("SELECT last_error FROM awa.cron WHERE name = 'bad'")
            tables = [awa.ok(*command).out for command in (("stats",), ("job", "explain", str(running.id)))]
        self._check_that_all_happened(started.outputs, "\n".join(errors), last)
        secret.assert_hidden(started.outputs, *explained, *served, *errors, *tables, last)

    async def _enqueue(self, database_url: str, session: Session, secret: Secret) -> list[int]:
        ids = []
        async with App(database_url) as app:
            for kind in KINDS:
                unique = awa.Unique(key=secret(f"the unique key of {kind}"))
                job = await app.enqueue(
                    kind,
                    {"token": secret(f"the arguments of {kind}")},
                    metadata={"a": secret(f"the metadata of {kind}")},
                    max_attempts=1 if kind != "breaks_again" else 2,
                    timeout=0.2 if kind == "too_long" else None,
                    unique=unique,
                )
                assert not (await app.enqueue(kind, unique=unique)).is_new
                ids.append(job.id)
        args = json.dumps({"token": secret("the arguments of a stale job")})
        ids += await insert_running(session, kind="answer", queue="rescued", args=args, silent_s=3600)
        await session.connection.execute(
            "INSERT INTO awa.cron (name, expression, timezone, kind, args, options, effective_from, last_enqueued_at) "
            "VALUES ('bad', '* * * * *', 'UTC', 'answer', $1, $2, now() - interval '1 day', now() - interval '1 day')",
            json.dumps({"token": secret("a schedule's arguments")}),
            json.dumps({"max_attempts": secret("a schedule's options")}),
        )
        return ids

    @staticmethod
    def _check_that_all_happened(log: str, errors: str, last: str) -> None:
        for line in (
            "mine: a line of my own [job ",
            "has been blocking the event loop for 0.",
            "failed permanently on its 1st attempt",
            "failed, retrying in",
            "took over 1 jobs of queue rescued",
            "schedule bad is disabled",
            "connected to the database again",
        ):
            assert line in log, line
        for text in (
            "ValueError: it broke",
            'wants_a_time: argument \\"token\\" must be datetime',
            "cannot_be_stored: result.bad: an object is not JSON-serializable",
            "not_even_by_postgresql: result.ok: ",
            "too_large: ",
            "timed out after 0.2 s",
            "InvalidJob: answer: PostgreSQL refused the job",
            'needs_more: missing argument \\"more\\"',
        ):
            assert text in errors, text
        assert last == "invalid input syntax for type smallint"


async def _ended(app: App, jobs: list[int]) -> bool:
    return all([(await app.get(job_id)).state.final for job_id in jobs])


async def _is(app: App, job_id: int, state: State) -> bool:
    return (await app.get(job_id)).state is state


def _get(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())
