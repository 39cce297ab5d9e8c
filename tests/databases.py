"""Databases for the tests.

Each pytest process has one migrated database and empties it before each test that asks for it. That costs a few
milliseconds; a copy of the template costs a quarter of a second of CPU. A test may do to the database what it likes:
if the catalog changed, or there are planner statistics, the next test gets a new copy.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit, urlunsplit
from uuid import uuid4

import asyncpg

from awa_py.connections import DedicatedConnection, Record
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from tests import large_database

TRUNCATE_BYTES = 256 * 1024  # deleting and vacuuming smaller tables is cheaper: TRUNCATE makes a file for each index
FIRST_OID = 16384  # smaller ones are PostgreSQL's own

# Each change of the schema makes or removes a row in one of these.
CATALOGS = {
    "pg_attribute": f"attrelid >= {FIRST_OID}",
    "pg_attrdef": "true",
    "pg_constraint": f"oid >= {FIRST_OID}",
    "pg_db_role_setting": "true",
    "pg_default_acl": "true",
    "pg_event_trigger": "true",
    "pg_extension": "true",
    "pg_index": f"indexrelid >= {FIRST_OID}",
    "pg_inherits": "true",
    "pg_namespace": "nspname !~ '^pg_(toast_)?temp_'",
    "pg_policy": "true",
    "pg_proc": f"oid >= {FIRST_OID}",
    "pg_publication": "true",
    "pg_rewrite": f"ev_class >= {FIRST_OID}",
    "pg_statistic": f"starelid >= {FIRST_OID}",  # a test ran ANALYZE
    "pg_statistic_ext": "true",
    "pg_trigger": "true",
    "pg_type": f"oid >= {FIRST_OID}",
}
# VACUUM and TRUNCATE write to pg_class too, hence the list of columns.
FINGERPRINT = " UNION ALL ".join(
    [
        *(
            f"SELECT '{name}', count(*), coalesce(max(xmin::text::bigint), 0) FROM {name} WHERE {condition}"
            for name, condition in CATALOGS.items()
        ),
        f"""SELECT 'pg_class', count(*), coalesce(bit_xor(hashtextextended(ROW(oid, relname, relnamespace, relowner,
        relkind, relpersistence, relam, relacl, reloptions, reltablespace)::text, 0)), 0)
        FROM pg_class WHERE oid >= {FIRST_OID}""",
        """SELECT 'pg_database', 1, hashtextextended(ROW(datconnlimit, datallowconn, datacl, datdba)::text, 0)
        FROM pg_database WHERE datname = current_database()""",
    ]
)
END_SESSIONS = """
    SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type <> 'parallel worker'
"""
USED_TABLES = """
    SELECT format('%I.%I', 'awa', relname) AS name, pg_table_size(oid) AS bytes FROM pg_class
    WHERE relnamespace = 'awa'::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0
"""
RESTART_SEQUENCES = """
    SELECT setval(seqrelid::regclass, seqstart, false) FROM pg_sequence
    WHERE pg_sequence_last_value(seqrelid) IS NOT NULL
"""
# VACUUM leaves row counts, and the planner trusts them. A table that was never vacuumed has -1.
FORGET = f"""
    UPDATE pg_class SET relpages = 0, reltuples = -1, relallvisible = 0
    WHERE oid >= {FIRST_OID} AND relkind = 'r' AND reltuples <> -1;
    SELECT pg_stat_force_next_flush()
"""
RESET_COUNTERS = "SELECT pg_stat_reset()"
# Without foreign keys and triggers.
SESSION = {"application_name": "awa-tests", "session_replication_role": "replica"}
NOT_RESETTING = "application_name <> 'awa-tests'"  # tests that look at all sessions leave that one out


class Server:
    """The server of the tests, and the migrated database there that is copied for others."""

    def __init__(self, url: str, template: str) -> None:
        self.url = url
        self._template = template

    @property
    def template(self) -> str:
        """The name of a migrated database. The first of the pytest processes that asks for it makes it."""
        asyncio.run(self._make(self._template, "", _migrate))
        return self._template

    @property
    def large_database_url(self) -> str:
        """The address of a database with large tables, made in the same way."""
        name = f"{self._template}_large"
        asyncio.run(self._make(name, f"TEMPLATE {self.template}", large_database.fill))
        return with_database(self.url, name)

    def drop_shared(self) -> None:
        for name in (self._template, f"{self._template}_large"):
            self.drop(name)

    @contextmanager
    def database(self, options: str = "") -> Iterator[str]:
        """Make a database, and drop it at the end."""
        name = self.create(options)
        yield with_database(self.url, name)
        self.drop(name)

    def create(self, options: str = "") -> str:
        name = f"awa_test_{uuid4().hex[:12]}"
        asyncio.run(self._execute(f"CREATE DATABASE {name} {options}"))
        return name

    def drop(self, name: str) -> None:
        asyncio.run(self._execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))

    async def _make(self, name: str, options: str, fill: Callable[[str], Awaitable[None]]) -> None:
        """Make and fill a database, unless another process has done so."""
        unfinished = f"{name}_unfinished"
        admin: DedicatedConnection = await asyncpg.connect(self.url)
        try:
            await admin.execute("SELECT pg_advisory_lock(1)")
            if not await admin.fetchval("SELECT true FROM pg_database WHERE datname = $1", name):
                await admin.execute(f"CREATE DATABASE {unfinished} {options}")
                await fill(with_database(self.url, unfinished))
                await admin.execute(f"ALTER DATABASE {unfinished} RENAME TO {name}")
        finally:
            await admin.close()

    async def _execute(self, command: str) -> None:
        admin: DedicatedConnection = await asyncpg.connect(self.url)
        try:
            await admin.execute(command)
        finally:
            await admin.close()


class SharedDatabase:
    """A migrated database that serves one test after the other."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)  # the connection outlives the tests' loops
        self._connection: DedicatedConnection | None = None
        self._name = ""
        self._fingerprint: Sequence[Record] = ()
        self._rows: dict[str, str] = {}

    def empty(self) -> str:
        """Bring the database into the state in which the migrations left it. Return its address."""
        if self._connection is None or not self._runner.run(self._reset(self._connection)):
            self._drop()
            self._name = self._server.create(f"TEMPLATE {self._server.template}")
            self._connection = self._runner.run(self._connect())
        return with_database(self._server.url, self._name)

    def close(self) -> None:
        self._drop()
        self._runner.close()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
            self._server.drop(self._name)

    async def _connect(self) -> DedicatedConnection:
        url = with_database(self._server.url, self._name)
        connection: DedicatedConnection = await asyncpg.connect(url, server_settings=SESSION)
        self._fingerprint = await connection.fetch(FINGERPRINT)
        self._rows = {name: await _rows(connection, name) for name, _ in await connection.fetch(USED_TABLES)}
        return connection

    async def _reset(self, connection: DedicatedConnection) -> bool:
        """Empty the tables. Return False if that is not enough."""
        await connection.execute(END_SESSIONS)
        if await connection.fetch(FINGERPRINT) != self._fingerprint:
            return False
        sizes = {
            name: size
            for name, size in await connection.fetch(USED_TABLES)
            if name not in self._rows or await _rows(connection, name) != self._rows[name]
        }
        commands = [f"TRUNCATE {name} CASCADE" for name, size in sizes.items() if size > TRUNCATE_BYTES]
        commands += [f"DELETE FROM {name}" for name, size in sizes.items() if size <= TRUNCATE_BYTES]
        for name in sizes.keys() & self._rows.keys():
            rows = f"json_populate_recordset(NULL::{name}, $rows${self._rows[name]}$rows$)"
            commands.append(f"INSERT INTO {name} SELECT * FROM {rows}")
        await connection.execute(";".join([*commands, RESTART_SEQUENCES]))
        if sizes:
            await connection.execute(f"VACUUM (INDEX_CLEANUP ON) {', '.join(sizes)}")
        await connection.execute(FORGET)
        await connection.execute(RESET_COUNTERS)
        return True


def make_logins_cheap(url: str) -> None:
    """Hash the password again with one iteration instead of 4096, which take a client a millisecond per connection."""
    asyncio.run(_hash_password(url))


async def _hash_password(url: str) -> None:
    parts = urlsplit(url)
    connection: DedicatedConnection = await asyncpg.connect(url)
    try:
        if connection.get_server_version().major >= 16:
            await connection.execute("SET scram_iterations = 1")
            await connection.execute(f"ALTER ROLE {parts.username} PASSWORD '{unquote(parts.password or '')}'")
    finally:
        await connection.close()


async def _migrate(url: str) -> None:
    await migrations.migrate(Database(url, Schema()))


async def _rows(connection: DedicatedConnection, table: str) -> str:
    return str(await connection.fetchval(f"SELECT json_agg(t) FROM {table} AS t"))


def with_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
