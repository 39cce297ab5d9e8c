"""The workloads, and the parameters of each contender in them.

The number of jobs differs between contenders, so that a run takes at least a second for a fast one and less than half a
minute for a slow one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.bench.peers.configs import CONTENDERS

QUICK_DIVISOR = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One contender in one workload."""

    workload: str
    contender: str
    kind: str  # the workload of the contender's program: drain, enqueue, latency, steady
    params: dict[str, Any]
    variant: str = ""  # if one contender runs a workload in several ways

    @property
    def key(self) -> str:
        return f"{self.contender}:{self.variant}" if self.variant else self.contender


DRAIN_JOBS = {
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
PINNED_JOBS = {
    "awa": 300_000,
    "limit": 300_000,
    "graphile": 300_000,
    "pgqueuer": 60_000,
    "pg-boss": 60_000,
    "awa-pg": 30_000,
    "chancy": 12_000,
    "procrastinate": 1_500,
}
BULK_JOBS = {"chancy": 10_000, "procrastinate": 20_000}
ONE_JOBS = {"awa": 4_000, "limit": 4_000, "pgqueuer": 2_000, "awa-pg": 500}
PRODUCER_JOBS = {"awa": 20_000, "limit": 10_000, "pgqueuer": 4_000, "awa-pg": 1_000}
CLIENTS = ("awa", "limit", "graphile", "pgqueuer", "pg-boss", "awa-pg", "chancy", "procrastinate")
WORKERS = tuple(name for name in CLIENTS if name != "limit")
# Node runs handlers in one thread, and awa-pg takes only coroutines.
THREADED = ("awa", "pgqueuer", "chancy", "procrastinate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """A drain of other jobs, in other queues, or by other workers."""

    params: dict[str, Any]
    contenders: Sequence[str] = WORKERS
    divisor: int = 1  # of the jobs of the plain drain
    jobs: Mapping[str, int] = field(default_factory=dict)  # of contenders for which this would be too many or too few


# The first claims of these three take 1,000 to 2,000 jobs and are not measured: more jobs make the difference small.
LARGE_CLAIMS = {"pg-boss": 20_000, "awa-pg": 20_000, "chancy": 12_000}
VARIATIONS = {
    "argument-1k": Variation(params={"argument_bytes": 1_000}, divisor=2, jobs=LARGE_CLAIMS),
    "argument-10k": Variation(params={"argument_bytes": 10_000}, divisor=5, jobs=LARGE_CLAIMS),
    "argument-100k": Variation(
        params={"argument_bytes": 100_000}, divisor=10, jobs=dict.fromkeys(LARGE_CLAIMS, 10_000)
    ),
    "await-100": Variation(params={"handler_ms": 5, "concurrency": 100}, divisor=4, jobs={"pg-boss": 3_000}),
    "await-500": Variation(params={"handler_ms": 5, "concurrency": 500}, divisor=2),
    "sync": Variation(params={"sync": True}, contenders=THREADED, divisor=4),
    "processes-2": Variation(params={"processes": 2}),
    # awa-pg is left out: 2,000 jobs in 200 queues were not done after two minutes.
    "queues-200": Variation(
        params={"queues": 200},
        contenders=tuple(name for name in WORKERS if name != "awa-pg"),
        jobs={**dict.fromkeys(WORKERS, 20_000), "procrastinate": 4_000},
    ),
    # Only these two count the running jobs of all workers.
    "max-workers-100": Variation(params={"max_workers": 100}, contenders=("awa", "pgqueuer"), divisor=4),
}
GROWTH = {"empty": {}, "1,000,000 completed": {"completed": 1_000_000}, "1,000,000 scheduled": {"scheduled": 1_000_000}}

WORKLOADS = (
    "drain",
    *VARIATIONS,
    "enqueue-one",
    "enqueue-one-unique",
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
    """Return the cases of a workload, in the order of the tables."""
    if workload == "drain":
        return [_case(workload, name, "drain", {"jobs": _scaled(jobs, quick)}) for name, jobs in DRAIN_JOBS.items()]
    if workload in VARIATIONS:
        return _variation_cases(workload, VARIATIONS[workload], quick=quick)
    if workload == "pinned":
        pinned = {"pinned": True}
        return [
            _case(workload, name, "drain", {"jobs": _scaled(jobs, quick), **pinned})
            for name, jobs in PINNED_JOBS.items()
        ]
    if workload == "latency":
        return [_case(workload, name, "latency", {"jobs": 60 if quick else 300}) for name in WORKERS]
    if workload == "steady":
        steady = {"rate": 500, "seconds": 3 if quick else 10}
        return [_case(workload, name, "steady", steady) for name in WORKERS]
    if workload == "growth":
        return [
            _case(workload, "awa", "drain", {"jobs": _scaled(DRAIN_JOBS["awa"], quick), **rows}, variant)
            for variant, rows in GROWTH.items()
        ]
    return _enqueue_cases(workload, quick=quick)


def _variation_cases(workload: str, variation: Variation, *, quick: bool) -> list[Case]:
    return [
        _case(
            workload,
            name,
            "drain",
            {
                "jobs": _scaled(variation.jobs.get(name, DRAIN_JOBS[name] // variation.divisor), quick),
                **variation.params,
            },
        )
        for name in variation.contenders
    ]


def _enqueue_cases(workload: str, *, quick: bool) -> list[Case]:
    """Return the cases of `enqueue-MODE`, `enqueue-MODE-worker` or `enqueue-MODE-unique`."""
    _, mode, *flags = workload.split("-")
    chosen = dict.fromkeys(flags, True)
    found = []
    for name in CLIENTS:
        if name == "limit" and flags:
            continue  # it has no worker and no keys
        if mode == "one":
            jobs = ONE_JOBS.get(name, 1_000)
        elif mode == "bulk":
            jobs = BULK_JOBS.get(name, 100_000)
        else:
            jobs = PRODUCER_JOBS.get(name, 2_000)
        found.append(_case(workload, name, "enqueue", {"mode": mode, "jobs": _scaled(jobs, quick), **chosen}))
        if mode == "producers" and name in ("awa", "pgqueuer"):
            params = {"mode": mode, "jobs": _scaled(jobs // 2, quick), "connections": 32, **chosen}
            contender, variant = ("awa-connections", "") if name == "awa" else (name, "32 connections")
            found.append(_case(workload, contender, "enqueue", params, variant))
    return found


def _case(workload: str, name: str, kind: str, params: dict[str, Any], variant: str = "") -> Case:
    return Case(
        workload=workload, contender=name, kind=kind, params={**params, **CONTENDERS[name].extra}, variant=variant
    )


def _scaled(jobs: int, quick: bool) -> int:
    return max(200, jobs // QUICK_DIVISOR) if quick else jobs
