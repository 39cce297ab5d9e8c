"""Enqueue from Python and from SQL: one job or many, unique or not; and what is refused."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from awa_py import App, ConfigError, InvalidArguments, InvalidJob, Job, NewJob, State, Unique
from awa_py.db.database import Database
from awa_py.model.job import UniqueKey
from awa_py.store.finish import complete_jobs
from awa_py.store.jobs import get_jobs
from awa_py.store.maintenance import delete_free_unique_keys
from awa_py.store.session import Session
from tests.support import OWNER, ago, another_session, claim, count, eventually, insert, listen, look, put, states

pytestmark = pytest.mark.integration


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[App]:
    app = App(database_url)

    @app.job
    async def work(number: int = 0, text: str = "") -> None: ...

    async with app:
        yield app


def work(app: App, **options: Any) -> NewJob:
    return app.new("work", {}, **options)


class TestTransactions:
    async def test_job_is_visible_after_the_commit(self, app: App, session: Session, database: Database) -> None:
        async with another_session(database) as other:
            async with session.connection.transaction():
                job = await app.enqueue("work", connection=session.connection)
                assert await states(other) == {}
            assert (await look(other, job.id)).state is State.AVAILABLE

    async def test_rolled_back_job_does_not_exist(self, app: App, session: Session) -> None:
        transaction = session.connection.transaction()
        await transaction.start()
        await app.enqueue("work", connection=session.connection)
        await transaction.rollback()
        assert await states(session) == {}

    async def test_rolled_back_job_does_not_hold_its_unique_key(self, app: App, session: Session) -> None:
        transaction = session.connection.transaction()
        await transaction.start()
        await app.enqueue("work", unique=True, connection=session.connection)
        await transaction.rollback()
        assert (await app.enqueue("work", unique=True)).is_new

    async def test_error_of_a_refused_job_names_it(self, app: App, session: Session) -> None:
        for bad in (NewJob(kind="spoilt", parent_id=2**70), NewJob(kind="spoilt", args_json="[1]")):
            with pytest.raises(InvalidJob, match="spoilt: PostgreSQL refused the job"):
                await app.client.enqueue(bad)
        assert await states(session) == {}

    async def test_one_refused_job_of_many_rolls_back_all(self, app: App, session: Session) -> None:
        good, bad = NewJob(kind="work"), NewJob(kind="work", parent_id=2**70)
        with pytest.raises(InvalidJob, match="PostgreSQL refused the job"):
            await app.enqueue_many([good, bad])
        assert await states(session) == {}

    async def test_single_enqueue_works_with_a_custom_jsonb_codec(self, app: App, session: Session) -> None:
        await session.connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        job = await app.enqueue("work", {"number": 1}, connection=session.connection, metadata={"a": [1]})
        assert await app.get(job.id) == job
        assert (job.args, job.metadata) == ({"number": 1}, {"a": [1]})

    async def test_enqueue_many_works_with_a_custom_jsonb_codec(self, app: App, session: Session) -> None:
        await session.connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        job = await app.enqueue(
            "work", {"number": 1}, connection=session.connection, metadata={"a": [1]}, unique=Unique(key="k")
        )
        again = await app.enqueue("work", {"number": 1}, connection=session.connection, unique=Unique(key="k"))
        assert (again.id, again.args, again.metadata) == (job.id, {"number": 1}, {"a": [1]})


class TestOptions:
    async def test_every_option_of_a_scheduled_job_is_stored(self, app: App) -> None:
        run_at = datetime(2100, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
        deadline = run_at + timedelta(days=1)
        job = await app.enqueue(
            "work",
            {"number": 7, "text": "ünï ✓ \\u0000 'quoted'"},
            queue="mail",
            priority=1,
            run_at=run_at,
            max_attempts=3,
            timeout="90s",
            deadline=deadline,
            tags=["a", "b"],
            metadata={"trace": {"id": 1}},
            parent_id=99,
            unique=Unique(key="own"),
        )
        stored = await app.get(job.id)
        assert job == stored
        assert (stored.queue, stored.priority, stored.run_at, stored.max_attempts) == ("mail", 1, run_at, 3)
        assert (stored.timeout, stored.deadline_at) == (timedelta(seconds=90), deadline)
        assert (stored.tags, stored.metadata, stored.parent_id) == (["a", "b"], {"trace": {"id": 1}}, 99)
        assert (stored.unique_key, stored.state) == ("own", State.SCHEDULED)
        assert stored.args == {"number": 7, "text": "ünï ✓ \\u0000 'quoted'"}

    async def test_every_option_of_an_available_job_is_stored(self, app: App) -> None:
        job = await app.enqueue(
            "work",
            {"number": 7, "text": "ünï ✓ \\u0000 'quoted'"},
            queue="mail",
            priority=1,
            max_attempts=3,
            timeout="90s",
            deadline=datetime(2100, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
            tags=["a", 'quoted "b"'],
            metadata={"trace": {"id": 1}},
            parent_id=99,
        )
        assert await app.get(job.id) == job
        assert (job.queue, job.priority, job.max_attempts, job.parent_id) == ("mail", 1, 3, 99)
        assert (job.tags, job.metadata, job.timeout) == (
            ["a", 'quoted "b"'],
            {"trace": {"id": 1}},
            timedelta(seconds=90),
        )
        assert (job.state, job.run_at) == (State.AVAILABLE, job.created_at)

    async def test_job_without_options_has_the_defaults(self, app: App) -> None:
        job = await app.enqueue("work")
        assert (job.queue, job.priority, job.max_attempts, job.state) == ("default", 2, 25, State.AVAILABLE)
        assert (job.attempt, job.lease, job.timeout, job.deadline_at, job.unique_key) == (0, 0, None, None, None)

    async def test_delay_counts_from_the_databases_time(self, app: App, session: Session) -> None:
        job = await app.enqueue("work", delay="10m")
        assert job.state is State.SCHEDULED
        assert job.run_at - job.created_at == timedelta(minutes=10)

    async def test_job_with_run_at_in_the_past_is_available(self, app: App) -> None:
        job = await app.enqueue("work", run_at=datetime(2001, 1, 1, tzinfo=UTC))
        assert job.state is State.AVAILABLE

    async def test_options_of_the_decorator_are_the_defaults(self, database_url: str) -> None:
        app = App(database_url)

        @app.job(queue="mail", max_attempts=5, timeout="30s", priority=3)
        async def send(to: str) -> None: ...

        async with app:
            job = await send.options(priority=1).enqueue(to="a@example.com")
        assert (job.queue, job.max_attempts, job.timeout, job.priority) == ("mail", 5, timedelta(seconds=30), 1)


class TestFromSql:
    async def test_sql_enqueue_needs_only_a_kind(self, session: Session) -> None:
        job_id = await session.connection.fetchval("SELECT awa.enqueue('work')")
        job = await look(session, job_id)
        assert (job.kind, job.args, job.queue, job.state) == ("work", {}, "default", State.AVAILABLE)

    async def test_sql_enqueue_takes_every_option_by_name(self, session: Session) -> None:
        job_id = await session.connection.fetchval(
            """
            SELECT awa.enqueue(kind => 'work', args => '{"a": null}', queue => 'mail', priority => 1,
                               run_at => '2100-01-01 00:00+00', max_attempts => 3, timeout => '90 seconds',
                               deadline => '2100-01-02 00:00+00', tags => '{a,b}', metadata => '{"m": 1}',
                               parent_id => 9, unique_key => 'k', unique_for => '1 hour',
                               unique_states => '{scheduled}')
            """
        )
        job = await look(session, job_id)
        assert (job.args, job.queue, job.priority, job.max_attempts) == ({"a": None}, "mail", 1, 3)
        assert (job.run_at, job.deadline_at) == (datetime(2100, 1, 1, tzinfo=UTC), datetime(2100, 1, 2, tzinfo=UTC))
        assert (job.timeout, job.tags, job.metadata) == (timedelta(seconds=90), ["a", "b"], {"m": 1})
        assert (job.parent_id, job.unique_key, job.state) == (9, "k", State.SCHEDULED)
        key = await session.connection.fetchrow(
            "SELECT job_id, states, expires_at - now() AS left FROM awa.unique_keys"
        )
        assert key is not None
        assert (key["job_id"], key["states"]) == (job_id, ["scheduled"])
        assert timedelta(minutes=59) < key["left"] <= timedelta(hours=1)

    async def test_sql_enqueue_takes_a_delay(self, session: Session) -> None:
        job_id = await session.connection.fetchval("SELECT awa.enqueue('work', delay => '1 hour')")
        job = await look(session, job_id)
        assert job.run_at - job.created_at == timedelta(hours=1)

    async def test_sql_null_means_the_default(self, session: Session) -> None:
        job_id = await session.connection.fetchval("SELECT awa.enqueue('work', NULL, queue => NULL, priority => NULL)")
        job = await look(session, job_id)
        assert (job.args, job.queue, job.priority) == ({}, "default", 2)

    async def test_sql_enqueue_returns_the_id_of_the_holder(self, session: Session) -> None:
        first = await session.connection.fetchval("SELECT awa.enqueue('work', unique_key => 'k')")
        assert await session.connection.fetchval("SELECT awa.enqueue('other', unique_key => 'k')") == first

    async def test_trigger_can_enqueue(self, session: Session) -> None:
        await session.connection.execute(
            """
            CREATE TABLE public.users (name text);
            CREATE FUNCTION public.greet() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN PERFORM awa.enqueue('work', jsonb_build_object('name', NEW.name)); RETURN NEW; END $$;
            CREATE TRIGGER greet AFTER INSERT ON public.users FOR EACH ROW EXECUTE FUNCTION public.greet();
            INSERT INTO public.users VALUES ('Ann'), ('Bob');
            """
        )
        rows = await claim(session, limit=5)
        assert [json.loads(row["args"]) for row in rows] == [{"name": "Ann"}, {"name": "Bob"}]


class TestMany:
    async def test_enqueue_many_takes_a_hundred_thousand_jobs(self, app: App, session: Session) -> None:
        jobs = await app.enqueue_many(NewJob(kind="work", args_json=f'{{"number":{n}}}') for n in range(100_000))
        assert len(jobs) == 100_000
        assert [job.args["number"] for job in jobs[:3]] == [0, 1, 2]
        rows = await session.connection.fetch("SELECT id FROM awa.ready ORDER BY queue, priority, pos")
        assert [row["id"] for row in rows] == [job.id for job in jobs]

    async def test_results_are_in_the_order_of_the_jobs(self, app: App) -> None:
        wanted = [work(app, delay="1h"), work(app), work(app, priority=1), work(app, unique=Unique(key="k"))]
        jobs = await app.enqueue_many(wanted)
        assert [job.state for job in jobs] == [State.SCHEDULED, State.AVAILABLE, State.AVAILABLE, State.AVAILABLE]
        assert [job.priority for job in jobs] == [2, 2, 1, 2]
        assert [job.unique_key for job in jobs] == [None, None, None, "k"]

    async def test_enqueue_many_of_no_jobs_returns_nothing(self, app: App) -> None:
        assert await app.enqueue_many([]) == []

    async def test_jobs_larger_than_one_message_are_enqueued_all_or_none(
        self, app: App, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("awa_py.enqueue.enqueuer.MAX_STATEMENT_BYTES", 100)
        jobs = [app.new("work", {"text": "x" * 60}) for _ in range(10)]
        assert len(await app.enqueue_many(jobs)) == 10
        with pytest.raises(InvalidJob):
            await app.enqueue_many([*jobs, NewJob(kind="work", parent_id=2**70)])
        assert await states(session) == {"available": 10}

    async def test_same_unique_key_twice_in_a_call_is_one_job(self, app: App) -> None:
        first, other, second = await app.enqueue_many(
            [work(app, unique=Unique(key="k")), work(app), work(app, unique=Unique(key="k"))]
        )
        assert (first.is_new, other.is_new, second.is_new) == (True, True, False)
        assert second.id == first.id != other.id

    async def test_same_keys_in_opposite_order_do_not_deadlock(
        self, app: App, session: Session, database: Database
    ) -> None:
        """Both calls begin while another transaction holds the key in the middle."""
        forth = [work(app, unique=Unique(key=key)) for key in "abc"]
        waiting = (
            "SELECT count(*) = 2 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        async with another_session(database) as other:
            transaction = other.connection.transaction()
            await transaction.start()
            await app.enqueue("work", unique=Unique(key="b"), connection=other.connection)
            calls = asyncio.gather(app.enqueue_many(forth), app.enqueue_many(forth[::-1]))
            await eventually(lambda: session.connection.fetchval(waiting))
            await transaction.rollback()
            assert sum(job.is_new for jobs in await calls for job in jobs) == 3
        assert await states(session) == {"available": 3}


class TestUnique:
    async def test_enqueue_with_a_held_key_returns_the_holder(self, app: App) -> None:
        first = await app.enqueue("work", {"number": 1}, unique=True, tags=["first"])
        second = await app.enqueue("work", {"number": 1}, unique=True, tags=["second"])
        assert (first.is_new, second.is_new, second.id, second.tags) == (True, False, first.id, ["first"])

    async def test_unique_by_arguments_ignores_their_order(self, app: App) -> None:
        first = await app.enqueue("work", {"number": 1, "text": "a"}, unique=True)
        same = await app.enqueue("work", {"text": "a", "number": 1}, unique=True)
        other = await app.enqueue("work", {"number": 2, "text": "a"}, unique=True)
        assert same.id == first.id != other.id

    async def test_unique_by_chosen_arguments(self, app: App) -> None:
        first = await app.enqueue("work", {"number": 1, "text": "a"}, unique=Unique(by=["number"]))
        same = await app.enqueue("work", {"number": 1, "text": "b"}, unique=Unique(by=["number"]))
        other = await app.enqueue("work", {"number": 2, "text": "a"}, unique=Unique(by=["number"]))
        assert same.id == first.id != other.id

    async def test_kinds_share_only_explicit_unique_keys(self, app: App) -> None:
        assert (await app.enqueue("work", unique=True)).is_new
        assert (await app.enqueue("other", unique=True)).is_new
        assert (await app.enqueue("work", unique=Unique(key="k"))).is_new
        assert not (await app.enqueue("other", unique=Unique(key="k"))).is_new

    async def test_completed_job_frees_its_key(self, app: App, session: Session) -> None:
        first = await app.enqueue("work", unique=True)
        (row,) = await claim(session)
        assert not (await app.enqueue("work", unique=True)).is_new
        await complete_jobs(session, OWNER, [row["id"]], [row["lease"]], [None], keep=True)
        second = await app.enqueue("work", unique=True)
        assert second.is_new
        assert second.id != first.id

    async def test_cancelled_job_frees_its_key(self, app: App) -> None:
        first = await app.enqueue("work", unique=True)
        assert await app.cancel(first.id)
        assert (await app.enqueue("work", unique=True)).is_new

    async def test_deleted_job_frees_its_key(self, app: App) -> None:
        first = await app.enqueue("work", unique=True)
        assert await app.delete(first.id)
        assert (await app.enqueue("work", unique=True)).is_new

    async def test_key_with_a_period_is_held_after_completion(self, app: App, session: Session) -> None:
        first = await app.enqueue("work", unique="1h")
        (row,) = await claim(session)
        await complete_jobs(session, OWNER, [row["id"]], [row["lease"]], [None], keep=True)
        again = await app.enqueue("work", unique="1h")
        assert (again.id, again.is_new, again.state) == (first.id, False, State.COMPLETED)

    async def test_key_is_free_after_its_period(self, app: App, session: Session) -> None:
        first = await app.enqueue("work", unique="1h")
        await session.connection.execute("UPDATE awa.unique_keys SET expires_at = now()")
        second = await app.enqueue("work", unique="1h")
        assert second.is_new
        assert second.id != first.id

    async def test_key_is_held_only_in_the_chosen_states(self, app: App, session: Session) -> None:
        waiting = Unique(states=["available"])
        assert (await app.enqueue("work", unique=waiting)).is_new
        assert not (await app.enqueue("work", unique=waiting)).is_new
        await claim(session)
        assert (await app.enqueue("work", unique=waiting)).is_new

    async def test_fifty_concurrent_enqueues_of_a_key_are_one_job(self, app: App, session: Session) -> None:
        jobs = await asyncio.gather(*(app.enqueue("work", unique=Unique(key="k")) for _ in range(50)))
        assert len({job.id for job in jobs}) == 1
        assert sum(job.is_new for job in jobs) == 1
        assert await states(session) == {"available": 1}

    async def test_second_enqueue_of_a_key_waits_for_the_first_transaction(
        self, app: App, session: Session, database: Database
    ) -> None:
        transaction = session.connection.transaction()
        await transaction.start()
        first = await app.enqueue("work", unique=True, connection=session.connection)
        second = asyncio.create_task(app.enqueue("work", unique=True))
        done, _ = await asyncio.wait({second}, timeout=0.3)
        assert not done
        await transaction.commit()
        assert (await second).id == first.id

    async def test_cleanup_never_deletes_a_key_that_was_just_acquired(self, app: App, database: Database) -> None:
        filler = [NewJob(kind="work", unique=UniqueKey(key=f"a{n:04}")) for n in range(900)]
        await app.enqueue_many(filler)
        stop = asyncio.Event()

        async def clean_up() -> None:
            async with another_session(database) as other:
                while not stop.is_set():
                    await delete_free_unique_keys(other, after="", limit=1000)

        cleaning_up = asyncio.create_task(clean_up())
        try:
            for _ in range(150):
                first = await app.enqueue("work", unique=Unique(key="z"))
                second = await app.enqueue("work", unique=Unique(key="z"))
                assert (first.is_new, second.is_new) == (True, False)
                await app.delete(first.id)
        finally:
            stop.set()
            await cleaning_up


class TestRefused:
    @pytest.mark.parametrize(
        ("kind", "options", "message"),
        [
            ("", {}, "a kind's name cannot be empty"),
            ("  ", {}, "a kind's name cannot be empty"),
            ("x" * 201, {}, "a kind's name has at most 200 characters"),
            ("a\x00b", {}, "a kind's name cannot contain control characters"),
            ("work", {"queue": ""}, "a queue's name cannot be empty"),
            ("work", {"queue": "gh,slack"}, 'queue "gh,slack": a queue\'s name cannot contain a comma'),
            ("work", {"queue": "q" * 201}, "a queue's name has at most 200 characters"),
            ("work", {"queue": "a\nb"}, "a queue's name cannot contain control characters"),
            ("work", {"priority": 0}, "work: priority is 1 \\(first\\) to 4, not 0"),
            ("work", {"priority": 5}, "work: priority is 1 \\(first\\) to 4, not 5"),
            ("work", {"priority": "high"}, "work: priority is 1 \\(first\\) to 4, not 'high'"),
            ("work", {"max_attempts": 0}, "work: max_attempts is 1 to 32767, not 0"),
            ("work", {"max_attempts": 40_000}, "work: max_attempts is 1 to 32767, not 40000"),
            ("work", {"max_attempts": "5"}, "work: max_attempts is 1 to 32767, not '5'"),
            ("work", {"max_attempts": 2.5}, "work: max_attempts is 1 to 32767, not 2.5"),
            ("work", {"timeout": 0}, "work: timeout must be longer than 0"),
            ("work", {"run_at": datetime(2100, 1, 1)}, "work: run_at has no timezone"),
            ("work", {"deadline": datetime(2100, 1, 1)}, "work: deadline has no timezone"),
            ("work", {"run_at": "tomorrow"}, "work: run_at takes a datetime, not str"),
            ("work", {"run_at": datetime(2100, 1, 1, tzinfo=UTC), "delay": "1s"}, "either run_at or delay"),
            ("work", {"tags": "one"}, "work: tags is a list of strings, not one string"),
            ("work", {"tags": [""]}, "work: a tag is a string of 1 to 200 characters"),
            ("work", {"tags": ["a\x00"]}, "work: a tag is a string"),
            ("work", {"tags": [1]}, "work: a tag is a string"),
            ("work", {"metadata": {"x": math.nan}}, "work: metadata.x: NaN is not JSON"),
            ("work", {"metadata": {"x": "\x00"}}, "cannot be stored in PostgreSQL"),
            ("work", {"unique": Unique(key="a\x00")}, "a unique key has 1 to 1000 characters, no control"),
            ("work", {"unique": Unique(states=["asleep"])}, "'asleep' is not a state"),
            ("work", {"unique": Unique(states=[])}, "at least one state"),
        ],
    )
    def test_invalid_option_is_refused_with_a_clear_error(
        self, kind: str, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InvalidJob, match=message):
            App().new(kind, **options)

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            ({"nubmer": 1}, 'work: unexpected argument "nubmer" \\(did you mean "number"\\?\\)'),
            ({"number": "many"}, 'work: argument "number"'),
            ({"number": 1.5}, 'work: argument "number"'),
            ({"text": "a\x00b"}, 'work: argument "text": \\\\u0000 cannot be stored in PostgreSQL'),
            ({"text": "\ud800"}, 'work: argument "text": the lone surrogate \\\\ud800 cannot be stored'),
            ({"text": "x" * (1024 * 1024)}, "work: 1048587 bytes of arguments, the limit is 1048576 bytes"),
        ],
    )
    def test_error_of_an_invalid_argument_names_it(self, args: dict[str, Any], message: str) -> None:
        app = App()

        @app.job
        async def work(number: int = 0, text: str = "") -> None: ...

        with pytest.raises(InvalidJob, match=message):
            app.new("work", args)

    def test_nan_is_refused_for_an_unknown_kind(self) -> None:
        with pytest.raises(InvalidJob, match='argument "x": NaN is not JSON'):
            App().new("elsewhere", {"x": math.nan})

    def test_error_of_a_missing_argument_names_it(self) -> None:
        app = App()

        @app.job
        async def send(to: str) -> None: ...

        with pytest.raises(InvalidArguments, match='send: missing argument "to"'):
            send.new()  # type: ignore[call-arg]

    def test_error_of_an_unknown_option_names_it(self) -> None:
        with pytest.raises(ConfigError, match="work: there is no option 'prioritty'"):
            App().new("work", prioritty=1)  # type: ignore[call-arg]

    async def test_one_mebibyte_of_arguments_is_accepted(self, app: App) -> None:
        text = "x" * (1024 * 1024 - len('{"text":""}'))
        job = await app.enqueue("work", {"text": text})
        assert (await app.get(job.id)).args == {"text": text}

    async def test_sql_in_names_is_never_executed(self, app: App, session: Session) -> None:  # D6
        for odd in ["a'; DROP TABLE x--", "ünï ✓", '"quoted"', "back\\slash", "%s $1 {0}"]:
            job = await app.enqueue(odd, {}, queue=odd, tags=[odd], unique=Unique(key=odd))
            (row,) = await claim(session, queue=odd, kinds=[odd])
            second = await app.enqueue(odd, {}, queue=odd, tags=[odd])
            assert row["id"] == job.id
            for one in (await look(session, job.id), await look(session, second.id)):
                assert (one.kind, one.queue, one.tags) == (odd, odd, [odd])


WRONG_ROWS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "ready": [
        ({"priority": 5}, "priority_is_1_to_4"),
        ({"priority": 0}, "priority_is_1_to_4"),
        ({"attempt": 25}, "an_attempt_is_left"),
        ({"attempt": -1}, "attempt_is_counted"),
        ({"max_attempts": 0, "attempt": -1}, "max_attempts_is_positive|attempt_is_counted"),
        ({"lease": -1}, "lease_is_counted"),
        ({"kind": ""}, "kind_is_a_name"),
        ({"queue": "a,b"}, "queue_is_a_name"),
        ({"queue": ""}, "queue_is_a_name"),
        ({"args": "[]"}, "args_is_an_object"),
        ({"metadata": "1"}, "metadata_is_an_object"),
        ({"errors": "{}"}, "errors_is_a_list"),
        ({"timeout": timedelta(0)}, "timeout_is_positive"),
    ],
    "scheduled": [
        ({"state": "running"}, "state_is_not_due"),
        ({"state": "retryable", "attempt": 25}, "an_attempt_is_left"),
    ],
    "running": [
        ({"worker_id": OWNER, "attempt": 0, "lease": 1}, "attempts_are_within_bounds"),
        ({"worker_id": OWNER, "attempt": 26, "lease": 1}, "attempts_are_within_bounds"),
        ({"worker_id": OWNER, "attempt": 1, "lease": 0}, "lease_is_held"),
        ({"worker_id": OWNER, "attempt": 1, "lease": 1, "heartbeat_at": None}, "heartbeat_at"),  # A18
        ({"worker_id": None, "attempt": 1, "lease": 1}, "worker_id"),
    ],
    "completed": [({"worker_id": OWNER, "attempted_at": ago(1), "finalized_at": None}, "finalized_at")],
    "dead": [
        ({"state": "completed"}, "state_is_final"),
        ({"state": "failed", "finalized_at": None}, "finalized_at"),
    ],
}


class TestConstraints:
    @pytest.mark.parametrize("table", WRONG_ROWS)
    async def test_tables_refuse_an_invalid_row(self, session: Session, table: str) -> None:
        for columns, rule in WRONG_ROWS[table]:
            with pytest.raises(asyncpg.IntegrityConstraintViolationError, match=rule):
                await insert(session, table, **columns)

    async def test_tables_refuse_an_invalid_queue(self, session: Session) -> None:
        for columns, rule in [
            ("(name) VALUES ('a,b')", "queue_is_a_name"),
            ("(name, backoff_base) VALUES ('q', '0')", "backoff_base_is_positive"),
            ("(name, completed_retention) VALUES ('q', '-1 s')", "completed_retention_is_not_negative"),
            ("(name, paused_until) VALUES ('q', now())", "only_a_pause_has_an_end"),
            ("(name, timeout) VALUES ('q', '3000000 years')", "timeout_is_positive_and_below_1000_years"),
            ("(name, rate_tokens) VALUES ('q', '-Infinity')", "rate_tokens_are_a_number"),
            ("(name, rate_tokens) VALUES ('q', 'NaN')", "rate_tokens_are_a_number"),
            ("(name, throttled_until) VALUES ('q', 'infinity')", "times_are_between_1900_and_9000"),
        ]:
            with pytest.raises(asyncpg.CheckViolationError, match=rule):
                await session.connection.execute(f"INSERT INTO awa.queues {columns}")

    async def test_sql_enqueue_refuses_an_invalid_job(self, session: Session) -> None:
        for call, rule in [
            ("'work', priority => 9", "priority_is_1_to_4"),
            ("'', '{}'", "not the name of a kind: it must have 1 to 200 characters, and no control characters"),
            ("'a' || chr(8238)", "not the name of a kind"),
            ("'work', '[1]'", "args_is_an_object"),
            ("'work', queue => 'a,b'", "not the name of a queue: .* no control characters or commas"),
            ("'work', tags => ARRAY['a' || chr(10)]", "tags_are_names"),
            ("'work', unique_key => chr(27) || '[2J'", "key_is_a_name"),
            ("'work', concurrency_key => chr(8294)", "key_is_a_name"),
            (
                "'work', timeout => '290000 years'",
                "timeout is 290000 years: it must be longer than 0 and at most 365000",
            ),
            ("'work', timeout => '0'", "timeout is 00:00:00: it must be longer than 0"),
            ("'work', timeout => '5000000 years -1799999999 days'", "timeout is"),
            ("'work', delay => '-1 s'", "delay is -00:00:01: it must be 0 or longer and at most 365000 days"),
            ("'work', delay => '3000000 years'", "delay is 3000000 years"),
            ("'work', run_at => '4000-01-01 BC'", "run_at is .* BC: it must be between the years 1900 and 9000"),
            ("'work', run_at => '-infinity'", "run_at is -infinity"),
            ("'work', deadline => 'infinity'", "deadline is infinity: it must be between the years 1900 and 9000"),
            ("'work', unique_key => 'k', unique_for => '3000000 years'", "unique_for is 3000000 years"),
            ("'work', unique_key => 'k', unique_states => '{nowhere}'", "states_are_states"),
        ]:
            with pytest.raises(asyncpg.CheckViolationError, match=rule):
                await session.connection.execute(f"SELECT awa.enqueue({call})")
        with pytest.raises(asyncpg.NotNullViolationError, match="kind"):
            await session.connection.execute("SELECT awa.enqueue(NULL)")


async def test_get_returns_a_job_in_any_state(app: App, session: Session) -> None:
    ids = await put(session, NewJob(kind="a"), NewJob(kind="b", delay=timedelta(hours=1)))
    found = await get_jobs(session, [*ids, 10**9])
    assert {job_id: job.state for job_id, job in found.items()} == {ids[0]: State.AVAILABLE, ids[1]: State.SCHEDULED}
    assert all(isinstance(job, Job) for job in found.values())


async def test_enqueue_many_sends_one_wake_up_per_queue(app: App, session: Session, database: Database) -> None:
    notifications = await listen(session, "a", "b")
    await app.enqueue_many([work(app, queue=queue) for queue in ("a", "b", "unsubscribed") for _ in range(50)])
    await session.connection.execute("SELECT pg_notify('awa', 'end:')")
    await eventually(lambda: "end:" in notifications)
    assert await count(session.connection, "SELECT count(*) FROM awa.ready") == 150
    assert sorted(notifications) == ["end:", "ready:a", "ready:b"]


async def test_commit_of_a_job_wakes_only_subscribed_workers(app: App, session: Session) -> None:
    notifications = await listen(session, "a")
    async with app.pool.acquire() as own, own.transaction():
        await app.enqueue("work", queue="a", connection=own)
        await app.enqueue("work", queue="unsubscribed", connection=own)
        await session.connection.execute("SELECT pg_notify('awa', 'before:')")
        assert notifications == ["before:"]
    await session.connection.execute("SELECT pg_notify('awa', 'end:')")
    await eventually(lambda: "end:" in notifications)
    assert notifications == ["before:", "ready:a", "end:"]
