"""`python -m tests.bench.peers`: runs the workloads, and writes the report.

A complete run (all workloads, everybody, three rounds or more) writes docs/benchmarks.md and docs/benchmarks/; any
other one writes the same under .bench/report/, where nobody takes it for the figures.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.peers.entrants import ENTRANTS
from tests.bench.peers.environments import BENCH, ROOT, Unavailable, prepare
from tests.bench.peers.harness import run_workload, server, server_facts
from tests.bench.peers.plan import WORKLOADS, cases
from tests.bench.peers.report import write_report
from tests.bench.peers.results import Results, describe_environment, load

DOCS = ROOT / "docs"
FEWEST_ROUNDS = 3


def main(words: Sequence[str] | None = None) -> int:
    given = _arguments(words)
    if given.report:
        write_report(load(DOCS / "benchmarks" / "results.json"), DOCS)
        return 0
    complete = not given.quick and given.rounds >= FEWEST_ROUNDS
    complete = complete and set(given.workloads) == set(WORKLOADS) and set(given.contenders) == set(ENTRANTS)
    folder = DOCS if complete else BENCH / "report"
    skipped = _prepare(given.contenders)
    with server(given.database_url) as url:
        results = Results(
            environment=describe_environment(server_facts(url)),
            rounds=given.rounds,
            quick=given.quick,
            skipped=list(skipped.values()),
        )
        for workload in given.workloads:
            able = [
                case
                for case in cases(workload, quick=given.quick)
                if case.entrant in given.contenders and case.entrant not in skipped
            ]
            for run in run_workload(url, able, given.rounds):
                results.runs.append(run)
                results.save(BENCH / "results.json")  # what a long run has measured so far is not lost with it
    write_report(results, folder)
    print(f"written: {_shown(folder / 'benchmarks.md')}")
    # A peer that fails is named in the report; that we fail is worth an exit code.
    ours = [run for run in results.runs if not ENTRANTS[run.key.partition(":")[0]].is_peer]
    return 1 if any(run.error for run in ours) else 0


def _prepare(names: Sequence[str]) -> dict[str, str]:
    """Installs what is missing; says who cannot take part, and why."""
    skipped = {}
    for name in names:
        try:
            prepare(ENTRANTS[name])
        except Unavailable as reason:
            skipped[name] = str(reason)
            print(reason, file=sys.stderr)
    return skipped


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    names: dict[str, Any] = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--workloads", choices=WORKLOADS, default=list(WORKLOADS), **names)
    parser.add_argument("--contenders", choices=list(ENTRANTS), default=list(ENTRANTS), **names)
    parser.add_argument("--rounds", type=int, default=FEWEST_ROUNDS)
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs: shows that it works, not how fast")
    parser.add_argument(
        "--database-url", help="a server to use instead of an embedded one; databases come and go there"
    )
    parser.add_argument("--report", action="store_true", help="write the report anew from the stored results")
    return parser.parse_args(words)


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())
