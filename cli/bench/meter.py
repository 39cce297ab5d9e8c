"""What a workload cost: WAL, transactions, CPU, and rows that vacuum has to remove.

Transactions and rows come from PostgreSQL's statistics, which a session reports once a second at the most while it
works, after up to ten seconds of idleness, and for certain when it ends. So they are read when the sessions of the
workload have ended (`costs`), and a workload that begins with sessions in use lets them report first (workload.settle).
WAL and CPU are read at once, at the beginning (`start`) and when the clock stops (`stop`).

Transactions are the whole database's, WAL and the server's CPU the whole server's: whoever else is at work there is
counted too.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.db.types import DedicatedConnection, Record
from awa_py.errors import AwaError

from . import cpu
from .costs import Costs, Server

if TYPE_CHECKING:  # asyncpg's classes are generic in its stubs only
    from asyncpg.prepared_stmt import PreparedStatement

    Statement = PreparedStatement[Record]

REPORTED_S = 1.1  # a session reports its statistics once a second
LOOK_EVERY_S = 0.05
STEADY_LOOKS = 2
MOST_LOOKS = 20  # where others are at work too, they never stand still
REPORTS_AT_ONCE = 15  # the version from which on a session can be told to report at once

# Each look reports its own transaction too: the next one sees all that this session did before.
COUNTERS = """
    SELECT xact_commit + xact_rollback AS transactions,
           (SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = 'awa')
               AS dead{flush}
    FROM pg_stat_database WHERE datname = current_database()
"""
WAL = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"
# What is due some other day is no part of the workload, but of what it finds there.
DRAINED = """
    SELECT NOT EXISTS (SELECT FROM awa.running) AND NOT EXISTS (SELECT FROM awa.ready)
       AND NOT EXISTS (SELECT FROM awa.scheduled WHERE state <> 'waiting' AND run_at < now() + '1 day')
"""
SERVER = """
    SELECT split_part(current_setting('server_version'), ' ', 1) AS version, current_setting('fsync')::bool AS fsync,
           current_setting('synchronous_commit') <> 'off' AS synchronous_commit,
           inet_server_addr() IS NOT DISTINCT FROM inet_client_addr() AS is_here
"""


@dataclass(frozen=True, slots=True)
class Counters:
    """What the statistics said, without our own looking."""

    transactions: int
    dead: int


@dataclass(frozen=True, slots=True)
class Spent:
    """What can be read at any moment."""

    wal_bytes: int | None
    client_ns: int | None
    server_ns: int | None


class Meter:
    """Reads the costs of what happens between its start and its stop, and says when the queue is empty."""

    def __init__(self, connection: DedicatedConnection, server: Server, postmaster: int | None) -> None:
        self.connection = connection
        self.server = server
        self._postmaster = postmaster
        self._children: tuple[int, ...] = ()
        self._own = 0  # transactions of this session since its statements were prepared

    async def prepare(self, schema: Schema) -> None:
        """Prepares the statements: from then on each use of one is one transaction, which can be subtracted."""
        reports = self.connection.get_server_version().major >= REPORTS_AT_ONCE
        counters = COUNTERS.format(flush=", pg_stat_force_next_flush()" if reports else "")
        self._look_every_s = LOOK_EVERY_S if reports else REPORTED_S
        self._drained = await self.connection.prepare(schema.qualify(DRAINED))
        self._counters = await self.connection.prepare(schema.qualify(counters))
        self._wal = await self._prepared_wal()

    async def start(self, *children: int) -> None:
        """From here on; the CPU of these processes is the client's too."""
        self._children = children
        self._counted = await self._settled()
        self._began = await self._spent()

    async def stop(self) -> None:
        self._ended = await self._spent()

    async def costs(self, jobs: int) -> Costs:
        """What each job cost; to be asked for when all other sessions of the workload have ended."""
        counted, spent = await self._settled(), (self._began, self._ended)
        client = _difference(*(each.client_ns for each in spent))
        server = _difference(*(each.server_ns for each in spent))
        wal = _difference(*(each.wal_bytes for each in spent))
        return Costs(
            wal_bytes_per_job=None if wal is None else round(wal / jobs, 1),
            transactions_per_job=round((counted.transactions - self._counted.transactions) / jobs, 4),
            cpu_us_per_job={
                "client": None if client is None else round(client / 1000 / jobs, 1),
                "server": None if server is None else round(server / 1000 / jobs, 1),
            },
            dead_tuples_per_job=round((counted.dead - self._counted.dead) / jobs, 3),
        )

    async def is_drained(self) -> bool:
        """Whether nothing waits and nothing runs."""
        self._own += 1
        return bool(await self._drained.fetchval())

    async def drained(self, *, every_s: float, patience_s: float) -> float:
        """Waits until nothing waits and nothing runs; the moment, on time.perf_counter.

        It is the moment at which the last question was asked, and not that of its answer, which may have had to pass
        by all the dead rows of the run.
        """
        deadline = time.perf_counter() + patience_s
        while True:
            asked = time.perf_counter()
            if await self.is_drained():
                return asked
            if asked > deadline:
                raise AwaError(f"the queue is not empty yet, {patience_s:.0f} s after all its jobs should have ended")
            await asyncio.sleep(every_s)

    async def _prepared_wal(self) -> "Statement | None":
        """Some hosted servers keep their position to themselves."""
        try:
            statement = await self.connection.prepare(WAL)
            await statement.fetchval()
        except (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedFunctionError, asyncpg.FeatureNotSupportedError):
            return None
        return statement

    async def _settled(self) -> Counters:
        """The counters, once they do not move any more: a session that ends reports a moment later."""
        last, steady = await self._look(), 0
        for _ in range(MOST_LOOKS):
            await asyncio.sleep(self._look_every_s)
            now = await self._look()
            last, steady = now, steady + 1 if now == last else 0
            if steady == STEADY_LOOKS:
                break
        return last

    async def _look(self) -> Counters:
        row = await self._counters.fetchrow()
        assert row is not None
        seen = Counters(row["transactions"] - self._own, row["dead"])
        self._own += 1
        return seen

    async def _spent(self) -> Spent:
        wal = None
        if self._wal is not None:
            self._own += 1
            wal = await self._wal.fetchval()
        client = [time.process_time_ns(), *map(cpu.used_ns, self._children)]
        return Spent(
            wal_bytes=wal,
            client_ns=None if None in client else sum(filter(None, client)),
            server_ns=None if self._postmaster is None else cpu.family_ns(self._postmaster),
        )


@asynccontextmanager
async def metered(database: Database) -> AsyncIterator[Meter]:
    """A meter with a session of its own; it has to outlive the sessions that it measures."""
    connection = await database.connect("bench")
    try:
        row = await connection.fetchrow(SERVER)
        assert row is not None
        server = Server(server=row["version"], fsync=row["fsync"], synchronous_commit=row["synchronous_commit"])
        postmaster = cpu.postmaster_of(connection.get_server_pid()) if row["is_here"] else None
        meter = Meter(connection, server, postmaster)
        await meter.prepare(database.schema)
        yield meter
    finally:
        await connection.close()


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
