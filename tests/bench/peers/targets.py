"""The targets of a run, and whether it met them. Ratios are medians over the rounds."""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.bench.peers.configs import CONTENDERS
from tests.bench.peers.results import Results

AT_LEAST, AT_MOST, BELOW, ABOVE = "≥", "≤", "<", ">"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One row of the table of targets."""

    description: str
    relation: str
    wanted: float
    measured: float | None

    @property
    def is_met(self) -> bool | None:
        """Return None if it was not measured."""
        if self.measured is None:
            return None
        return {
            AT_LEAST: self.measured >= self.wanted,
            AT_MOST: self.measured <= self.wanted,
            BELOW: self.measured < self.wanted,
            ABOVE: self.measured > self.wanted,
        }[self.relation]


def targets(results: Results) -> list[Target]:
    return [*_drain(results), *_latency(results), *_enqueue(results), *_staying_fast(results)]


def _drain(results: Results) -> Iterator[Target]:
    def against(description: str, ours: str, other: str, wanted: float) -> Target:
        ratio = results.ratio(("drain", ours, "jobs_per_s"), [("drain", other, "jobs_per_s")], max)
        return Target(description=description, relation=AT_LEAST, wanted=wanted, measured=ratio)

    yield against("Drain, history kept, against tuned graphile-worker", "awa", "graphile", 1.3)
    yield against("Drain, history kept, against tuned pgqueuer", "awa", "pgqueuer", 3)
    yield against("Drain, history kept, against tuned awa-pg", "awa", "awa-pg", 5)
    yield against("Drain, history kept, against procrastinate", "awa", "procrastinate", 80)
    yield against("Drain, history kept, against the limit", "awa", "limit", 0.7)
    yield against("Drain, retention 0, against tuned graphile-worker", "awa-discard", "graphile", 1.5)
    yield against("Drain, batch handlers, against the limit", "awa-batch", "limit", 0.9)


def _latency(results: Results) -> Iterator[Target]:
    for workload, load in (("latency", "on an idle queue"), ("steady", "at a steady 500 jobs/s")):
        peers = _peers(results, workload)

        def against(figure: str, workload: str = workload, peers: list[str] = peers) -> float | None:
            return results.ratio((workload, "awa", figure), [(workload, peer, figure) for peer in peers], min)

        yield Target(
            description=f"Pickup {load}, p50, against the best peer",
            relation=AT_MOST,
            wanted=0.5,
            measured=against("p50_ms"),
        )
        yield Target(
            description=f"Pickup {load}, p99, against the best peer",
            relation=BELOW,
            wanted=1,
            measured=against("p99_ms"),
        )


def _enqueue(results: Results) -> Iterator[Target]:
    def against(workload: str, others: list[str]) -> float | None:
        return results.ratio(
            (workload, "awa", "jobs_per_s"), [(workload, other, "jobs_per_s") for other in others], max
        )

    bulk_peers = _peers(results, "enqueue-bulk")
    yield Target(
        description="Enqueue one by one, against a plain INSERT … RETURNING",
        relation=AT_LEAST,
        wanted=0.9,
        measured=against("enqueue-one", ["limit"]),
    )
    yield Target(
        description="Enqueue in bulk, against a plain COPY",
        relation=AT_LEAST,
        wanted=0.6,
        measured=against("enqueue-bulk", ["limit"]),
    )
    yield Target(
        description="Enqueue in bulk, against the best peer",
        relation=ABOVE,
        wanted=1,
        measured=against("enqueue-bulk", bulk_peers),
    )


def _staying_fast(results: Results) -> Iterator[Target]:
    thirds = results.medians("pinned", "awa", "thirds")
    yield Target(
        description="Pinned snapshot, the last third against the first",
        relation=AT_LEAST,
        wanted=0.9,
        measured=thirds[-1] / thirds[0] if thirds else None,
    )
    for rows in ("1,000,000 completed", "1,000,000 scheduled"):
        ratio = results.ratio(("growth", f"awa:{rows}", "jobs_per_s"), [("growth", "awa:empty", "jobs_per_s")], max)
        yield Target(
            description=f"Drain with {rows} rows, against none", relation=AT_LEAST, wanted=0.95, measured=ratio
        )


def _peers(results: Results, workload: str) -> list[str]:
    return [key for key in results.keys(workload) if CONTENDERS[key.partition(":")[0]].is_peer]
