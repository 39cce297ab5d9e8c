"""Faults of PostgreSQL: ended sessions, crashes and outages."""

import asyncio
import os
import random
import signal

from tests.chaos.cluster import STALENESS_S, Cluster
from tests.chaos.faults.base import Fault

SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'awa %' AND pid <> pg_backend_pid()"


class TerminateSessions(Fault):
    area = "server"
    name = "terminate sessions"
    what = "pg_terminate_backend for a part of the sessions of awa, or all of them"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._share = self.rng.choice([0.2, 0.5, 1.0])

    async def run(self, cluster: Cluster) -> None:
        async with cluster.primary.connection() as connection:
            pids = [row["pid"] for row in await connection.fetch(SESSIONS)]
            chosen = self.rng.sample(pids, round(len(pids) * self._share))
            self.note(f"{len(chosen)} of {len(pids)}")
            await connection.fetch("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid", chosen)


class TerminateLeader(Fault):
    area = "server"
    name = "terminate the leader's session"
    what = "pg_terminate_backend of the session that holds the lock"

    async def run(self, cluster: Cluster) -> None:
        async with cluster.primary.connection() as connection:
            await connection.fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid)"
                " WHERE locktype = 'advisory' AND granted AND application_name = 'awa leader'"
            )


class KillBackend(Fault):
    area = "server"
    name = "kill a backend"
    what = "SIGKILL of one backend: PostgreSQL ends all sessions and recovers"

    async def run(self, cluster: Cluster) -> None:
        async with cluster.primary.connection() as connection:
            # At a bad moment awa has no session. Any backend will do.
            pids = [row["pid"] for row in await connection.fetch(SESSIONS)] or [connection.get_server_pid()]
            with self.crashing():
                os.kill(self.rng.choice(pids), signal.SIGKILL)
                await asyncio.sleep(0.5)
        await cluster.primary.wait_until_ready()


class StopImmediately(Fault):
    area = "server"
    name = "immediate stop of PostgreSQL"
    what = "SIGQUIT; it starts again, with recovery, after up to 2 s"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._down_s = self.rng.uniform(0, 2)

    async def run(self, cluster: Cluster) -> None:
        self.note(f"{self._down_s:.1f} s")
        with self.crashing():
            await cluster.primary.stop("immediate")
        await asyncio.sleep(self._down_s)
        await cluster.primary.start_again()


class KillPostmaster(StopImmediately):
    name = "kill the postmaster"
    what = "SIGKILL of PostgreSQL's main process; it starts again after up to 2 s"

    async def run(self, cluster: Cluster) -> None:
        self.note(f"{self._down_s:.1f} s")
        with self.crashing():
            await cluster.primary.stop("kill")
        await asyncio.sleep(self._down_s)
        await cluster.primary.start_again()


class Outage(Fault):
    area = "server"
    name = "outage of PostgreSQL"
    what = "a fast stop, and a start after longer than the staleness"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._down_s = self.rng.uniform(STALENESS_S + 1, STALENESS_S + 5)

    async def run(self, cluster: Cluster) -> None:
        self.note(f"{self._down_s:.1f} s")
        await cluster.primary.stop("fast")
        await asyncio.sleep(self._down_s)
        await cluster.primary.start_again()
