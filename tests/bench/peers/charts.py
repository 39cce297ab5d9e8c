"""The charts of the report, each from the medians of one workload."""

from tests.bench.peers.configs import CONTENDERS
from tests.bench.peers.results import Results
from tests.bench.peers.svg import Bar, Line, bars, lines

ENQUEUE_GROUPS = {"enqueue-one": "one by one", "enqueue-producers": "32 producers", "enqueue-bulk": "bulk"}


def draw_charts(results: Results) -> dict[str, str]:
    """Return the SVG of each chart, by the name of its file without the extension."""
    return {
        "drain": _rates(results, "drain", "Drain", "jobs/s, one worker process; more is better"),
        "enqueue": _enqueue(results),
        "latency": _latency(results, "latency", "Pickup on an idle queue"),
        "steady": _latency(results, "steady", "Pickup at a steady 500 jobs/s"),
        "pinned": _pinned(results),
        "growth": _rates(results, "growth", "Drain with other rows present", "jobs/s; more is better"),
    }


def _rates(results: Results, workload: str, title: str, subtitle: str) -> str:
    rows = []
    for key in results.keys(workload):
        rate = results.median(workload, key, "jobs_per_s")
        if rate is not None:
            rows.append(Bar(label=_name(key), values=[rate], shown=f"{rate:,.0f}", role=_role(key)))
    if workload == "drain":
        rows.sort(key=lambda row: -row.values[0])
    return bars(title, subtitle, {"": rows})


def _enqueue(results: Results) -> str:
    groups = {}
    for workload, group in ENQUEUE_GROUPS.items():
        rows = []
        for key in results.keys(workload):
            rate = results.median(workload, key, "jobs_per_s")
            if rate is not None:
                rows.append(Bar(label=_name(key), values=[rate], shown=f"{rate:,.0f}", role=_role(key)))
        groups[group] = sorted(rows, key=lambda row: -row.values[0])
    return bars("Enqueue", "jobs/s, logarithmic; more is better", groups, logarithmic=True)


def _latency(results: Results, workload: str, title: str) -> str:
    rows = []
    for key in results.keys(workload):
        p50, p99 = (results.median(workload, key, figure) for figure in ("p50_ms", "p99_ms"))
        if p50 is not None and p99 is not None:
            rows.append(Bar(label=_name(key), values=[p50, p99], shown=f"{p50:,.2f} / {p99:,.2f}", role=_role(key)))
    rows.sort(key=lambda row: row.values[0])
    return bars(title, "ms, p50 (solid) and p99 (pale), logarithmic; less is better", {"": rows}, logarithmic=True)


def _pinned(results: Results) -> str:
    series = []
    for key in results.keys("pinned"):
        thirds = results.medians("pinned", key, "thirds")
        if thirds:
            shares = [rate / thirds[0] for rate in thirds]
            series.append(Line(label=_name(key), values=shares, role=_role(key)))
    steps = ["first third", "second", "last"]
    return lines("Pinned snapshot", "the rate of each third, against the first", steps, series)


def _name(key: str) -> str:
    """Return the short name of a contender, with the variant if it has several."""
    name, _, variant = key.partition(":")
    label = (
        CONTENDERS[name].label.removesuffix(", tuned").removesuffix(" (plain SQL)").replace("as documented", "default")
    )
    return f"{label}, {variant}" if variant else label


def _role(key: str) -> str:
    config = CONTENDERS[key.partition(":")[0]]
    return "peer" if config.is_peer else "limit" if config.name == "limit" else "own"
