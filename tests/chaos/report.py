"""Print the results of runs as Markdown: `python -m tests.chaos.report a.json b.json …`."""

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.faults import ALL


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Return two tables: the runs, and the faults of all of them."""
    return "\n".join([*_runs(results), "", *_faults(results)])


def _runs(results: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| seed | faults | jobs committed | rolled back | unknown to their producer | handler starts | violations |",
        "|---|---|---|---|---|---|---|",
    ]
    totals = [0] * 6
    for result in results:
        jobs = result["jobs"]
        values = [
            len(result["faults"]),
            jobs.get("committed", 0) + jobs.get("duplicate", 0),
            jobs.get("rolled back", 0),
            jobs.get("unknown", 0),
            result["starts"],
            len(result["violations"]),
        ]
        totals = [total + value for total, value in zip(totals, values, strict=True)]
        lines.append(f"| {result['seed']} | " + " | ".join(f"{value:,}" for value in values) + " |")
    lines.append("| all | " + " | ".join(f"{value:,}" for value in totals) + " |")
    return lines


def _faults(results: Sequence[Mapping[str, Any]]) -> list[str]:
    by_name: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for result in results:
        for fault in result["faults"]:
            by_name[fault["fault"]].append(fault)
    lines = [
        "| fault | times | jobs complete again | schedules fire again | interrupted jobs start again |",
        "|---|---|---|---|---|",
    ]
    for kind in ALL:
        if faults := by_name.get(kind.name):
            jobs = [fault["jobs_s"] for fault in faults if fault["jobs_s"] is not None]
            schedules = [fault["schedules_s"] for fault in faults if fault["schedules_s"] is not None]
            restarts = [seconds for fault in faults for seconds in fault["restarts_s"]]
            cells = [f"{kind.name}: {kind.what}", str(len(faults)), _times(jobs), _times(schedules), _times(restarts)]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _times(seconds: Sequence[float]) -> str:
    """Return the median and the worst."""
    return f"{statistics.median(seconds):.1f} / {max(seconds):.1f} s" if seconds else ""


if __name__ == "__main__":
    print(markdown([json.loads(Path(name).read_text()) for name in sys.argv[1:]]))
