"""Which workloads there are, and who runs each with what.

The number of jobs differs between contenders so that each run lasts about as long: a second or more where a contender
is fast, and not half a minute where it is slow.
"""

from dataclasses import dataclass
from typing import Any

from tests.bench.peers.entrants import ENTRANTS

QUICK = 10  # --quick divides the jobs by it


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One contender's part in one workload."""

    workload: str
    entrant: str
    kind: str  # what the contender's program calls it: drain, enqueue, latency, steady
    params: dict[str, Any]
    variant: str = ""  # where one contender runs a workload in several ways

    @property
    def key(self) -> str:
        return f"{self.entrant}:{self.variant}" if self.variant else self.entrant


DRAINED = {
    "awa": 100_000,
    "awa-discard": 100_000,
    "awa-batch": 100_000,
    "limit": 100_000,
    "graphile": 100_000,
    "graphile-default": 5_000,
    "pgqueuer": 50_000,
    "pg-boss": 40_000,
    "awa-pg": 20_000,
    "chancy": 12_000,
    "procrastinate": 1_500,
}
PINNED = {
    "awa": 300_000,
    "limit": 300_000,
    "graphile": 300_000,
    "pgqueuer": 60_000,
    "pg-boss": 60_000,
    "awa-pg": 30_000,
    "chancy": 12_000,
    "procrastinate": 1_500,
}
BULK = {"chancy": 10_000, "procrastinate": 20_000}
ONE = {"awa": 4_000, "limit": 4_000, "pgqueuer": 2_000, "awa-pg": 500}
PRODUCED = {"awa": 20_000, "limit": 10_000, "pgqueuer": 4_000, "awa-pg": 1_000}
CLIENTS = ("awa", "limit", "graphile", "pgqueuer", "pg-boss", "awa-pg", "chancy", "procrastinate")
WORKERS = tuple(name for name in CLIENTS if name != "limit")
GROWTH = {"empty": {}, "1,000,000 completed": {"completed": 1_000_000}, "1,000,000 scheduled": {"scheduled": 1_000_000}}

WORKLOADS = (
    "drain",
    "enqueue-one",
    "enqueue-one-worker",
    "enqueue-bulk",
    "enqueue-bulk-worker",
    "enqueue-producers",
    "enqueue-producers-worker",
    "latency",
    "steady",
    "pinned",
    "growth",
)


def cases(workload: str, *, quick: bool = False) -> list[Case]:
    """Everybody who runs this workload, in the order of the tables."""
    if workload == "drain":
        return [_case(workload, name, "drain", {"jobs": _few(jobs, quick)}) for name, jobs in DRAINED.items()]
    if workload == "pinned":
        pinned = {"pinned": True}
        return [_case(workload, name, "drain", {"jobs": _few(jobs, quick), **pinned}) for name, jobs in PINNED.items()]
    if workload == "latency":
        return [_case(workload, name, "latency", {"jobs": 60 if quick else 300}) for name in WORKERS]
    if workload == "steady":
        steady = {"rate": 500, "seconds": 3 if quick else 10}
        return [_case(workload, name, "steady", steady) for name in WORKERS]
    if workload == "growth":
        return [
            _case(workload, "awa", "drain", {"jobs": _few(DRAINED["awa"], quick), **rows}, variant)
            for variant, rows in GROWTH.items()
        ]
    return _enqueues(workload, quick=quick)


def _enqueues(workload: str, *, quick: bool) -> list[Case]:
    _, mode, *beside = workload.split("-")
    worker = {"worker": True} if beside else {}
    found = []
    for name in CLIENTS:
        if name == "limit" and worker:
            continue  # it has no worker
        if mode == "one":
            jobs = ONE.get(name, 1_000)
        elif mode == "bulk":
            jobs = BULK.get(name, 100_000)
        else:
            jobs = PRODUCED.get(name, 2_000)
        found.append(_case(workload, name, "enqueue", {"mode": mode, "jobs": _few(jobs, quick), **worker}))
        if mode == "producers" and name in ("awa", "pgqueuer"):
            params = {"mode": mode, "jobs": _few(jobs // 2, quick), "connections": 32, **worker}
            entrant, variant = ("awa-connections", "") if name == "awa" else (name, "32 connections")
            found.append(_case(workload, entrant, "enqueue", params, variant))
    return found


def _case(workload: str, name: str, kind: str, params: dict[str, Any], variant: str = "") -> Case:
    return Case(workload=workload, entrant=name, kind=kind, params={**params, **ENTRANTS[name].extra}, variant=variant)


def _few(jobs: int, quick: bool) -> int:
    return max(200, jobs // QUICK) if quick else jobs
