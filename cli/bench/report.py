"""The result of a workload, as JSON and as text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from ..output import Cell, Fields, Row, print_fields, print_json, print_table, say
from .costs import Costs, ServerSettings

LEGEND = "Per job: bytes of WAL, transactions, CPU time of client+server, dead rows."
PERCENTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "max_ms": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The options, results and costs of one workload, and the server."""

    workload: str
    options: Mapping[str, Any] = field(default_factory=dict)
    jobs: int
    figures: Mapping[str, Any]
    costs: Costs
    server: ServerSettings

    def as_object(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "options": dict(self.options),
            "jobs": self.jobs,
            **self.figures,
            "wal_bytes_per_job": self.costs.wal_bytes_per_job,
            "transactions_per_job": self.costs.transactions_per_job,
            "cpu_us_per_job": self.costs.cpu_us_per_job,
            "dead_tuples_per_job": self.costs.dead_tuples_per_job,
            "server": self.server.server,
            "fsync": self.server.fsync,
            "synchronous_commit": self.server.synchronous_commit,
        }

    @property
    def name(self) -> str:
        """Return the arguments that run the workload, e.g. `enqueue --mode bulk`."""
        flags = ((f"--{name.replace('_', '-')}", value) for name, value in self.options.items())
        return " ".join([self.workload, *(flag if value is True else f"{flag} {value}" for flag, value in flags)])

    @property
    def label(self) -> str:
        """Return a short name for the table, e.g. `enqueue bulk` or `drain queues`, without rates and durations."""
        words = (
            value if isinstance(value, str) else name.replace("_", " ")
            for name, value in self.options.items()
            if isinstance(value, str | int) and value is not False
        )
        return " ".join(dict.fromkeys([self.workload, *words]))


def percentiles(values_ms: Sequence[float]) -> dict[str, float]:
    """Return percentiles by nearest rank: each is a measured value."""
    ranked = sorted(values_ms)
    return {name: round(ranked[math.ceil(share * len(ranked)) - 1], 3) for name, share in PERCENTILES.items()}


def show_one(report: Report, *, as_json: bool) -> None:
    if as_json:
        print_json(report.as_object())
    else:
        print_fields(_fields(report))


def show_all(reports: Sequence[Report], *, as_json: bool) -> None:
    if as_json:
        print_json([report.as_object() for report in reports])
        return
    print_table([_row(report) for report in reports], empty="no results")
    if reports:
        say(f"\n{LEGEND}\n{_server(reports[0].server)}")


def _fields(report: Report) -> Fields:
    figures = {name.replace("_", " "): _figure(name, value) for name, value in report.figures.items()}
    cpu, costs = report.costs.cpu_us_per_job, report.costs
    return {
        "workload": report.name,
        "jobs": f"{report.jobs:,}",
        **figures,
        "WAL per job": _with_unit(costs.wal_bytes_per_job, "bytes"),
        "transactions per job": f"{costs.transactions_per_job:,.4g}",
        "CPU per job": f"client {_with_unit(cpu['client'], 'µs')}, server {_with_unit(cpu['server'], 'µs')}",
        "dead rows per job": f"{costs.dead_tuples_per_job:,.3g}",
        "server": _server(report.server),
    }


def _row(report: Report) -> Row:
    """Return a row that fits 80 columns."""
    costs, cpu = report.costs, report.costs.cpu_us_per_job
    cells = {
        "jobs": f"{report.jobs:,}",
        "result": _headline(report.figures),
        "WAL B": _number(costs.wal_bytes_per_job),
        "tx": f"{costs.transactions_per_job:.3f}",
        "CPU µs": "+".join(_number(cpu[side]) for side in ("client", "server")),
        "dead": f"{costs.dead_tuples_per_job:.2f}",
    }
    return {"workload": report.label, **{name: Text(cell, justify="right") for name, cell in cells.items()}}


def _headline(figures: Mapping[str, Any]) -> str:
    """Return the most important result."""
    if "jobs_per_s" in figures:
        return f"{figures['jobs_per_s']:,.0f} jobs/s"
    backlog = "" if figures.get("kept_up", True) else ", backlog"
    return f"p50 {figures['p50_ms']:.2f} p99 {figures['p99_ms']:.2f} ms{backlog}"


def _figure(name: str, value: Any) -> Cell:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.startswith("ratio"):
        ratios = value if isinstance(value, list) else [value]
        return ", ".join("unknown" if ratio is None else f"{ratio:.3f}" for ratio in ratios)
    if isinstance(value, list):
        return ", ".join(map(_number, value)) + " jobs/s"
    return f"{value:,.2f}" if name.endswith("_ms") or name == "seconds" else _number(value)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _with_unit(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:,.0f} {unit}"


def _server(server: ServerSettings) -> str:
    fsync, commit = ("on" if setting else "off" for setting in (server.fsync, server.synchronous_commit))
    return f"PostgreSQL {server.server}, fsync {fsync}, synchronous_commit {commit}"
