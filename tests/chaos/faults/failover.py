"""Failover to a synchronous standby. The URLs of all processes name both servers."""

import asyncio
import random
import time

import asyncpg

from awa_py.db.servers import CLIENT_KEEPALIVE_OPTIONS
from tests.chaos.cluster import LEADER_TIMEOUT_S, STALENESS_S, Cluster
from tests.chaos.faults.base import MAX_RECOVERY_S, Fault
from tests.chaos.server import Site

STANDBY_TIMEOUT_S = 30.0
IN_FLIGHT_S = 1.0  # statements that a server had received before it was frozen end when it continues
TCP_USER_TIMEOUT_S = CLIENT_KEEPALIVE_OPTIONS["TCP_USER_TIMEOUT"] / 1000
IS_SYNCHRONOUS = "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum'))"
HEARTBEAT_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'awa heartbeat'"
# What a process would have written to the wrong server.
LAST_WRITE = """
    SELECT greatest((SELECT max(attempted_at) FROM awa.running), (SELECT max(heartbeat_at) FROM awa.workers),
                    (SELECT elected_at FROM awa.leader), (SELECT max(created_at) FROM awa.jobs))
"""


class Failover(Fault):
    area = "server"
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

    async def check_unwritten(self, old: Site, since: float) -> None:
        """Record a violation if the old primary was written since then."""
        try:
            async with old.connection() as connection:
                last = await connection.fetchval(LAST_WRITE)
        except (OSError, asyncpg.PostgresError) as error:
            self.record.skipped = f"the old primary did not come back: {error}"
            return
        if last is not None and last.timestamp() > since:
            late_s = last.timestamp() - since
            self.record.violations.append(f"the stale primary was written {late_s:.1f} s after its return")


class SilentFailover(Failover):
    name = "failover from a silent primary"
    what = "the primary is frozen: it accepts connections and does not answer; its standby is promoted"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._continues = self.rng.random() < 0.5

    async def lose(self, primary: Site) -> None:
        await asyncio.to_thread(primary.freeze)

    async def after(self, cluster: Cluster, old: Site) -> None:
        if self._continues:
            self.note("the primary continues then")
            await self._continue(old)
            return
        # The proxies acknowledge what is sent to the old primary. A frozen host does not, and the kernel of the client
        # then gives up its connections. New ones are still accepted, and not answered.
        await asyncio.sleep(TCP_USER_TIMEOUT_S)
        for network in cluster.networks:
            network.cut(old)
        await asyncio.sleep(MAX_RECOVERY_S - TCP_USER_TIMEOUT_S)

    async def _continue(self, old: Site) -> None:
        """Let the old primary continue when each process has noticed its silence. All sessions are still open there."""
        await asyncio.sleep(LEADER_TIMEOUT_S + STALENESS_S)
        await asyncio.to_thread(old.thaw)
        await asyncio.sleep(IN_FLIGHT_S)
        continued = time.time()
        await asyncio.sleep(STALENESS_S)
        await self.check_unwritten(old, continued)


class HangingStandby(Failover):
    name = "standby that hangs"
    what = "a synchronous standby is frozen for longer than the staleness, so that no commit is answered"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._seconds = self.rng.uniform(STALENESS_S + 1, STALENESS_S + 5)

    async def run(self, cluster: Cluster) -> None:
        self.note(f"{self._seconds:.1f} s")
        standby = cluster.spare
        await self.add_standby(cluster.primary, standby)
        await asyncio.to_thread(standby.freeze)
        sessions = 0
        thaws_at = time.monotonic() + self._seconds
        async with cluster.primary.connection() as connection:
            while time.monotonic() < thaws_at:
                sessions = max(sessions, await connection.fetchval(HEARTBEAT_SESSIONS))
                await asyncio.sleep(0.2)
            await connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            await connection.execute("SELECT pg_reload_conf()")
        await asyncio.to_thread(standby.remove)
        if sessions > 2 * len(cluster.workers):  # a worker opens a new one while the former is being ended
            self.record.violations.append(f"{len(cluster.workers)} workers had {sessions} sessions for heartbeats")


class StalePrimary(Failover):
    name = "return of a stale primary"
    what = "after a failover, the old primary starts again for 6 s as if nothing had happened"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._cut = self.rng.random() < 0.5

    async def after(self, cluster: Cluster, old: Site) -> None:
        await asyncio.sleep(3)
        with (old.directory / "data" / "postgresql.auto.conf").open("a") as settings:
            settings.write("synchronous_standby_names = ''\n")  # or every commit would wait for the lost standby
        await old.start_again()
        returned = time.time()
        if self._cut:
            self.note("all connections are cut then")
            for node in cluster.nodes:
                node.network.cut()
        await asyncio.sleep(6)
        await self.check_unwritten(old, returned)
