"""Whatever an operator writes into a table is refused, or stops neither a worker, nor the leader, nor a command."""

import asyncio
import json
from collections.abc import Iterator

import asyncpg
import pytest
from awa_cli.main import app as command
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from awa_py import App, State
from awa_py.maintenance.tasks import one_shot_tasks
from awa_py.store.session import Session
from tests.fuzz import FACTOR, cases
from tests.support import QUICK, drain, insert, look

pytestmark = pytest.mark.integration

# A row of each table that operators edit, or may edit.
ROWS = {
    "queues": "INSERT INTO awa.queues (name) VALUES ('default')",
    "routes": "INSERT INTO awa.routes (pattern, queue) VALUES ('other', 'default')",
    "rate_limits": "INSERT INTO awa.rate_limits (name, count, period, burst, tokens) VALUES ('gh', 5, '1 hour', 5, 5)",
    "cron": "INSERT INTO awa.cron (name, expression, timezone, kind) VALUES ('tick', '* * * * *', 'UTC', 'work')",
    "kinds": "INSERT INTO awa.kinds (kind, priority, max_attempts, version) VALUES ('other', 2, 25, '1')",
    "workers": "INSERT INTO awa.workers (id, hostname, pid, version, queues, kinds, concurrency) "
    "VALUES ('00000000-0000-0000-0000-000000000001', 'h', 1, '1', '{default}', '{work}', 1)",
    "leader": "SELECT 1",
    "unique_keys": "INSERT INTO awa.unique_keys (key, job_id, states) VALUES ('k', 1, '{running}')",
}
ODD_VALUES = {
    "timestamp with time zone": ("infinity", "-infinity", "4000-01-01 BC", "294276-12-31", "1970-01-01", "8999-12-31"),
    "interval": ("0", "-1 day", "1 microsecond", "178000000 years", "-178000000 years", "365000 days"),
    "smallint": ("0", "-1", "32767", "-32768"),
    "integer": ("0", "-1", "2147483647", "-2147483648"),
    "bigint": ("0", "-1", "9223372036854775807", "-9223372036854775808"),
    "double precision": ("0", "-1", "NaN", "Infinity", "-Infinity", "1e308", "1e-308"),
    "real": ("0", "-1", "NaN", "Infinity", "-Infinity"),
    "numeric": ("0", "-1", "NaN", "Infinity", "1e1000"),
    "boolean": ("true", "false"),
    "text": ("", " ", "x" * 5_000, "a\\nb", "\u202eevil", "\x1b[31m", "*", "{n}", "0 0 30 2 *", "Mars/Phobos"),
    "jsonb": (
        "null",
        "1",
        "[]",
        "{}",
        '"x"',
        '{"a": ' * 200 + "1" + "}" * 200,
        '{"priority": "x", "delay": "infinity"}',
    ),
    "json": ("null", "1", "[]", "{}"),
    "integer[]": ("{}", "{NULL}", "{1,2}"),
    "text[]": ("{}", "{NULL}", "{{a,b},{c,d}}", '{""}', '{"a\\nb"}'),
    "uuid": ("00000000-0000-0000-0000-000000000000",),
}
SAMPLED = 7  # without `make fuzz`, every seventh edit: all of them take two minutes
COMMANDS = (
    ["job", "list"], ["queue", "list"], ["queue", "show", "default"], ["cron", "list"], ["cron", "preview", "tick"],
    ["rate", "list"], ["route", "list"], ["kinds", "list"], ["workers"], ["leader"], ["stats"], ["doctor"],
)  # fmt: skip


async def edits(session: Session, table: str) -> list[tuple[str, str | None]]:
    """Return a column and a value for each odd value of the table."""
    rows = await session.connection.fetch(
        "SELECT attname, format_type(atttypid, NULL) AS type FROM pg_attribute "
        "WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''",
        f"awa.{table}",
    )
    edits = [(row["attname"], value) for row in rows for value in (None, *ODD_VALUES[row["type"]])]
    return edits if FACTOR > 1 else edits[::SAMPLED]


@pytest.mark.parametrize("table", ROWS)
async def test_odd_value_in_a_row_stops_nothing(session: Session, database_url: str, table: str) -> None:
    app = App(database_url, settings=QUICK)

    @app.job
    async def work() -> None: ...

    accepted = 0
    async with app:
        for column, value in await edits(session, table):
            await session.connection.execute(f"DELETE FROM awa.{table}" if table != "leader" else "SELECT 1")
            await session.connection.execute(ROWS[table])
            try:
                literal = "NULL" if value is None else "E'" + value.replace("'", "''") + "'"
                await session.connection.execute(f"UPDATE awa.{table} SET {column} = {literal}")
            except asyncpg.PostgresError:
                continue
            accepted += 1
            about = f"awa.{table}.{column} = {str(value)[:60]!r}"
            await _check_that_all_works(app, session, database_url, about)
        assert accepted


async def _check_that_all_works(app: App, session: Session, database_url: str, about: str) -> None:
    for task in one_shot_tasks(app.settings, ()):
        try:
            await app.maintenance.run(task)
        except Exception as error:
            raise AssertionError(f"{about}: {task} failed: {error!r}") from error
    (job_id,) = await insert(session, "ready", queue="healthy", kind="work")
    async with asyncio.timeout(30):
        await drain(app, "healthy")  # the edited row may rightly hold the jobs of its own queue
    assert (await look(session, job_id)).state is State.COMPLETED, about
    for words in COMMANDS:
        result = await asyncio.to_thread(
            CliRunner().invoke, command, words, env={"AWA_DATABASE_URL": database_url}, prog_name="awa"
        )
        assert result.exception is None or isinstance(result.exception, SystemExit), (about, words, result.exception)


NAMES = st.one_of(st.text(max_size=8), st.sampled_from(["", "a\nb", "\u202e", "x" * 300, "a,b"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
TIMES = st.sampled_from(["infinity", "-infinity", "4000-01-01 BC", "294276-01-01", "2030-01-01", "tomorrow", "x"])
LENGTHS = st.sampled_from(["infinity", "0", "-1 day", "3000000 years", "-6000 years", "10 minutes", "1 day", "x"])
NUMBERS = st.sampled_from([0, -1, 1, 4, 5, 25, 32767, 32768, 2**31, 1.5, "2", None])
FIELDS = {
    "kind": NAMES, "queue": NAMES, "default_queue": NAMES, "args": JSON, "metadata": JSON, "priority": NUMBERS,
    "max_attempts": NUMBERS, "run_at": TIMES, "deadline": TIMES, "delay": LENGTHS, "timeout": LENGTHS,
    "tags": JSON | st.lists(NAMES, max_size=3), "parent_id": NUMBERS, "unique_key": NAMES, "unique_for": LENGTHS,
    "unique_states": JSON | st.just(["running"]), "concurrency_key": NAMES, "concurrency_limit": NUMBERS,
    "ordered": JSON, "as_given": JSON, "unknown": JSON,
}  # fmt: skip


@st.composite
def new_jobs(draw: st.DrawFn) -> list[object]:
    names = draw(st.sets(st.sampled_from(sorted(FIELDS)), max_size=5))
    job = {"kind": "work", **{name: draw(FIELDS[name]) for name in sorted(names)}}
    return draw(st.sampled_from([[job], [{"kind": "work"}, job], [job, job]]))


def test_enqueue_many_refuses_a_job_or_adds_one_that_runs(database_url: str, session: Session) -> None:
    """One connection serves all cases, each in a transaction that is rolled back."""

    async def run(batches: Iterator[list[object]]) -> None:
        connection = await asyncpg.connect(database_url)
        for jobs in batches:
            savepoint = connection.transaction()
            await savepoint.start()
            try:
                text = json.dumps(jobs).replace("\\u0000", "")
                rows = await connection.fetch("SELECT * FROM awa.enqueue_many($1::jsonb)", text)
                shown = await connection.fetch(
                    "SELECT * FROM awa.jobs WHERE id = ANY ($1)", [row["id"] for row in rows]
                )
                assert len(rows) == len(jobs)
                assert shown
            except asyncpg.InternalServerError as error:
                raise AssertionError(jobs) from error
            except asyncpg.PostgresError:
                continue
            finally:
                await savepoint.rollback()
        await connection.close()

    found: list[list[object]] = []

    @cases(1_000)
    @given(new_jobs())
    def collect(jobs: list[object]) -> None:
        found.append(jobs)

    collect()
    asyncio.run(run(iter(found)))
