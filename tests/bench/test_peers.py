"""The benchmark beside the peers: its plan and its report, without measuring anything."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.bench.peers.entrants import ENTRANTS
from tests.bench.peers.harness import Run
from tests.bench.peers.kit.statistics import latencies, thirds
from tests.bench.peers.plan import WORKLOADS, cases
from tests.bench.peers.report import PARTS, write_report
from tests.bench.peers.results import Results, load
from tests.bench.peers.targets import targets

pytestmark = pytest.mark.bench

ENVIRONMENT: dict[str, Any] = {
    "date": "2001-01-01",
    "awa": "abc",
    "cores": 2,
    "processor": "a processor",
    "memory_gib": 1.0,
    "system": "Linux 1",
    "postgresql": {"version": "17", "fsync": "on"},
    "runtimes": {"python": "3.11"},
    "peers": {},
}


def _answer(kind: str, rate: float) -> dict[str, Any]:
    if kind in ("latency", "steady"):
        return {"p50_ms": 1000 / rate, "p95_ms": 2000 / rate, "p99_ms": 3000 / rate, "kept_up": True}
    return {"jobs_per_s": rate, "thirds": [rate, rate, rate], "wal_bytes_per_job": 1.0}


def _results(**rates: float) -> Results:
    """Three rounds of all workloads; the machine becomes slower with each, the same for everybody."""
    found = Results(environment=ENVIRONMENT, rounds=3, quick=False)
    for workload in WORKLOADS:
        for number in (1, 2, 3):
            for case in cases(workload):
                rate = rates.get(case.entrant.replace("-", "_"), 100.0) / number
                found.runs.append(Run(workload, case.key, number, case.params, _answer(case.kind, rate)))
    return found


def test_a_ratio_is_taken_within_each_round() -> None:
    results = _results(awa=900.0, limit=1000.0, graphile=300.0)
    measured = {target.says: target for target in targets(results)}
    against = measured["Drain, history kept, against tuned graphile-worker"]
    assert against.measured == pytest.approx(3.0)
    assert against.is_met
    assert measured["Enqueue one by one, against a plain INSERT … RETURNING"].measured == pytest.approx(0.9)
    assert measured["Pickup on an idle queue, p50, against the best peer"].measured == pytest.approx(1 / 3)


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    empty = Results(environment=ENVIRONMENT, rounds=3, quick=False)
    assert {target.is_met for target in targets(empty)} == {None}


def test_the_report_is_whole_and_its_plots_are_xml(tmp_path: Path) -> None:
    results = _results(awa=900.0)
    write_report(results, tmp_path)
    page = (tmp_path / "benchmarks.md").read_text()
    assert "{{" not in page
    for plot in (tmp_path / "benchmarks").glob("*.svg"):
        ElementTree.parse(plot)
        assert f"benchmarks/{plot.name}" in page
    assert load(tmp_path / "benchmarks" / "results.json") == results


@pytest.mark.parametrize("part", PARTS)
def test_every_part_can_say_that_nothing_was_measured(part: str) -> None:
    PARTS[part](Results(environment=ENVIRONMENT, rounds=3, quick=True, skipped=["it is skipped"]))


def test_a_failed_run_is_named_and_not_counted(tmp_path: Path) -> None:
    results = _results()
    results.runs = [
        Run(run.workload, run.key, run.round, run.params, error="it broke") if run.key == "chancy" else run
        for run in results.runs
    ]
    write_report(results, tmp_path)
    assert "chancy has no result in drain: it broke." in (tmp_path / "benchmarks.md").read_text()


def test_everybody_runs_the_drain() -> None:
    assert {case.entrant for case in cases("drain")} == set(ENTRANTS) - {"awa-connections"}


def test_a_worker_may_be_faster_than_the_acknowledgement() -> None:
    assert latencies({0: 2_000_000}, {0: 1_000_000})["p50_ms"] == -1.0


def test_thirds_are_rates_by_the_clock() -> None:
    second = 1_000_000_000
    starts = [0, second, 2 * second, 3 * second, 5 * second, 7 * second, 11 * second]
    assert thirds(starts) == pytest.approx([1.0, 2 / 3, 1 / 3])
