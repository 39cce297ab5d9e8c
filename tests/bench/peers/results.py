"""The results: all runs, their medians, and the environment. The report reads nothing else."""

import json
import os
import platform
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.bench.peers.configs import ContenderConfig
from tests.bench.peers.environments import ROOT, pinned_version
from tests.bench.peers.harness import Run, runtime_versions


@dataclass(slots=True)
class Results:
    """All runs of one execution of the command."""

    environment: dict[str, Any]
    rounds: int
    quick: bool
    skipped: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    added: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The environment of workloads that were run later than the rest, and their rounds."""

    def with_added(self, later: "Results", workloads: Collection[str]) -> "Results":
        """Return these results with those of later runs of some workloads."""
        facts = {"environment": later.environment, "rounds": later.rounds}
        return replace(
            self,
            skipped=[*self.skipped, *later.skipped],
            runs=[run for run in self.runs if run.workload not in workloads] + later.runs,
            added={**self.added, **dict.fromkeys(workloads, facts)},
        )

    def of(self, workload: str, key: str) -> dict[int, dict[str, Any]]:
        """Return a contender's results by round."""
        return {run.round: run.result for run in self.runs if (run.workload, run.key) == (workload, key) and run.result}

    def keys(self, workload: str) -> list[str]:
        """Return the contenders of a workload, in the order of the first round."""
        return list(dict.fromkeys(run.key for run in self.runs if run.workload == workload))

    def median(self, workload: str, key: str, figure: str) -> float | None:
        """Return the median over the rounds. A dot selects a nested value: `cpu_us_per_job.server`."""
        found = (_figure(result, figure) for result in self.of(workload, key).values())
        return _median(value for value in found if value is not None)

    def medians(self, workload: str, key: str, figure: str) -> list[float]:
        """Return the median of each item of a value that is a list."""
        lists = [result[figure] for result in self.of(workload, key).values() if figure in result]
        return [statistics.median(column) for column in zip(*lists, strict=False)]

    def kept_up(self, workload: str, key: str) -> bool:
        return all(result.get("kept_up", True) for result in self.of(workload, key).values())

    def error(self, workload: str, key: str) -> str:
        """Return the first error if no run succeeded, else an empty string."""
        errors = [run.error for run in self.runs if (run.workload, run.key) == (workload, key) and run.error]
        return errors[0] if errors and not self.of(workload, key) else ""

    def ratio(
        self, ours: tuple[str, str, str], others: Iterable[tuple[str, str, str]], best: Callable[..., float]
    ) -> float | None:
        """Return the median of the ratios of each round, ours to the best of the others.

        Within a round, other load on the machine affects all contenders alike.
        """
        by_round: dict[int, list[float]] = defaultdict(list)
        for workload, key, figure in others:
            for number, result in self.of(workload, key).items():
                if figure in result:
                    by_round[number].append(result[figure])
        workload, key, figure = ours
        mine = self.of(workload, key)
        return _median(mine[number][figure] / best(theirs) for number, theirs in by_round.items() if number in mine)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def load(path: Path) -> Results:
    stored = json.loads(path.read_text())
    runs = [Run(**run) for run in stored.pop("runs")]
    return Results(**stored, runs=runs)


def describe_environment(server: dict[str, str], contenders: Iterable[ContenderConfig]) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    peers = {config.package: pinned_version(config) for config in contenders if config.is_peer}
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "awa": commit.stdout.strip(),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "postgresql": server,
        "runtimes": runtime_versions(),
        "peers": peers,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _figure(result: dict[str, Any], figure: str) -> float | None:
    found: Any = result
    for name in figure.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, int | float) else None


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None
