"""The plan and the report of the comparison with other queues, without measurements."""

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from awa_cli.bench.command import app as bench
from awa_cli.bench.workload import random_argument
from typer.core import TyperGroup
from typer.main import get_command

from awa_py.connections import Connection
from tests.bench.peers.commands import AWA, command
from tests.bench.peers.configs import CONTENDERS
from tests.bench.peers.contenders import limit
from tests.bench.peers.environments import HERE
from tests.bench.peers.harness import Run
from tests.bench.peers.kit.shape import Shape, random_text
from tests.bench.peers.kit.statistics import latencies, thirds
from tests.bench.peers.markdown import TIMES
from tests.bench.peers.plan import VARIATIONS, WORKLOADS, cases
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


@pytest.mark.parametrize("workload", VARIATIONS)
def test_contenders_of_a_variation_differ_only_in_the_number_of_jobs(workload: str) -> None:
    found = cases(workload)
    assert found[0].contender == "awa"
    assert sum(CONTENDERS[case.contender].is_peer for case in found) > 0
    wanted = VARIATIONS[workload].params
    assert all({name: case.params[name] for name in wanted} == wanted for case in found)
    assert all(case.kind == "drain" for case in found)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_awa_bench_knows_the_options_of_each_case(workload: str) -> None:
    commands = get_command(bench)
    assert isinstance(commands, TyperGroup)
    for case in cases(workload):
        program, name, kind, *arguments = command(case, "postgresql://host/x")
        if (program, name) == (str(AWA), "bench"):
            known = {flag for parameter in commands.commands[kind].params for flag in parameter.opts}
            assert {argument for argument in arguments if argument.startswith("--")} <= known


def test_page_names_the_peer_that_is_ahead(tmp_path: Path) -> None:
    write_report(_results(awa=50.0, graphile=200.0), tmp_path)
    page = (tmp_path / "benchmarks.md").read_text()
    assert f"- queues-200: graphile-worker, tuned; awa has 0.25{TIMES} of its jobs_per_s." in page
    assert f"- max-workers-100: pgqueuer; awa has 0.50{TIMES} of its jobs_per_s." in page
    assert f"- latency: graphile-worker, tuned; awa has 4.00{TIMES} of its p50_ms." in page


def test_page_says_if_awa_is_first_in_each_workload(tmp_path: Path) -> None:
    write_report(_results(awa=900.0), tmp_path)
    assert "awa is first in each workload." in (tmp_path / "benchmarks.md").read_text()


def test_each_program_uses_the_same_random_argument() -> None:
    text = random_text(1000)
    assert random_argument(1000) == {"text": text}
    assert Shape(argument_bytes=1000).arguments()(7) == {"n": 7, "text": text}
    assert len({text[first : first + 8] for first in range(0, 1000, 8)}) == 125


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_contenders_on_node_use_the_same_random_argument() -> None:
    module = HERE / "contenders" / "shape.mjs"
    script = f"import {{ randomText }} from '{module}'; process.stdout.write(randomText(1000))"
    shown = subprocess.run(
        ["node", "--input-type=module", "--eval", script], capture_output=True, text=True, check=True
    )
    assert shown.stdout == random_text(1000)


async def test_handler_reports_its_start_and_waits() -> None:
    started: list[int] = []
    began = time.perf_counter()
    await Shape(handler_ms=20).handler(started.append, lambda n: n)(7)
    assert time.perf_counter() - began >= 0.019
    Shape(sync=True).handler(started.append, lambda n: n)(8)
    assert started == [7, 8]


def test_claims_of_large_arguments_are_smaller() -> None:
    assert Shape().batch_size(5000) == Shape(argument_bytes=1_000).batch_size(5000) == 5000
    assert Shape(argument_bytes=100_000).batch_size(5000) == 200


def test_later_run_replaces_its_workloads_and_is_dated(tmp_path: Path) -> None:
    later = _results(awa=700.0)
    later.environment = {**ENVIRONMENT, "date": "2002-02-02"}
    later.runs = [run for run in later.runs if run.workload == "sync"]
    results = _results(awa=900.0).with_added(later, ["sync"])
    assert results.median("sync", "awa", "jobs_per_s") == 350.0
    assert results.median("drain", "awa", "jobs_per_s") == 450.0
    write_report(results, tmp_path)
    assert "Measured 2002-02-02 at abc with PostgreSQL 17, rounds: 3: sync." in (tmp_path / "benchmarks.md").read_text()
    assert load(tmp_path / "benchmarks" / "results.json") == results


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
