"""Faults of processes: killed, frozen, stopped."""

import asyncio
import random

from tests.chaos.cluster import LEADER_TIMEOUT_S, STALENESS_S, Cluster
from tests.chaos.faults.base import Fault


class KillWorker(Fault):
    area = "processes"
    name = "kill a worker"
    what = "SIGKILL; a new process starts 1 to 3 s later"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._restart_s = self.rng.uniform(1, 3)

    async def run(self, cluster: Cluster) -> None:
        node = self.choose(cluster.workers)
        self.note(node.name)
        node.kill()
        await asyncio.sleep(self._restart_s)
        node.start()


class KillLeader(KillWorker):
    name = "kill a leader"
    what = "SIGKILL of an `awa maintenance`; a new process starts 1 to 3 s later"

    async def run(self, cluster: Cluster) -> None:
        node = self.choose(cluster.leaders)
        self.note(node.name)
        node.kill()
        await asyncio.sleep(self._restart_s)
        node.start()


class KillEverything(Fault):
    area = "processes"
    name = "kill all processes"
    what = "SIGKILL of all workers and leaders at once; new ones start after a second"

    async def run(self, cluster: Cluster) -> None:
        for node in cluster.nodes:
            node.kill()
        await asyncio.sleep(1)
        for node in cluster.nodes:
            node.start()


class StopWorker(Fault):
    area = "processes"
    name = "stop a worker"
    what = "SIGTERM, as a deploy does, and a new process at once"

    async def run(self, cluster: Cluster) -> None:
        node = self.choose(cluster.workers)
        self.note(node.name)
        code = await node.stop()
        if code != 0:
            what = "did not end" if code is None else f"ended with exit code {code}"
            self.record.violations.append(f"{node.name} {what} after SIGTERM")
        node.start()


class FreezeWorker(Fault):
    area = "processes"
    name = "freeze a worker"
    what = "SIGSTOP for less than the staleness, then SIGCONT"
    seconds: tuple[float, float] = (1, STALENESS_S - 1)

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._seconds = self.rng.uniform(*self.seconds)

    async def run(self, cluster: Cluster) -> None:
        node = self.choose(cluster.workers)
        self.note(f"{node.name}, {self._seconds:.1f} s")
        await node.freeze(self._seconds)


class FreezeWorkerForLong(FreezeWorker):
    name = "freeze a worker for long"
    what = "SIGSTOP for longer than the staleness, then SIGCONT"
    seconds = (STALENESS_S + 1, STALENESS_S + 4)


class FreezeLeader(FreezeWorker):
    name = "freeze a leader"
    what = "SIGSTOP of an `awa maintenance` for up to longer than the leader timeout, then SIGCONT"
    seconds = (1, LEADER_TIMEOUT_S + 4)

    async def run(self, cluster: Cluster) -> None:
        node = self.choose(cluster.leaders)
        self.note(f"{node.name}, {self._seconds:.1f} s")
        await node.freeze(self._seconds)


class FreezeEverything(FreezeWorker):
    name = "freeze all processes"
    what = "SIGSTOP of all workers and leaders for longer than the staleness, as when a laptop sleeps"
    seconds = (STALENESS_S + 1, STALENESS_S + 3)

    async def run(self, cluster: Cluster) -> None:
        self.note(f"{self._seconds:.1f} s")
        await asyncio.gather(*(node.freeze(self._seconds) for node in cluster.nodes))
