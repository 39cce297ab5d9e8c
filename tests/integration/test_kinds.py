"""What a job declares holds however it is enqueued: `awa.kinds`, its keys in SQL, and which declaration is newer."""

import asyncio
import inspect
import json
import os
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from awa_py import App, BatchJob, ConfigError, Context, InvalidArguments, InvalidJob, Job, NewJob, State, Unique
from awa_py.arguments.signature import Signature
from awa_py.enqueue.enqueuer import COPY_MIN_JOBS
from awa_py.model.keys import KeyTemplate, UniqueTemplate, canonical_json
from awa_py.store.kinds import declare_kinds, delete_kind, list_kinds, undeclared_kinds
from awa_py.store.session import Session
from tests.support import QUICK, drain, look

pytestmark = pytest.mark.integration


def declare_all(app: App) -> None:
    @app.job(
        queue="email",
        priority=1,
        max_attempts=3,
        timeout="30s",
        tags=["mail"],
        metadata={"team": "a"},
        concurrency_key="to:{to}",
        concurrency_limit=2,
        unique=Unique(by=["to", "day"], period="1h"),
    )
    async def send(to: str, subject: str = "", day: int | None = None) -> None: ...

    @app.job(delay="1h", concurrency_key="k", ordered=True, unique=True)
    async def later() -> None: ...

    @app.job(batch=10)
    async def in_batches(jobs: Sequence[BatchJob]) -> None: ...


@pytest.fixture
async def declaring(database_url: str, session: Session) -> App:
    """An app whose declarations are in the database."""
    app = App(database_url, settings=QUICK, version="1")
    declare_all(app)
    await declare_kinds(session, app.declarations())
    return app


@pytest.fixture
async def silent(database_url: str) -> AsyncIterator[App]:
    """An app that declares nothing."""
    async with App(database_url) as app:
        yield app


def values(job: Job) -> dict[str, Any]:
    """Return what a declaration decides about a job."""
    names = ("queue", "priority", "max_attempts", "timeout", "tags", "metadata", "concurrency_key")
    return {name: getattr(job, name) for name in (*names, "concurrency_limit", "ordered", "unique_key", "state")}


class TestEnqueue:
    """The same job, from a definition, by kind, from SQL and in bulk."""

    @pytest.mark.parametrize(
        ("kind", "args"),
        [("send", {"to": "a", "day": 3}), ("send", {"to": "é"}), ("later", {}), ("in_batches", {"any": [1.0]})],
    )
    async def test_values_are_the_same_however_a_job_is_enqueued(
        self, declaring: App, silent: App, session: Session, kind: str, args: dict[str, Any]
    ) -> None:
        async def free_key() -> None:
            await session.connection.execute("DELETE FROM awa.unique_keys")

        async with declaring:
            expected = values(await declaring.enqueue(kind, args))
        await free_key()
        by_kind = await silent.enqueue(kind, args)
        assert by_kind.is_new
        assert values(by_kind) == values(await look(session, by_kind.id)) == expected
        await free_key()
        in_sql = await session.connection.fetchval("SELECT awa.enqueue($1, $2)", kind, json.dumps(args))
        assert values(await look(session, in_sql)) == expected
        await free_key()
        many = await silent.enqueue_many([silent.new(kind, args)] * COPY_MIN_JOBS)
        assert values(many[0]) == expected
        if expected["unique_key"]:
            assert len({job.id for job in many}) == 1

    async def test_caller_wins_over_the_declaration(self, declaring: App, silent: App, session: Session) -> None:
        options: dict[str, Any] = {
            "queue": "other",
            "priority": 2,  # the default, but the caller says so
            "max_attempts": 25,
            "timeout": "5s",
            "tags": ["x"],
            "concurrency_key": "mine",
            "concurrency_limit": 1,
            "unique": Unique(key="mine"),
        }
        by_kind = await silent.enqueue("send", {"to": "a"}, **options)
        stored = await look(session, by_kind.id)
        assert values(by_kind) == values(stored)
        assert (stored.queue, stored.priority, stored.max_attempts) == ("other", 2, 25)
        assert (stored.timeout, stored.tags, stored.unique_key) == (timedelta(seconds=5), ["x"], "mine")
        assert (stored.concurrency_key, stored.concurrency_limit) == ("mine", 1)
        in_sql = await session.connection.fetchval(
            """SELECT awa.enqueue('later', delay => '2 hours', concurrency_key => 'mine', metadata => '{"a": 1}')"""
        )
        job = await look(session, in_sql)
        assert (job.concurrency_key, job.ordered, job.metadata) == ("mine", True, {"a": 1})
        assert job.run_at - job.created_at == timedelta(hours=2)
        at = job.created_at + timedelta(days=1)
        sooner = await session.connection.fetchval("SELECT awa.enqueue('later', run_at => $1, unique_key => 'b')", at)
        assert (await look(session, sooner)).run_at == at

    async def test_metadata_is_added_to_that_of_the_declaration(self, declaring: App, silent: App) -> None:
        job = await silent.enqueue("send", {"to": "a"}, metadata={"n": 1})
        assert job.metadata == {"team": "a", "n": 1}

    async def test_declared_and_undeclared_kinds_can_be_enqueued_together(
        self, declaring: App, silent: App, session: Session
    ) -> None:
        async with declaring:
            plain = declaring.registry.get("send")
            assert plain is not None
            jobs = await declaring.enqueue_many(
                [declaring.new("send", {"to": "a"}, timeout=None, unique=None), declaring.new("unknown", {"b": 1})]
            )
        own, unknown = [await look(session, job.id) for job in jobs]
        assert (own.timeout, own.unique_key, own.max_attempts) == (None, None, 3)  # the app knows its declaration
        assert (unknown.kind, unknown.max_attempts, unknown.queue) == ("unknown", 25, "default")

    async def test_operators_route_wins_over_the_routes_of_the_declaring_app(
        self, database_url: str, session: Session
    ) -> None:
        app = App(database_url, routes={"gh_*": "gh"})

        @app.job
        async def gh_sync() -> None: ...

        await declare_kinds(session, app.declarations())
        enqueue = "SELECT awa.enqueue('gh_sync')"
        assert (await look(session, await session.connection.fetchval(enqueue))).queue == "gh"
        await session.connection.execute("INSERT INTO awa.routes (pattern, queue) VALUES ('gh_*', 'ours')")
        assert (await look(session, await session.connection.fetchval(enqueue))).queue == "ours"

    @pytest.mark.parametrize(
        ("args", "problem"),
        [
            ("{}", 'send: missing argument "to"'),
            ('{"to": "a", "cc": 1}', 'send: unexpected argument "cc"'),
            ('{"to": 7}', 'send: argument "to" must be string, not number'),
            ('{"to": "a", "day": 1.5}', 'send: argument "day" must be integer, null, not number'),
        ],
    )
    async def test_arguments_that_do_not_fit_are_refused(
        self, declaring: App, silent: App, session: Session, args: str, problem: str
    ) -> None:
        with pytest.raises(asyncpg.CheckViolationError) as in_sql:
            await session.connection.execute("SELECT awa.enqueue('send', $1)", args)
        assert str(in_sql.value) == problem
        with pytest.raises(InvalidJob, match="PostgreSQL refused the job: send: "):
            await silent.enqueue("send", json.loads(args))
        assert await session.connection.fetchval("SELECT count(*) FROM awa.jobs") == 0

    async def test_job_without_an_argument_that_its_key_needs_is_refused(
        self, database_url: str, session: Session
    ) -> None:
        app = App(database_url)

        @app.job(concurrency_key="{a}")
        async def keyed(a: int = 0) -> None: ...

        @app.job(batch=2, unique=Unique(by=["a"]))
        async def unique(jobs: Sequence[BatchJob]) -> None: ...

        await declare_kinds(session, app.declarations())
        for kind, problem in (("keyed", 'concurrency_key "{a}" names "a"'), ("unique", 'unique by names "a"')):
            with pytest.raises(asyncpg.CheckViolationError) as refused:
                await session.connection.execute("SELECT awa.enqueue($1)", kind)
            assert str(refused.value) == f"{kind}: {problem}, which the job does not have"
            with pytest.raises(InvalidJob, match="which the job does not have"):
                app.new(kind)


# JSON as Python can store it: no NUL, no lone surrogates, finite floats.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.sampled_from([1.0, -0.0, 1e16, 1e23, 5e-324, 1.7e308, 0.1, 100.0])
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))
ARGUMENTS = st.dictionaries(st.sampled_from(["a", "b", "ü", "B"]), VALUES)


class Fuzz:
    """One connection for many cases of Hypothesis, which calls synchronous functions."""

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.connection = self.runner.run(asyncpg.connect(url))

    def rows(self, query: str, *arguments: Any) -> list[Any]:
        return [row[0] for row in self.runner.run(self.connection.fetch(query, *arguments))]

    def close(self) -> None:
        self.runner.run(self.connection.close())
        self.runner.close()


@pytest.fixture
def fuzz(database_url: str) -> Any:
    opened = Fuzz(database_url)
    yield opened
    opened.close()


class TestKeysInSQL:
    def test_canonical_json_is_the_same_as_in_python(self, fuzz: Fuzz) -> None:
        @settings(max_examples=50, deadline=None)
        @given(st.lists(VALUES, min_size=20, max_size=60))
        def check(cases: list[Any]) -> None:
            texts = [json.dumps(case, ensure_ascii=False) for case in cases]
            query = "SELECT awa.canonical_json(t::jsonb) FROM unnest($1::text[]) WITH ORDINALITY AS x (t, n) ORDER BY n"
            assert fuzz.rows(query, texts) == [canonical_json(case) for case in cases]

        check()

    def test_keys_are_the_same_as_in_python(self, fuzz: Fuzz) -> None:
        declared = (
            "jsonb_populate_record(NULL::awa.kinds, $2::jsonb || jsonb_build_object('kind', 'work', 'priority', 2, "
            "'max_attempts', 5))"
        )
        query = f"""SELECT jsonb_build_array(done -> 'unique_key', done -> 'concurrency_key')::text
                    FROM unnest($1::text[]) WITH ORDINALITY AS x (t, n),
                         awa.complete_job(jsonb_build_object('kind', 'work', 'args', t::jsonb), {declared}) AS done
                    ORDER BY n"""

        @settings(max_examples=50, deadline=None)
        @given(
            st.lists(ARGUMENTS.map(lambda args: {"a": 1, "ü": 2, **args}), min_size=20, max_size=40),
            st.none() | st.lists(st.sampled_from(["a", "ü", "b"]), max_size=3),
            st.lists(st.sampled_from(["{a}", "{ü}", "{", "x:", "{c d}", "{1}"]), max_size=5).map("".join),
        )
        def check(cases: list[dict[str, Any]], by: list[str] | None, text: str) -> None:
            key = KeyTemplate("work", text + "-")
            unique = UniqueTemplate("work", by=by, key=None, period=None, states=(State.RUNNING,), optional={"b"})
            row = {
                "key_parts": key.parts,
                "unique_by": by,
                "unique_states": ["running"],
                "args_schema": {"properties": {"b": {}}, "required": [], "additionalProperties": {}},
            }
            texts = [json.dumps(case) for case in cases]
            found = [json.loads(text) for text in fuzz.rows(query, texts, json.dumps(row))]
            assert found == [[unique.fill(text).key, _fill(key, text)] for text in texts]

        check()


def _fill(template: KeyTemplate, args_json: str) -> str:
    """Return the key, however long it is: the tables refuse one that is too long."""
    args = json.loads(args_json)
    parts = [
        part if n % 2 == 0 else args[part] if isinstance(args[part], str) else canonical_json(args[part])
        for n, part in enumerate(template.parts)
    ]
    return "".join(parts)


def everything(
    a: int,
    b: str | None,
    c: float = 0.0,
    d: Decimal = Decimal(0),
    e: datetime | None = None,
    f: list[int] | bool = False,
    g: Literal["x", 1] | None = None,
    h: dict[str, float] | None = None,
    i: timedelta = timedelta(0),
    j: tuple[int, str] = (0, ""),
    k: UUID | int = 0,
    m: Any = None,
) -> None: ...


class TestSchema:
    def test_sql_refuses_names_and_types_that_the_handler_refuses_and_nothing_else(self, fuzz: Fuzz) -> None:
        signature = Signature.from_function(everything, context_type=Context)
        names = [*inspect.signature(everything).parameters, "unknown"]
        query = (
            """SELECT (SELECT count(*) FROM awa.check_args('work', t::jsonb, $2::jsonb)) FROM unnest($1::text[]) AS t"""
        )
        fit = refused = 0

        values = [None, True, 1, 1.0, 1.5, "x", "1.5", [1], [1, "a"], {"x": 1}, "2026-01-01T00:00Z", str(UUID(int=7))]

        @settings(max_examples=400, deadline=None)
        @given(
            st.dictionaries(st.sampled_from(names), st.sampled_from(values), max_size=2),
            st.sampled_from([{}, {"a": 1}, {"a": 1, "b": None}, {"a": 1, "b": "x"}]),
        )
        def check(some: dict[str, Any], fitting: dict[str, Any]) -> None:
            nonlocal fit, refused
            args = {**some, **fitting}
            try:
                signature.load(json.loads(json.dumps(args)))
            except InvalidArguments as problem:
                is_about_names = "missing" in str(problem) or "unexpected" in str(problem)
            else:
                fuzz.rows(query, [json.dumps(args)], json.dumps(signature.schema))
                fit += 1
                return
            if is_about_names:
                with pytest.raises(asyncpg.CheckViolationError):
                    fuzz.rows(query, [json.dumps(args)], json.dumps(signature.schema))
                refused += 1

        check()
        assert fit > 20
        assert refused > 20


class TestDeclarations:
    async def test_worker_declares_its_kinds_at_its_start(self, declaring: App, session: Session) -> None:
        await session.connection.execute("DELETE FROM awa.kinds")
        async with declaring:
            await drain(declaring)
        rows = {row.kind: row for row in await list_kinds(session)}
        assert set(rows) == {"send", "later", "in_batches"}
        send = rows["send"]
        assert (send.queue, send.max_attempts, send.timeout) == ("email", 3, timedelta(seconds=30))
        assert (send.concurrency_key, send.concurrency_limit, send.ordered) == ("to:{to}", 2, False)
        assert (send.unique_by, send.unique_for) == (["to", "day"], timedelta(hours=1))
        assert send.version == "1"
        assert send.args_schema == {
            "type": "object",
            "properties": {
                "to": {"type": "string"},
                "subject": {"type": "string"},
                "day": {"type": ["integer", "null"]},
            },
            "required": ["to"],
            "additionalProperties": False,
        }

    async def test_second_start_of_a_version_writes_nothing(self, declaring: App, session: Session) -> None:
        again = await declare_kinds(session, declaring.declarations())
        assert [(kind.is_written, kind.is_overruled) for kind in again] == [(False, False)] * 3

    async def test_worker_starts_although_its_kinds_cannot_be_stored(
        self, database_url: str, session: Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = App(database_url, settings=QUICK)

        @app.job
        async def odd(a: Literal["\ud800"] | None = None) -> None: ...

        async with app:
            job = await odd.enqueue()
            await drain(app)
            assert (await app.get(job.id)).state is State.COMPLETED
        assert "the kinds of this app could not be declared" in caplog.text

    async def test_kind_that_nobody_declares_is_reported(self, declaring: App, session: Session) -> None:
        assert await undeclared_kinds(session, ["send", "other", "later"]) == ["other"]
        assert await delete_kind(session, "send")
        assert not await delete_kind(session, "send")
        assert await undeclared_kinds(session, ["send"]) == ["send"]


def version_of(database_url: str, version: str | None, max_attempts: int) -> App:
    app = App(database_url, settings=QUICK, version=version)

    @app.job(max_attempts=max_attempts)
    async def work() -> None: ...

    return app


async def start(session: Session, app: App, *, as_newest: bool = False) -> bool:
    """Declare the kinds of an app as its worker does. Return whether its declaration holds."""
    (kind,) = await declare_kinds(session, app.declarations(), as_newest=as_newest)
    return not kind.is_overruled


async def max_attempts(session: Session) -> int:
    (row,) = await list_kinds(session)
    return row.max_attempts


class TestVersions:
    """A version that was replaced is older, and never replaces the one that replaced it."""

    async def test_restarted_worker_of_the_old_version_changes_nothing(
        self, database_url: str, session: Session
    ) -> None:
        old, new, newest = (version_of(database_url, str(n), n) for n in (1, 2, 3))
        assert await start(session, old)
        assert await start(session, new)
        assert not await start(session, old)
        assert await max_attempts(session) == 2
        assert await start(session, newest)
        assert not await start(session, old)
        assert not await start(session, new)
        assert await max_attempts(session) == 3

    async def test_old_worker_says_that_a_newer_declaration_holds(
        self, database_url: str, session: Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        old, new = version_of(database_url, "1", 1), version_of(database_url, "2", 2)
        for app in (old, new, old):
            async with app:
                await drain(app)
        assert await max_attempts(session) == 2
        (warning,) = [record.getMessage() for record in caplog.records if "sync APP" in record.getMessage()]
        assert warning.startswith(
            "these kinds are as the newer version 2 of the app declares them, not as version 1: work"
        )

    async def test_new_version_with_the_old_values_is_new(self, database_url: str, session: Session) -> None:
        for version, attempts in (("1", 1), ("2", 2), ("3", 1)):
            assert await start(session, version_of(database_url, version, attempts))
        assert await max_attempts(session) == 1

    async def test_sync_after_a_rollback_makes_the_old_version_the_newest(
        self, database_url: str, session: Session
    ) -> None:
        old, new = version_of(database_url, "1", 1), version_of(database_url, "2", 2)
        await start(session, old)
        await start(session, new)
        assert await start(session, old, as_newest=True)
        assert not await start(session, new)
        assert await max_attempts(session) == 1

    async def test_same_version_with_other_values_wins(self, database_url: str, session: Session) -> None:
        await start(session, version_of(database_url, "1", 1))
        assert await start(session, version_of(database_url, "1", 2))
        assert await max_attempts(session) == 2

    async def test_hundred_replaced_versions_are_remembered(self, database_url: str, session: Session) -> None:
        for n in range(1, 110):
            await start(session, version_of(database_url, str(n), 1))
        replaced = await session.connection.fetchval("SELECT replaced_versions FROM awa.kinds")
        assert replaced == [str(n) for n in range(9, 109)]

    async def test_workers_that_start_at_once_do_not_fail(self, database_url: str, session: Session) -> None:
        apps = [version_of(database_url, str(n), n) for n in range(1, 9)]
        for app in apps:
            declare_all(app)
        async with App(database_url) as pool:

            async def declare(app: App) -> None:
                async with pool.session() as own:
                    await declare_kinds(own, app.declarations())

            await asyncio.gather(*(declare(app) for app in apps))
        rows = await list_kinds(session)
        assert len(rows) == 4
        (versions,) = await session.connection.fetch(
            "SELECT DISTINCT cardinality(replaced_versions) AS n FROM awa.kinds"
        )
        assert versions["n"] == 7

    def test_version_is_a_short_text(self) -> None:
        for version in ("", "x" * 201, "a\nb", 7):
            with pytest.raises(ConfigError, match="version is a text of 1 to 200 printable characters"):
                App(version=version)  # type: ignore[arg-type]

    def test_version_defaults_to_the_variable_and_to_the_time_of_the_source(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        app = version_of("postgresql://nowhere", None, 1)
        time = app.declarations().version
        assert time is not None
        assert datetime.fromisoformat(time).tzinfo is not None
        monkeypatch.setenv("AWA_WORKER_VERSION", "4f2a")
        assert app.declarations().version == "4f2a"
        assert version_of("postgresql://nowhere", "mine", 1).declarations().version == "mine"

    def test_app_without_source_files_has_a_version_per_process(self) -> None:
        app, other = App(), App()
        for each in (app, other):
            exec("@app.job\ndef work(): ...", {"app": each, "__name__": "nowhere"})
        assert app.declarations().version == app.declarations().version
        assert app.declarations().version.endswith(f" {os.getpid()}")


async def test_complete_spec_ignores_the_declaration(declaring: App, session: Session) -> None:
    async with declaring:
        job = await declaring.client.enqueue(NewJob(kind="send", args_json='{"any": 1}', unique=None))
    assert (job.max_attempts, job.queue) == (25, "default")
