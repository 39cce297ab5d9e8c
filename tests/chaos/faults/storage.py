"""Faults inside a server that runs: locks, VACUUM FULL, old snapshots, a full disk."""

import asyncio
import random
from contextlib import suppress

import asyncpg

from tests.chaos.cluster import STALENESS_S, Cluster
from tests.chaos.faults.base import Fault


class LockTable(Fault):
    area = "server"
    name = "lock a table"
    what = "ACCESS EXCLUSIVE on a table of awa, for up to longer than the staleness"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._table = self.rng.choice(["ready", "running", "scheduled", "completed", "workers", "queues", "cron"])
        self._seconds = self.rng.uniform(1, STALENESS_S + 2)

    async def run(self, cluster: Cluster) -> None:
        self.note(f"{self._table}, {self._seconds:.1f} s")
        async with cluster.primary.connection() as connection, connection.transaction():
            await connection.execute(f"LOCK TABLE awa.{self._table} IN ACCESS EXCLUSIVE MODE")
            await asyncio.sleep(self._seconds)


class CutWaitingClaim(Fault):
    area = "server"
    name = "cut a claim that waits for a lock"
    what = "a worker's connections are cut while its claim waits; the claim commits later"

    async def run(self, cluster: Cluster) -> None:
        node = self.choose(cluster.workers)
        self.note(node.name)
        with self.cutting_off(node):
            async with cluster.primary.connection() as connection, connection.transaction():
                # Claims insert into this table, and wait. Looking for orphans only reads it.
                await connection.execute("LOCK TABLE awa.running IN SHARE ROW EXCLUSIVE MODE")
                await asyncio.sleep(1)
                node.network.cut()
                await asyncio.sleep(2.5)


class VacuumFull(Fault):
    area = "server"
    name = "VACUUM FULL"
    what = "of all tables that claims and finishes use, one after another"

    async def run(self, cluster: Cluster) -> None:
        async with cluster.primary.connection() as connection:
            for table in ("ready", "running", "scheduled", "completed", "dead", "workers"):
                await connection.execute(f"VACUUM FULL awa.{table}")


class PinSnapshot(Fault):
    area = "server"
    name = "old snapshot"
    what = "a transaction stays open for 30 s, while other faults happen, so that vacuum can remove nothing"
    background = True

    async def run(self, cluster: Cluster) -> None:
        async with cluster.primary.connection() as connection:
            await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await connection.fetchval("SELECT pg_current_snapshot()")  # without a lock on any table
            await asyncio.sleep(30)


class FillDisk(Fault):
    area = "server"
    name = "disk full"
    what = "no space left for PostgreSQL for 4 to 8 s"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._seconds = self.rng.uniform(4, 8)

    def impossible(self, cluster: Cluster) -> str:
        return "" if cluster.disk.is_mounted else f"no file system of its own: {cluster.disk.problem}"

    async def run(self, cluster: Cluster) -> None:
        self.note(f"{self._seconds:.1f} s")
        with self.crashing():  # at the latest when it needs a new WAL segment
            async with cluster.primary.connection() as connection:
                await asyncio.to_thread(cluster.disk.fill)
                with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                    await connection.execute("SELECT pg_switch_wal()")
            await asyncio.sleep(self._seconds)
            await asyncio.to_thread(cluster.disk.free)
            await cluster.primary.wait_until_ready()
