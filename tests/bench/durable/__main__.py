"""`python -m tests.bench.durable`: run the workloads and write the report.

A complete run (all workloads, all systems, at least three rounds) writes docs/benchmarks/durable.md. Any other run
writes the same files under .bench/report/, so that its results are not mistaken for the published ones.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from tests.bench.durable.plan import CONTENDERS, WORKLOADS, cases, command
from tests.bench.durable.report import write_report
from tests.bench.peers.environments import BENCH, ROOT, prepare_all
from tests.bench.peers.harness import Run, run_workload, server, server_facts
from tests.bench.peers.results import Results, describe_environment, load

DOCS = ROOT / "docs" / "benchmarks"
MIN_ROUNDS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse_arguments(arguments)
    if options.report:
        write_report(load(DOCS / "durable.json"), DOCS)
        return 0
    complete = not options.quick and options.rounds >= MIN_ROUNDS
    complete = complete and set(options.workloads) == set(WORKLOADS) and set(options.contenders) == set(CONTENDERS)
    folder = DOCS if complete else BENCH / "report" / "benchmarks"
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
    write_report(results, folder)
    print(f"written: {(folder / 'durable.md').relative_to(ROOT)}")
    # A failed peer is named in the report; a failure of awa is also an exit code.
    return 1 if any(run.error for run in results.runs if run.key.startswith("awa")) else 0


def _progress(run: Run, rounds: int) -> str:
    figures = ", ".join(f"{name} {value:,.2f}" for name, value in run.result.items() if isinstance(value, float))
    text = f"failed: {run.error}" if run.error else figures
    return f"{time.strftime('%H:%M:%S')}  {run.workload} {run.round}/{rounds}  {run.key}: {text}"


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-durable", description=__doc__)
    names: dict[str, Any] = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--workloads", choices=WORKLOADS, default=list(WORKLOADS), **names)
    parser.add_argument("--contenders", choices=list(CONTENDERS), default=list(CONTENDERS), **names)
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs: shows that it works, not how fast")
    parser.add_argument(
        "--database-url", help="a server on this machine to use instead of an embedded one; databases come and go there"
    )
    parser.add_argument("--report", action="store_true", help="write the report again from the stored results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
