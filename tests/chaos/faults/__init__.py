"""The faults, and the schedule of a run."""

import random
from collections.abc import Iterator

from tests.chaos.faults import database, failover, network, processes, storage
from tests.chaos.faults.base import Fault, Record

PAIRS = 0.25  # how many faults happen together with another one

__all__ = ["ALL", "Fault", "Record", "schedule"]

ALL: tuple[type[Fault], ...] = (
    processes.KillWorker,
    processes.KillLeader,
    processes.KillEverything,
    processes.StopWorker,
    processes.FreezeWorker,
    processes.FreezeWorkerForLong,
    processes.FreezeLeader,
    processes.FreezeEverything,
    database.TerminateSessions,
    database.TerminateLeader,
    database.KillBackend,
    database.StopImmediately,
    database.KillPostmaster,
    database.Outage,
    network.CutEverybody,
    network.RefuseWorker,
    network.StallNode,
    network.StallEverybody,
    network.SlowNetwork,
    network.LoseClaim,
    network.HoldClaim,
    network.LoseFinish,
    network.LoseFinishRequest,
    network.LoseCommit,
    network.LoseCommitRequest,
    storage.LockTable,
    storage.CutWaitingClaim,
    storage.VacuumFull,
    storage.PinSnapshot,
    storage.FillDisk,
    failover.Failover,
    failover.SilentFailover,
    failover.StalePrimary,
    failover.HangingStandby,
)


def schedule(seed: int, kinds: tuple[type[Fault], ...] = ALL) -> Iterator[tuple[float, list[Fault]]]:
    """Yield faults without end, each with the pause before it, and sometimes two that happen at once.

    Every kind comes once before any comes again.
    """
    rng = random.Random(seed)
    while True:
        waiting = rng.sample(kinds, len(kinds))
        while waiting:
            first = waiting.pop()
            chosen = [first]
            other = next((kind for kind in waiting if kind.area != first.area), None)
            if other is not None and rng.random() < PAIRS and not first.background and not other.background:
                waiting.remove(other)
                chosen.append(other)
            yield rng.uniform(1.5, 4), [kind(rng) for kind in chosen]
