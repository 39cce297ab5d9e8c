"""The plan and the report of the comparison of durable jobs, without measurements."""

from pathlib import Path
from typing import Any

import pytest

from tests.bench.durable.plan import CONTENDERS, WORKLOADS, cases, command
from tests.bench.durable.report import PARTS, write_report
from tests.bench.durable.targets import targets
from tests.bench.peers.environments import pinned_version
from tests.bench.peers.harness import Run
from tests.bench.peers.results import Results, load

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
COSTS = {"wal_bytes_each": 543.0, "client_cpu_us_each": 39.9, "server_cpu_us_each": 19.4, "transactions_each": 0.0652}


def _result(workload: str, rate: float) -> dict[str, Any]:
    if workload == "alone":
        return {"ms_per_step": 1000 / rate}
    figure = {"context": "jobs_per_s"}.get(workload, f"{workload}_per_s")
    return {figure: rate, **COSTS}


def _results(**rates: float) -> Results:
    """Return three rounds of all workloads. In each, the machine is slower, for all systems alike."""
    results = Results(environment=ENVIRONMENT, rounds=3, quick=False)
    for workload in WORKLOADS:
        for number in (1, 2, 3):
            for case in cases(workload):
                rate = rates.get(case.variant or case.contender, 100.0) / number
                results.runs.append(Run(workload, case.key, number, case.params, _result(workload, rate)))
    return results


def test_durable_ratio_is_computed_within_each_round() -> None:
    measured = {target.description: target for target in targets(_results(awa=4000.0, absurd=500.0))}
    assert measured["Steps/s, against DBOS"].measured == pytest.approx(40)
    assert measured["Steps/s, against Absurd"].measured == pytest.approx(8)
    assert measured["Time per step of a job alone, against DBOS"].measured == pytest.approx(1 / 40)
    assert [target.is_met for target in measured.values()] == [True, False, True, True, False, True]


def test_context_that_costs_more_than_15_percent_misses_the_target() -> None:
    met = {Context: targets(_results(plain=100.0, Context=Context))[-1].is_met for Context in (84.0, 86.0)}
    assert met == {84.0: False, 86.0: True}


def test_durable_target_without_measurement_is_neither_met_nor_missed() -> None:
    empty = Results(environment=ENVIRONMENT, rounds=3, quick=False)
    assert {target.is_met for target in targets(empty)} == {None}


def test_durable_report_is_complete(tmp_path: Path) -> None:
    results = _results(awa=4000.0)
    write_report(results, tmp_path)
    page = (tmp_path / "durable.md").read_text()
    assert "{{" not in page
    assert "| awa | 2,000 | 0.50 | 2,000 | 2,000 |" in page
    assert "| awa | 0.065 | 543 | 39.9 | 19.4 |" in page
    assert load(tmp_path / "durable.json") == results


@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_the_durable_report_works_without_measurements(part: str) -> None:
    PARTS[part](Results(environment=ENVIRONMENT, rounds=3, quick=True, skipped=["skipped"]))


def test_failed_system_is_named_in_the_durable_report(tmp_path: Path) -> None:
    results = _results()
    results.runs[0] = Run("steps", "dbos", 1, {}, error="it broke")
    write_report(results, tmp_path)
    assert "dbos failed in steps: it broke." in (tmp_path / "durable.md").read_text()


def test_quick_run_has_a_tenth_of_the_jobs_with_as_many_steps() -> None:
    assert cases("steps", quick=True)[0].params == {"jobs": 500, "steps": 10}


def test_peer_runs_with_its_own_interpreter_and_a_pinned_version() -> None:
    peers = [case for case in cases("steps") if CONTENDERS[case.contender].is_peer]
    assert [command(case, "")[0].split("/")[-3:-1] for case in peers] == [["dbos", "bin"], ["absurd", "bin"]]
    assert all(pinned_version(CONTENDERS[case.contender]) for case in peers)
