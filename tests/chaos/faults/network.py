"""Faults of the network: the proxies cut, refuse, stall, delay, or lose the answers to chosen statements."""

import asyncio
import random
from contextlib import suppress
from typing import ClassVar

from tests.chaos.cluster import GONE_AFTER_S, STALENESS_S, Cluster, Network
from tests.chaos.faults.base import Fault
from tests.chaos.proxy import CLAIMS, COMMITS, FINISHES, Action, Trap

TRAP_TIMEOUT_S = 10.0


class CutEverybody(Fault):
    area = "network"
    name = "cut all connections"
    what = "the proxies reset all connections"

    async def run(self, cluster: Cluster) -> None:
        for network in cluster.networks:
            network.cut()


class RefuseWorker(Fault):
    area = "network"
    name = "refuse a worker"
    what = "no connection for one worker, for longer than `AWA_GONE_AFTER`"
    seconds = (GONE_AFTER_S + 1, STALENESS_S + 4)

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._seconds = self.rng.uniform(*self.seconds)

    async def run(self, cluster: Cluster) -> None:
        node = self.choose(cluster.workers)
        self.note(f"{node.name}, {self._seconds:.1f} s")
        with self.cutting_off(node):
            node.network.refuse()
            await asyncio.sleep(self._seconds)
            await node.network.open()


class StallNode(Fault):
    area = "network"
    name = "stall a process"
    what = "connections of one worker or leader stay open, and nothing passes"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._seconds = self.rng.uniform(1, STALENESS_S + 3)

    async def run(self, cluster: Cluster) -> None:
        node = self.choose(cluster.nodes)
        self.note(f"{node.name}, {self._seconds:.1f} s")
        with self.cutting_off(node):
            node.network.stall(True)
            await asyncio.sleep(self._seconds)
            node.network.stall(False)


class StallEverybody(Fault):
    area = "network"
    name = "stall everybody"
    what = "all connections stay open, and nothing passes, for longer than the staleness"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._seconds = self.rng.uniform(STALENESS_S + 1, STALENESS_S + 4)

    async def run(self, cluster: Cluster) -> None:
        self.note(f"{self._seconds:.1f} s")
        for network in cluster.networks:
            network.stall(True)
        await asyncio.sleep(self._seconds)
        for network in cluster.networks:
            network.stall(False)


class SlowNetwork(Fault):
    area = "network"
    name = "slow network"
    what = "each message takes 100 to 400 ms longer, for 5 s"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._delay_s = self.rng.uniform(0.1, 0.4)

    async def run(self, cluster: Cluster) -> None:
        self.note(f"{self._delay_s * 1000:.0f} ms")
        for network in cluster.networks:
            network.delay(self._delay_s)
        await asyncio.sleep(5)
        for network in cluster.networks:
            network.delay(0)


class LoseAnswer(Fault):
    """Cut the connection exactly at a statement: before it reaches PostgreSQL, or when it has committed."""

    area = "network"
    statements: ClassVar = CLAIMS
    action: ClassVar[Action] = "lose answer"
    hold_s: ClassVar = 0.0

    def victim(self, cluster: Cluster) -> Network:
        node = self.choose(cluster.workers)
        self.note(node.name)
        return node.network

    async def run(self, cluster: Cluster) -> None:
        network = self.victim(cluster)
        trap = Trap(statements=self.statements, action=self.action, hold_s=self.hold_s)
        network.set_trap(trap)
        with suppress(TimeoutError):
            async with asyncio.timeout(TRAP_TIMEOUT_S):
                await trap.lost.wait()
        network.set_trap(None)
        if trap.sprung:
            await asyncio.sleep(self.hold_s)
        if not trap.sprung:
            self.record.skipped = f"no such statement within {TRAP_TIMEOUT_S:.0f} s"


class LoseClaim(LoseAnswer):
    name = "lose the answer to a claim"
    what = "the connection is cut when the claim has committed"


class HoldClaim(LoseAnswer):
    name = "late answer to a claim"
    what = "the answer arrives when the lease has run out"
    action = "hold answer"
    hold_s = STALENESS_S + 1


class LoseFinish(LoseAnswer):
    name = "lose the answer to a finish"
    what = "the connection is cut when the outcomes have been committed"
    statements = FINISHES


class LoseFinishRequest(LoseAnswer):
    name = "lose a finish"
    what = "the connection is cut before the outcomes reach PostgreSQL"
    statements = FINISHES
    action = "lose request"


class LoseCommit(LoseAnswer):
    name = "lose the answer to a COMMIT"
    what = "the producer's connection is cut when its transaction has committed"
    statements = COMMITS

    def victim(self, cluster: Cluster) -> Network:
        return cluster.producers


class LoseCommitRequest(LoseCommit):
    name = "lose a COMMIT"
    what = "the producer's connection is cut before the COMMIT reaches PostgreSQL"
    action = "lose request"
