"""Parts of a report in Markdown: tables, numbers, the environment, the targets."""

from collections.abc import Iterator, Sequence
from typing import Any

from tests.bench.peers.results import Results
from tests.bench.peers.targets import Target

NO_VALUE = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"


def environment_line(results: Results) -> str:
    environment = results.environment
    server = environment["postgresql"]
    settings = ", ".join(f"{name} {value}" for name, value in server.items() if name != "version")
    runtimes = ", ".join(f"{name.capitalize()} {version}" for name, version in environment["runtimes"].items())
    quick_note = "\n\n**A quick run: a tenth of the jobs. These numbers show that it works, not how fast it is.**"
    return (
        f"Measured {_date(environment)}: {environment['cores']} cores "
        f"({environment['processor']}) shared with PostgreSQL {server['version']} ({settings}), "
        f"{environment['memory_gib']} GiB, {environment['system']}, {runtimes}."
        + (quick_note if results.quick else "")
        + "".join(f"\n\n{line}" for line in _added(results))
    )


def _added(results: Results) -> Iterator[str]:
    """Say which workloads were run later, and when: rates of different runs cannot be compared."""
    runs: dict[str, list[str]] = {}
    for workload, facts in results.added.items():
        server = facts["environment"]["postgresql"]["version"]
        when = f"{_date(facts['environment'])} with PostgreSQL {server}, rounds: {facts['rounds']}"
        runs.setdefault(when, []).append(workload)
    for when, workloads in runs.items():
        yield f"Measured {when}: {', '.join(workloads)}."


def _date(environment: dict[str, Any]) -> str:
    return f"{environment['date']} at {environment['awa'] or 'an unknown commit'}"


def target_table(targets: Sequence[Target]) -> str:
    rows = []
    for target in targets:
        met = {True: "yes", False: "**no**", None: NO_VALUE}[target.is_met]
        measured = NO_VALUE if target.measured is None else f"{target.measured:.2f}{TIMES}"
        rows.append([target.description, f"{target.relation} {target.wanted:g}{TIMES}", measured, met])
    return markdown_table(["", "target", "this run", "met"], rows)


def format_rate(rate: float | None) -> str:
    return NO_VALUE if rate is None else f"{rate:,.0f}"


def format_ms(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:,.2f}"


def format_ratio(ratio: float | None) -> str:
    return NO_VALUE if ratio is None else f"{ratio:,.2f}{TIMES}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["--:"] * (len(header) - 1)]
    if header[-1] == "configuration":
        rule = ["---"] * len(header)
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, rule, *rows))
