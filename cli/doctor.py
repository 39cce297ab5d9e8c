"""awa doctor"""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby
from typing import Annotated

import typer
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from awa_py.doctor import CHECKS, Finding, Level, run_checks
from awa_py.errors import DatabaseUnavailable
from awa_py.text import count

from .environment import Environment
from .output import GAP, group, plain_text, print_json, say, show
from .parsing import JsonOption, parse_duration

STYLES = {Level.OK: "green", Level.NOTICE: "cyan", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


async def doctor(
    env: Environment,
    long_transaction: Annotated[
        timedelta,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            envvar="AWA_DOCTOR_LONG_TRANSACTION",
            help="Report transactions that are open for longer than this.",
        ),
    ] = "5m",  # type: ignore[assignment]  # typer parses the default, too
    as_json: JsonOption = False,
) -> None:
    """Find problems and say how to fix them. Exits with 1 if there is a problem."""
    try:
        findings = await run_checks(await env.database(), env.settings, long_transaction=long_transaction)
    except DatabaseUnavailable as error:
        if as_json:
            print_json([_unreachable(error)])
        raise
    if as_json:
        print_json(findings)
    else:
        show(group(*_sections(findings)))
        say("")
        say(_summary(findings))
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise typer.Exit(1)


def _unreachable(error: DatabaseUnavailable) -> Finding:
    return Finding(
        level=Level.PROBLEM,
        group="connection",
        check="connect",
        about=None,
        says=str(error),
        do="Check that PostgreSQL runs, that the URL is right, and that the server accepts this host and role.",
    )


def _sections(findings: Sequence[Finding]) -> list[Group]:
    return [_section(name, list(found)) for name, found in groupby(findings, key=lambda finding: finding.group)]


def _section(name: str, findings: Sequence[Finding]) -> Group:
    grid = Table.grid(padding=(0, GAP, 0, 0))
    grid.add_column(width=max(map(len, Level)))
    grid.add_column(width=max(len(check.name) for check in CHECKS))
    grid.add_column(overflow="fold")
    for finding in findings:
        about = "" if finding.about is None else f"{finding.about}: "
        grid.add_row(Text(finding.level, style=STYLES[finding.level]), finding.check, plain_text(about + finding.says))
        if finding.do is not None:
            grid.add_row("", "", Text("do: ", style="bold") + plain_text(finding.do))
    return Group(Text(name.capitalize(), style="bold"), Padding(grid, (0, 0, 0, GAP)))


def _summary(findings: Sequence[Finding]) -> str:
    levels = Counter(finding.level for finding in findings)
    found = [count(levels[level], level) for level in (Level.PROBLEM, Level.WARNING, Level.NOTICE) if levels[level]]
    return ", ".join(found) if found else "no problems found"
