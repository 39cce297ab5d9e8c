"""Write docs/benchmarks.md: the text of template.md with all numbers from the results."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.bench.peers.charts import draw_charts
from tests.bench.peers.configs import CONTENDERS
from tests.bench.peers.environments import HERE
from tests.bench.peers.markdown import (
    NO_VALUE,
    environment_line,
    format_ms,
    format_rate,
    format_ratio,
    markdown_table,
    target_table,
)
from tests.bench.peers.plan import WORKLOADS
from tests.bench.peers.results import Results
from tests.bench.peers.targets import targets

Part = Callable[[Results], str]

ENQUEUES = {
    "enqueue-one": "one by one",
    "enqueue-one-unique": "… with a unique key",
    "enqueue-one-worker": "… with a worker",
    "enqueue-bulk": "bulk",
    "enqueue-bulk-worker": "… with a worker",
    "enqueue-producers": "32 producers",
    "enqueue-producers-worker": "… with a worker",
}
ARGUMENTS = {"argument-1k": "1 KB", "argument-10k": "10 KB", "argument-100k": "100 KB"}
HANDLERS = {"await-100": "awaits 5 ms, 100 slots", "await-500": "awaits 5 ms, 500 slots", "sync": "sync, does nothing"}
WORKERS_AND_QUEUES = {
    "processes-2": "2 processes",
    "queues-200": "200 queues",
    "max-workers-100": "`max_workers` 100",
}
COSTS = {
    "transactions_per_job": "transactions per job",
    "cpu_us_per_job.client": "CPU µs per job, worker",
    "cpu_us_per_job.server": "CPU µs per job, server",
    "dead_tuples_per_job": "dead tuples per job",
}
# A handwritten page about missed targets and what was tried. It is linked if it exists.
PROFILE = "[Where the time goes](benchmarks/profile.md), and what was tried."


def write_report(results: Results, folder: Path) -> None:
    """Write the page, its charts, and the results from which it was made."""
    text = (HERE / "template.md").read_text()
    has_profile = (folder / "benchmarks" / "profile.md").is_file()
    text = text.replace("{{profile}}\n\n", f"{PROFILE}\n\n" if has_profile else "")
    for name, part in PARTS.items():
        text = text.replace(f"{{{{{name}}}}}", part(results))
    charts = folder / "benchmarks"
    charts.mkdir(parents=True, exist_ok=True)
    for name, svg in draw_charts(results).items():
        (charts / f"{name}.svg").write_text(svg)
    results.save(charts / "results.json")
    (folder / "benchmarks.md").write_text(text.rstrip() + "\n")


def label(key: str) -> str:
    name, _, variant = key.partition(":")
    return f"{CONTENDERS[name].label}, {variant}" if variant else CONTENDERS[name].label


def _drain(results: Results) -> str:
    rows = []
    for key in results.keys("drain"):
        ratio = results.ratio(("drain", "awa", "jobs_per_s"), [("drain", key, "jobs_per_s")], max)
        wal = results.median("drain", key, "wal_bytes_per_job")
        rate = results.median("drain", key, "jobs_per_s")
        rows.append(
            [label(key), _jobs(results, "drain", key), format_rate(rate), format_ratio(ratio), format_rate(wal)]
        )
    return markdown_table(["", "jobs", "jobs/s", "awa against it", "WAL bytes per job"], rows) + _errors(
        results, "drain"
    )


def _costs(results: Results) -> str:
    """Return the costs that `awa bench` reports besides the rate."""
    rows = []
    for key in ("awa", "awa-discard", "awa-batch"):
        costs = [results.median("drain", key, figure) for figure in COSTS]
        if any(cost is not None for cost in costs):
            rows.append([label(key), *(NO_VALUE if cost is None else f"{cost:,.3g}" for cost in costs)])
    return "The cost of a job, from `awa bench`:\n\n" + markdown_table(["", *COSTS.values()], rows) if rows else ""


def _columns(workloads: Mapping[str, str], figure: str = "jobs_per_s", unit: str = "jobs/s") -> Part:
    """Return a table with a column for each of the workloads."""

    def table(results: Results) -> str:
        ran = {key for workload in workloads for key in results.keys(workload)}
        keys = sorted(ran, key=lambda key: (list(CONTENDERS).index(key.partition(":")[0]), key))
        medians = {key: [results.median(workload, key, figure) for workload in workloads] for key in keys}
        rows = [[label(key), *map(format_rate, found)] for key, found in medians.items() if any(found)]
        errors = "".join(_errors(results, workload) for workload in workloads)
        return markdown_table([unit, *workloads.values()], rows) + errors

    return table


def _behind(results: Results) -> str:
    """Name each workload in which a peer is ahead of awa."""
    lines = []
    for workload in WORKLOADS:
        figure, best = ("p50_ms", min) if workload in ("latency", "steady") else ("jobs_per_s", max)
        medians = {key: results.median(workload, key, figure) for key in results.keys(workload)}
        peers = {key: value for key, value in medians.items() if value and CONTENDERS[key.partition(":")[0]].is_peer}
        if not peers or not medians.get("awa"):
            continue
        first = best(peers, key=lambda key: peers[key])
        ratio = results.ratio((workload, "awa", figure), [(workload, first, figure)], best)
        if ratio is not None and best(ratio, 1) == 1 and ratio != 1:
            lines.append(f"- {workload}: {label(first)}; awa has {format_ratio(ratio)} of its {figure}.")
    return (
        "\n".join(["awa is behind a peer in these workloads:", "", *lines])
        if lines
        else "awa is first in each workload."
    )


def _latencies(workload: str) -> Part:
    figures = ("p50_ms", "p95_ms", "p99_ms")

    def table(results: Results) -> str:
        rows = []
        for key in results.keys(workload):
            row = [label(key), *(format_ms(results.median(workload, key, figure)) for figure in figures)]
            if workload == "steady":
                kept_up = "yes" if results.kept_up(workload, key) else "**no**"
                row.append(kept_up if results.of(workload, key) else NO_VALUE)
            rows.append(row)
        header = ["ms", "p50", "p95", "p99", *(["kept up"] if workload == "steady" else [])]
        return markdown_table(header, rows) + _errors(results, workload)

    return table


def _pinned(results: Results) -> str:
    rows = []
    for key in results.keys("pinned"):
        thirds = results.medians("pinned", key, "thirds")
        rates = [format_rate(rate) for rate in thirds] or [NO_VALUE] * 3
        last = f"{thirds[-1] / thirds[0]:.0%}" if thirds else NO_VALUE
        rows.append([label(key), _jobs(results, "pinned", key), *rates, last])
    header = ["jobs/s", "jobs", "first third", "second", "last", "last / first"]
    return markdown_table(header, rows) + _errors(results, "pinned")


def _growth(results: Results) -> str:
    rows = []
    for key in results.keys("growth"):
        ratio = results.ratio(("growth", key, "jobs_per_s"), [("growth", "awa:empty", "jobs_per_s")], max)
        share = NO_VALUE if ratio is None else f"{ratio:.0%}"
        rows.append([key.partition(":")[2], format_rate(results.median("growth", key, "jobs_per_s")), share])
    return markdown_table(["rows present", "jobs/s", "of the empty run"], rows) + _errors(results, "growth")


def _configurations(results: Results) -> str:
    ran = {key.partition(":")[0] for workload in WORKLOADS for key in results.keys(workload)}
    versions = results.environment["peers"]
    rows = [
        [config.label, versions.get(config.package, "this tree"), config.configuration]
        for config in CONTENDERS.values()
        if config.name in ran
    ]
    return markdown_table(["", "version", "configuration"], rows)


def _skipped(results: Results) -> str:
    return "".join(f"\n{sentence}.\n" for sentence in dict.fromkeys(results.skipped))


def _errors(results: Results, workload: str) -> str:
    failures = [(key, results.error(workload, key)) for key in results.keys(workload)]
    return "".join(f"\n\n{label(key)} has no result in {workload}: {error}." for key, error in failures if error)


def _jobs(results: Results, workload: str, key: str) -> str:
    return next(f"{run.params['jobs']:,}" for run in results.runs if (run.workload, run.key) == (workload, key))


PARTS: dict[str, Part] = {
    "environment": environment_line,
    "targets": lambda results: target_table(targets(results)),
    "drain": _drain,
    "costs": _costs,
    "behind": _behind,
    "arguments": _columns(ARGUMENTS),
    "argument-wal": _columns(ARGUMENTS, "wal_bytes_per_job", "WAL bytes per job"),
    "handlers": _columns(HANDLERS),
    "workers-and-queues": _columns(WORKERS_AND_QUEUES),
    "enqueue": _columns(ENQUEUES),
    "latency": _latencies("latency"),
    "steady": _latencies("steady"),
    "pinned": _pinned,
    "growth": _growth,
    "configurations": _configurations,
    "skipped": _skipped,
    "rounds": lambda results: str(results.rounds),
}
