"""The faults, and the schedule of a run."""

import random
from collections.abc import Iterator

from tests.chaos.faults import database, failover, network, processes, storage
from tests.chaos.faults.base import Fault, Record

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
)


def schedule(seed: int, kinds: tuple[type[Fault], ...] = ALL) -> Iterator[tuple[float, Fault]]:
    """Yield faults without end, each with the pause before it. Every kind comes once before any comes again."""
    rng = random.Random(seed)
    while True:
        for kind in rng.sample(kinds, len(kinds)):
            yield rng.uniform(1.5, 4), kind(rng)
