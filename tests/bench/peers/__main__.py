"""`python -m tests.bench.peers`: run the workloads and write the report.

A complete run (all workloads, all contenders, at least three rounds) writes docs/benchmarks.md and docs/benchmarks/.
Any other run writes the same files under .bench/report/, so that its results are not mistaken for the published ones.
With --add, a run of all contenders replaces the published results of its workloads, and the page says when they ran.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.peers.commands import command
from tests.bench.peers.configs import CONTENDERS
from tests.bench.peers.environments import BENCH, ROOT, prepare_all
from tests.bench.peers.harness import Run, run_workload, server, server_facts
from tests.bench.peers.plan import WORKLOADS, cases
from tests.bench.peers.report import write_report
from tests.bench.peers.results import Results, describe_environment, load

DOCS = ROOT / "docs"
STORED = DOCS / "benchmarks" / "results.json"
MIN_ROUNDS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse_arguments(arguments)
    if options.report:
        write_report(load(STORED), DOCS)
        return 0
    complete = not options.quick and options.rounds >= MIN_ROUNDS
    complete = complete and set(options.workloads) == set(WORKLOADS) and set(options.contenders) == set(CONTENDERS)
    folder = DOCS if complete or options.add else BENCH / "report"
    skipped = prepare_all(CONTENDERS[name] for name in options.contenders)
    with server(options.database_url) as url:
        results = Results(
            environment=describe_environment(server_facts(url), CONTENDERS.values()),
            rounds=options.rounds,
            quick=options.quick,
            skipped=list(skipped.values()),
        )
        for workload in options.workloads:
            runnable = [
                case
                for case in cases(workload, quick=options.quick)
                if case.contender in options.contenders and case.contender not in skipped
            ]
            for run in run_workload(url, runnable, options.rounds, command):
                print(_progress(run, options.rounds), flush=True)
                results.runs.append(run)
                results.save(BENCH / "results.json")  # keep the results of a long run if it is interrupted
    write_report(load(STORED).with_added(results, options.workloads) if options.add else results, folder)
    print(f"written: {_relative(folder / 'benchmarks.md')}")
    # A failed peer is named in the report; a failure of awa is also an exit code.
    own_runs = [run for run in results.runs if not CONTENDERS[run.key.partition(":")[0]].is_peer]
    return 1 if any(run.error for run in own_runs) else 0


def _progress(run: Run, rounds: int) -> str:
    if run.error:
        text = f"failed: {run.error}"
    elif "jobs_per_s" in run.result:
        text = f"{run.result['jobs_per_s']:,.0f} jobs/s"
    else:
        behind = "" if run.result.get("kept_up", True) else ", fell behind"
        text = f"p50 {run.result['p50_ms']:.2f} ms, p99 {run.result['p99_ms']:.2f} ms{behind}"
    return f"{time.strftime('%H:%M:%S')}  {run.workload} {run.round}/{rounds}  {run.key}: {text}"


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    names: dict[str, Any] = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--workloads", choices=WORKLOADS, default=list(WORKLOADS), **names)
    parser.add_argument("--contenders", choices=list(CONTENDERS), default=list(CONTENDERS), **names)
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs: shows that it works, not how fast")
    parser.add_argument(
        "--database-url", help="a server to use instead of an embedded one; databases come and go there"
    )
    parser.add_argument("--report", action="store_true", help="write the report again from the stored results")
    parser.add_argument("--add", action="store_true", help="put the results of these workloads on the published page")
    chosen = parser.parse_args(arguments)
    if chosen.add and (chosen.quick or set(chosen.contenders) != set(CONTENDERS)):
        parser.error("--add publishes the results: leave out --quick and --contenders")
    return chosen


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())
