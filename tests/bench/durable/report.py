"""Write docs/benchmarks/durable.md: the text of template.md with all numbers from the results."""

from collections.abc import Callable
from pathlib import Path

from tests.bench.durable.plan import CONTENDERS, STEPS_PER_JOB
from tests.bench.durable.targets import targets
from tests.bench.peers.markdown import (
    NO_VALUE,
    environment_line,
    format_ms,
    format_rate,
    markdown_table,
    target_table,
)
from tests.bench.peers.results import Results

RATES = {
    "steps": ("steps_per_s", "steps/s"),
    "children": ("children_per_s", "children/s"),
    "signals": ("signals_per_s", "signals/s"),
}
COSTS = {
    "jobs_per_s": "jobs/s",
    "transactions_each": "transactions",
    "wal_bytes_each": "WAL bytes",
    "client_cpu_us_each": "CPU µs, worker",
    "server_cpu_us_each": "CPU µs, server",
}


def write_report(results: Results, folder: Path) -> None:
    """Write the page, and the results from which it was made."""
    text = (Path(__file__).parent / "template.md").read_text()
    for name, part in PARTS.items():
        text = text.replace(f"{{{{{name}}}}}", part(results))
    folder.mkdir(parents=True, exist_ok=True)
    results.save(folder / "durable.json")
    (folder / "durable.md").write_text(text.rstrip() + "\n")


def _rates(results: Results) -> str:
    rows = []
    for name, config in CONTENDERS.items():
        rates = [format_rate(results.median(workload, name, figure)) for workload, (figure, _) in RATES.items()]
        rows.append([config.label, rates[0], format_ms(results.median("alone", name, "ms_per_step")), *rates[1:]])
    steps, *others = (header for _, header in RATES.values())
    return markdown_table(["", steps, "ms per step, alone", *others], rows)


def _costs(workload: str) -> Callable[[Results], str]:
    def part(results: Results) -> str:
        keys = results.keys(workload)
        figures = [name for name in COSTS if any(results.median(workload, key, name) is not None for key in keys)]
        rows = [[_label(key), *(_cost(results.median(workload, key, name)) for name in figures)] for key in keys]
        return markdown_table(["", *(COSTS[name] for name in figures)], rows)

    return part


def _label(key: str) -> str:
    name, _, variant = key.partition(":")
    return f"{CONTENDERS[name].label}, {variant}" if variant else CONTENDERS[name].label


def _cost(value: float | None) -> str:
    if value is None:
        return NO_VALUE
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"


def _configurations(results: Results) -> str:
    versions = results.environment["peers"]
    rows = [
        [config.label, versions.get(config.package, "this tree"), config.configuration]
        for config in CONTENDERS.values()
    ]
    return markdown_table(["", "version", "configuration"], rows)


def _failures(results: Results) -> str:
    failed = {run.key: f"{run.key} failed in {run.workload}: {run.error}" for run in results.runs if run.error}
    return "".join(f"\n{sentence}.\n" for sentence in dict.fromkeys([*results.skipped, *failed.values()]))


PARTS: dict[str, Callable[[Results], str]] = {
    "environment": environment_line,
    "targets": lambda results: target_table(targets(results)),
    "rates": _rates,
    "step_costs": _costs("steps"),
    "child_costs": _costs("children"),
    "signal_costs": _costs("signals"),
    "context": _costs("context"),
    "configurations": _configurations,
    "failures": _failures,
    "rounds": lambda results: str(results.rounds),
    "steps_per_job": lambda results: str(STEPS_PER_JOB),
}
