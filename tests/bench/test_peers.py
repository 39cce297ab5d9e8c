"""The plan and the report of the comparison with other queues, without measurements."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from awa_py.connections import Connection
from tests.bench.peers.configs import CONTENDERS
from tests.bench.peers.contenders import limit
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


def _result(kind: str, rate: float) -> dict[str, Any]:
    if kind in ("latency", "steady"):
        return {"p50_ms": 1000 / rate, "p95_ms": 2000 / rate, "p99_ms": 3000 / rate, "kept_up": True}
    return {"jobs_per_s": rate, "thirds": [rate, rate, rate], "wal_bytes_per_job": 1.0}


def _results(**rates: float) -> Results:
    """Return three rounds of all workloads. In each, the machine is slower, for all contenders alike."""
    results = Results(environment=ENVIRONMENT, rounds=3, quick=False)
    for workload in WORKLOADS:
        for number in (1, 2, 3):
            for case in cases(workload):
                rate = rates.get(case.contender.replace("-", "_"), 100.0) / number
                results.runs.append(Run(workload, case.key, number, case.params, _result(case.kind, rate)))
    return results


def test_ratio_is_computed_within_each_round() -> None:
    results = _results(awa=900.0, limit=1000.0, graphile=300.0)
    measured = {target.description: target for target in targets(results)}
    against = measured["Drain, history kept, against tuned graphile-worker"]
    assert against.measured == pytest.approx(3.0)
    assert against.is_met
    assert measured["Enqueue one by one, against a plain INSERT … RETURNING"].measured == pytest.approx(0.9)
    assert measured["Pickup on an idle queue, p50, against the best peer"].measured == pytest.approx(1 / 3)


def test_target_without_measurement_is_neither_met_nor_missed() -> None:
    empty = Results(environment=ENVIRONMENT, rounds=3, quick=False)
    assert {target.is_met for target in targets(empty)} == {None}


def test_report_is_complete_and_its_charts_are_xml(tmp_path: Path) -> None:
    results = _results(awa=900.0)
    write_report(results, tmp_path)
    page = (tmp_path / "benchmarks.md").read_text()
    assert "{{" not in page
    for chart in (tmp_path / "benchmarks").glob("*.svg"):
        ElementTree.parse(chart)
        assert f"benchmarks/{chart.name}" in page
    assert load(tmp_path / "benchmarks" / "results.json") == results


@pytest.mark.parametrize("part", PARTS)
def test_every_part_works_without_measurements(part: str) -> None:
    PARTS[part](Results(environment=ENVIRONMENT, rounds=3, quick=True, skipped=["skipped"]))


def test_failed_run_is_named_and_not_counted(tmp_path: Path) -> None:
    results = _results()
    results.runs = [
        Run(run.workload, run.key, run.round, run.params, error="it broke") if run.key == "chancy" else run
        for run in results.runs
    ]
    write_report(results, tmp_path)
    assert "chancy has no result in drain: it broke." in (tmp_path / "benchmarks.md").read_text()


def test_all_contenders_run_the_drain() -> None:
    assert {case.contender for case in cases("drain")} == set(CONTENDERS) - {"awa-connections"}


async def test_claim_of_the_limit_reads_the_index_of_jobs_in_order(connection: Connection) -> None:
    carried = await connection.fetchval(limit.CARRIED)
    await connection.execute("SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan")
    await connection.execute(f"PREPARE claim (bigint, int, uuid) AS {limit.CLAIM.format(carried=carried)}")
    plan = "\n".join(row[0] for row in await connection.fetch("EXPLAIN EXECUTE claim (0, 500, gen_random_uuid())"))
    assert "Index Scan using ready_order" in plan
    assert "Sort" not in plan


def test_latency_is_negative_if_the_worker_is_faster() -> None:
    assert latencies({0: 2_000_000}, {0: 1_000_000})["p50_ms"] == -1.0


def test_thirds_are_rates_over_time() -> None:
    second = 1_000_000_000
    starts = [0, second, 2 * second, 3 * second, 5 * second, 7 * second, 11 * second]
    assert thirds(starts) == pytest.approx([1.0, 2 / 3, 1 / 3])
