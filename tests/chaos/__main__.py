"""Run awa under faults that a seed chooses, and check its promises: `python -m tests.chaos --seed 1 --minutes 5`."""

import argparse
import asyncio
import json
import secrets
import signal
import sys
from pathlib import Path

from tests.chaos.faults import ALL
from tests.chaos.report import markdown
from tests.chaos.run import Result, Run

MAX_VIOLATIONS = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000), help="chooses the faults")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long faults happen")
    parser.add_argument("--only", action="append", metavar="TEXT", help="only faults whose name contains this text")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the result, for `python -m tests.chaos.report`"
    )
    parser.add_argument("--keep", action="store_true", help="keep the directory with all logs")
    parser.add_argument("--list", action="store_true", help="list the faults and end")
    options = parser.parse_args()
    kinds = tuple(kind for kind in ALL if not options.only or any(text in kind.name for text in options.only))
    if options.list:
        print("\n".join(f"{kind.name}: {kind.what}" for kind in kinds))
        return 0
    if not kinds:
        parser.error(f"no fault has a name that contains {' or '.join(options.only)}; --list shows the names")
    print(f"seed {options.seed}", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up, as after Ctrl-C
    run = Run(options.seed, options.minutes * 60, kinds=kinds)
    result = asyncio.run(run.execute())
    if options.json:
        options.json.write_text(json.dumps(result.as_dict(), indent=1))
    print(describe(result))
    if result.violations or options.keep:
        print(f"\nall logs: {run.cluster.directory}")
    else:
        run.cluster.remove()
    return 1 if result.violations else 0


def describe(result: Result) -> str:
    """Return the report of one run."""
    lines = ["", markdown([result.as_dict()]), ""]
    lines += [f"jobs: {result.jobs}, then {result.states}; settled {result.settled_s} s after the last fault"]
    lines += [f"skipped: {text}" for text in result.skipped]
    if not result.violations:
        return "\n".join([*lines, f"seed {result.seed}: all promises kept"])
    lines += [f"seed {result.seed}: {len(result.violations)} violations"]
    lines += [f"VIOLATION {each.promise}: {each.what}" for each in result.violations[:MAX_VIOLATIONS]]
    lines += ["", "faults:"]
    lines += [f"{fault.at_s:7.1f} s  {fault.fault}, {fault.detail}, {fault.lasted_s} s" for fault in result.faults]
    return "\n".join([*lines, "", *result.histories])


if __name__ == "__main__":
    sys.exit(main())
