"""Record the cost of a workload: WAL, transactions, CPU time, and rows that vacuum has to remove.

Transactions and rows come from PostgreSQL's statistics. A session reports them at most once a second while it works,
after up to ten seconds of idleness, and when it ends. So they are read after the sessions of the workload have ended
(`costs`), and a workload that begins with open sessions lets them report first (`workload.warm_up_sessions`).
WAL and CPU time are read immediately, at the beginning (`start`) and at the end of the measured time (`stop`).

Transactions are counted for the whole database, WAL and the server's CPU time for the whole server: other load on it is
included.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from awa_py.connections import DedicatedConnection, Record
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from awa_py.errors import AwaError

from . import cpu
from .costs import Costs, ServerSettings

if TYPE_CHECKING:  # asyncpg's classes are generic in its stubs only
    from asyncpg.prepared_stmt import PreparedStatement

    Statement = PreparedStatement[Record]

REPORT_INTERVAL_S = 1.1  # a session reports its statistics once a second
POLL_INTERVAL_S = 0.05
STABLE_READS = 2
MAX_READS = 20  # with other load on the server, the counters never stop changing
FORCED_REPORT_VERSION = 15  # the first version in which a session can be told to report at once

# Each read reports its own transaction too, so the next read sees everything that this session did before.
COUNTERS = """
    SELECT xact_commit + xact_rollback AS transactions,
           (SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = 'awa')
               AS dead{flush}
    FROM pg_stat_database WHERE datname = current_database()
"""
WAL = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"
# Jobs that are due on another day are not part of the workload.
IS_EMPTY = """
    SELECT NOT EXISTS (SELECT FROM awa.running) AND NOT EXISTS (SELECT FROM awa.ready)
       AND NOT EXISTS (SELECT FROM awa.scheduled WHERE run_at < now() + '1 day')
"""
SERVER = """
    SELECT split_part(current_setting('server_version'), ' ', 1) AS version, current_setting('fsync')::bool AS fsync,
           current_setting('synchronous_commit') <> 'off' AS synchronous_commit,
           inet_server_addr() IS NOT DISTINCT FROM inet_client_addr() AS is_local
"""


@dataclass(frozen=True, slots=True)
class Counters:
    """PostgreSQL's statistics, without the recorder's own transactions."""

    transactions: int
    dead: int


@dataclass(frozen=True, slots=True)
class Usage:
    """The values that can be read at any time."""

    wal_bytes: int | None
    client_ns: int | None
    server_ns: int | None


class CostRecorder:
    """Record the costs between `start` and `stop`, and detect when the queue is empty."""

    def __init__(self, connection: DedicatedConnection, server: ServerSettings, postmaster: int | None) -> None:
        self.connection = connection
        self.server = server
        self._postmaster = postmaster
        self._children: tuple[int, ...] = ()
        self._own_transactions = 0  # since the statements were prepared

    async def prepare(self, schema: Schema) -> None:
        """Prepare the statements. After that, each use of one is exactly one transaction, which is subtracted."""
        can_force = self.connection.get_server_version().major >= FORCED_REPORT_VERSION
        counters = COUNTERS.format(flush=", pg_stat_force_next_flush()" if can_force else "")
        self._read_interval_s = POLL_INTERVAL_S if can_force else REPORT_INTERVAL_S
        self._is_empty = await self.connection.prepare(schema.qualify(IS_EMPTY))
        self._counters = await self.connection.prepare(schema.qualify(counters))
        self._wal = await self._prepare_wal()

    async def start(self, *children: int) -> None:
        """Begin to record. The CPU time of these processes and their children counts as the client's."""
        self._children = children
        self._counters_before = await self._read_stable_counters()
        self._usage_before = await self._read_usage()

    async def stop(self) -> None:
        self._usage_after = await self._read_usage()

    async def costs(self, jobs: int) -> Costs:
        """Return the costs per job. Call it after all other sessions of the workload have ended."""
        before, after = self._counters_before, await self._read_stable_counters()
        usage = (self._usage_before, self._usage_after)
        client = _difference(*(each.client_ns for each in usage))
        server = _difference(*(each.server_ns for each in usage))
        wal = _difference(*(each.wal_bytes for each in usage))
        return Costs(
            wal_bytes_per_job=None if wal is None else round(wal / jobs, 1),
            transactions_per_job=round((after.transactions - before.transactions) / jobs, 4),
            cpu_us_per_job={
                "client": None if client is None else round(client / 1000 / jobs, 1),
                "server": None if server is None else round(server / 1000 / jobs, 1),
            },
            dead_tuples_per_job=round((after.dead - before.dead) / jobs, 3),
        )

    async def is_empty(self) -> bool:
        """Return True if no job is due or running."""
        self._own_transactions += 1
        return bool(await self._is_empty.fetchval())

    async def wait_until_empty(self, *, poll_interval_s: float, timeout_s: float) -> float:
        """Wait until no job is due or running. Return the time on time.perf_counter.

        This is the time at which the last query was sent, not that of its reply: the query may have had to skip all
        dead rows of the run.
        """
        deadline = time.perf_counter() + timeout_s
        while True:
            asked = time.perf_counter()
            if await self.is_empty():
                return asked
            if asked > deadline:
                raise AwaError(f"the queue is still not empty, {timeout_s:.0f} s after all jobs should have ended")
            await asyncio.sleep(poll_interval_s)

    async def _prepare_wal(self) -> "Statement | None":
        """Return None if the server does not allow to read its WAL position, as some hosted servers do."""
        try:
            statement = await self.connection.prepare(WAL)
            await statement.fetchval()
        except (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedFunctionError, asyncpg.FeatureNotSupportedError):
            return None
        return statement

    async def _read_stable_counters(self) -> Counters:
        """Read the counters until they stop changing: a session that ends reports a moment later."""
        last, stable = await self._read_counters(), 0
        for _ in range(MAX_READS):
            await asyncio.sleep(self._read_interval_s)
            now = await self._read_counters()
            last, stable = now, stable + 1 if now == last else 0
            if stable == STABLE_READS:
                break
        return last

    async def _read_counters(self) -> Counters:
        row = await self._counters.fetchrow()
        assert row is not None
        counters = Counters(row["transactions"] - self._own_transactions, row["dead"])
        self._own_transactions += 1
        return counters

    async def _read_usage(self) -> Usage:
        wal = None
        if self._wal is not None:
            self._own_transactions += 1
            wal = await self._wal.fetchval()
        client = [time.process_time_ns(), *map(cpu.used_with_children_ns, self._children)]
        return Usage(
            wal_bytes=wal,
            client_ns=None if None in client else sum(filter(None, client)),
            server_ns=None if self._postmaster is None else cpu.used_with_children_ns(self._postmaster),
        )


@asynccontextmanager
async def recording_costs(database: Database) -> AsyncIterator[CostRecorder]:
    """Yield a recorder with its own session, which must outlive the sessions that it measures."""
    connection = await database.connect("bench")
    try:
        row = await connection.fetchrow(SERVER)
        assert row is not None
        server = ServerSettings(server=row["version"], fsync=row["fsync"], synchronous_commit=row["synchronous_commit"])
        postmaster = cpu.find_postmaster(connection.get_server_pid()) if row["is_local"] else None
        recorder = CostRecorder(connection, server, postmaster)
        await recorder.prepare(database.schema)
        yield recorder
    finally:
        await connection.close()


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
