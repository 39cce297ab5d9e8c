"""Failover to a synchronous standby. The URLs of all processes name both servers."""

import asyncio
import random
import time

import asyncpg

from tests.chaos.cluster import Cluster
from tests.chaos.faults.base import MAX_RECOVERY_S, Fault
from tests.chaos.server import Site

STANDBY_TIMEOUT_S = 30.0
IS_SYNCHRONOUS = "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum'))"
# What a process would have written to the wrong server.
LAST_WRITE = """
    SELECT greatest((SELECT max(attempted_at) FROM awa.running), (SELECT max(heartbeat_at) FROM awa.workers),
                    (SELECT elected_at FROM awa.leader), (SELECT max(created_at) FROM awa.jobs))
"""


class Failover(Fault):
    name = "failover"
    what = "the primary is killed, and its synchronous standby is promoted"

    async def run(self, cluster: Cluster) -> None:
        old, new = cluster.primary, cluster.spare
        await self.add_standby(old, new)
        await asyncio.sleep(2)
        with self.crashing():
            await self.lose(old)
            await self.promote(cluster, new)
        self.record.healed = time.time()
        await self.after(cluster, old)
        await asyncio.to_thread(old.remove)

    async def add_standby(self, primary: Site, standby: Site) -> None:
        """Start a standby, and let every commit wait for it from then on."""
        await asyncio.to_thread(standby.start_copy_of, primary)
        async with primary.connection() as connection:
            await connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            await connection.execute("SELECT pg_reload_conf()")
            async with asyncio.timeout(STANDBY_TIMEOUT_S):
                while not await connection.fetchval(IS_SYNCHRONOUS):
                    await asyncio.sleep(0.05)

    async def lose(self, primary: Site) -> None:
        await primary.stop("kill")

    async def promote(self, cluster: Cluster, standby: Site) -> None:
        async with standby.connection() as connection:
            await connection.fetchval("SELECT pg_promote(true)")
        cluster.primary = standby

    async def after(self, cluster: Cluster, old: Site) -> None:
        """Do something with the old primary, which is lost."""


class SilentFailover(Failover):
    name = "failover from a silent primary"
    what = "the primary is frozen: it accepts connections and does not answer; its standby is promoted"

    async def lose(self, primary: Site) -> None:
        await asyncio.to_thread(primary.freeze)

    async def after(self, cluster: Cluster, old: Site) -> None:
        await asyncio.sleep(MAX_RECOVERY_S + 2)


class StalePrimary(Failover):
    name = "return of a stale primary"
    what = "after a failover, the old primary starts again for 6 s as if nothing had happened"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._cut = self.rng.random() < 0.5

    async def after(self, cluster: Cluster, old: Site) -> None:
        await asyncio.sleep(3)
        await old.start_again()
        returned = time.time()
        if self._cut:
            self.note("all connections are cut then")
            for node in cluster.nodes:
                node.network.cut()
        await asyncio.sleep(6)
        try:
            async with old.connection() as connection:
                last = await connection.fetchval(LAST_WRITE)
        except (OSError, asyncpg.PostgresError) as error:
            self.record.skipped = f"the old primary did not come back: {error}"
            return
        if last is not None and last.timestamp() > returned:
            late_s = last.timestamp() - returned
            self.record.violations.append(f"the stale primary was written {late_s:.1f} s after its return")
