"""The output of commands: tables and fields as text, with colours on a terminal, or JSON."""

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from rich.console import Console, Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from awa_py import durations
from awa_py.model.job import State
from awa_py.store.schedules import NEVER
from awa_py.text import escape, escape_json, relative_time

Cell = str | int | Text | None
Row = Mapping[str, Cell]
Fields = Mapping[str, Cell | list[str]]

PIPE_COLUMNS = 4096  # do not cut the output to a pipe
GAP = 2
MAX_JSON_DEPTH = 100  # an argument may be nested as deeply as PostgreSQL's stack allows
MIN_COLUMN_WIDTH = 8
SPARKS, ASCII_SPARKS = "▁▂▃▄▅▆▇█", ".:-=+*#@"

STATE_STYLES: dict[str, str] = {
    State.SCHEDULED: "magenta",
    State.RETRYABLE: "yellow",
    State.WAITING: "magenta",
    State.AVAILABLE: "cyan",
    State.RUNNING: "blue",
    State.COMPLETED: "green",
    State.FAILED: "red",
    State.CANCELLED: "bright_black",
}


def console() -> Console:
    """Return a console for standard output, as wide as the terminal; a pipe has no width."""
    fixed = None if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal() else PIPE_COLUMNS
    return Console(width=fixed, highlight=False, markup=False, emoji=False, soft_wrap=False)


def say(sentence: str) -> None:
    """Print a line of text."""
    console().print(Text(escape(sentence)), soft_wrap=True)


def show(renderable: RenderableType) -> None:
    """Print without trailing spaces."""
    out = console()
    with out.capture() as captured:
        out.print(renderable)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def print_json(value: Any, *, compact: bool = False) -> None:
    """Print JSON. Dataclasses become objects, times are ISO 8601, durations are e.g. "1h30m"."""
    sys.stdout.write(_json_text(value, indent=None if compact else 2) + "\n")


def print_table(rows: Sequence[Row], *, empty: str) -> None:
    """Print rows as a table whose headers are the keys of the first row, or `empty` if there are no rows."""
    if rows:
        show(table(rows, console().width))
    else:
        say(empty)


def table(rows: Sequence[Row], width: int) -> Table:
    """Return a table with one line per row: if the terminal is narrow, texts are cut. Numbers are right-aligned."""
    headers = list(rows[0])
    cells = [[_on_one_line(row[header]) for header in headers] for row in rows]
    flexible = [all(isinstance(row[header], str | None) for row in rows) for header in headers]
    numeric = [all(isinstance(row[header], int | None) for row in rows) for header in headers]
    natural = [max(len(header), *(line[n].cell_len for line in cells)) for n, header in enumerate(headers)]
    widths = _fit_widths(natural, flexible, numeric, width - GAP * (len(headers) - 1))
    columns = [
        Column(header, width=widths[n], no_wrap=True, overflow="ellipsis", justify="right" if numeric[n] else "left")
        for n, header in enumerate(headers)
    ]
    grid = Table(*columns, box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for line in cells:
        grid.add_row(*line)
    return grid


def print_fields(values: Fields) -> None:
    """Print names on the left and values on the right. A list has a line per item; empty values are omitted."""
    grid = Table.grid(padding=(0, GAP, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in values.items():
        lines: Sequence[Cell] = value if isinstance(value, list) else [value]
        for n, line in enumerate(line for line in lines if line not in (None, "")):
            grid.add_row("" if n else name, plain_text(line))
    show(grid)


def group(*parts: RenderableType) -> Group:
    """Stack parts with a blank line between them."""
    spaced: list[RenderableType] = []
    for part in parts:
        spaced += [Text(""), part] if spaced else [part]
    return Group(*spaced)


def state_text(state: State) -> Text:
    return Text(state, style=STATE_STYLES[state])


def plain_text(value: Cell) -> Text:
    """Return a value as text with control characters as escapes: the content of a job must not control the terminal."""
    if isinstance(value, Text):
        return value
    return Text("" if value is None else escape(str(value)))


def ago(moment: datetime | None, now: datetime) -> str:
    """Return a time relative to now, e.g. 5m ago. Both are times of the database."""
    if moment is None:
        return ""
    return "never" if moment == NEVER else relative_time(moment - now)


def timestamp(moment: datetime | None, now: datetime) -> str | None:
    """Return a time with its distance: 2026-01-02 03:04:05 UTC (5m ago)."""
    if moment is None:
        return None
    return (
        "never"
        if moment == NEVER
        else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({relative_time(moment - now)})"
    )


def duration_text(value: timedelta | None) -> str:
    """Return a duration, or `default` for None."""
    return "default" if value is None else durations.text(value)


def approximate(seconds: float) -> str:
    """Return a duration in at most five characters: 850µs, 12ms, 1.2s, 95s, 12m, 3.5h, 4.1d."""
    if seconds < 0.001:
        return f"{max(0.0, seconds) * 1e6:.0f}µs"
    if seconds < 0.9995:
        return f"{seconds * 1000:.{1 if seconds < 0.00995 else 0}f}ms"
    if seconds < 100:
        return f"{seconds:.3g}s"
    minutes = seconds / 60
    if minutes < 100:
        return f"{minutes:.3g}m"
    return f"{minutes / 60:.3g}h" if minutes < 100 * 60 else f"{minutes / 1440:,.4g}d"


def sparkline(values: Sequence[float], *, ascii_only: bool = False) -> str:
    """Return one character per value, scaled to the largest; zero is a space."""
    sparks = ASCII_SPARKS if ascii_only else SPARKS
    top = len(sparks) - 1
    largest = max(values, default=0) or 1
    return "".join(sparks[min(top, int(value / largest * len(sparks)))] if value else " " for value in values)


def compact_json(value: Any) -> str:
    return _json_text(value)


def _json_text(value: Any, indent: int | None = None) -> str:
    return escape_json(json.dumps(_jsonable(value), indent=indent, ensure_ascii=False))


def _on_one_line(value: Cell) -> Text:
    return plain_text(" ".join(value.split()) if isinstance(value, str) else value)


def _fit_widths(natural: Sequence[int], flexible: Sequence[bool], numeric: Sequence[bool], width: int) -> list[int]:
    """Return column widths that fit, by shrinking the widest column one character at a time.

    Flexible columns shrink first, numbers never.
    """
    widths = list(natural)
    while sum(widths) > width:
        wide = [n for n, column_width in enumerate(widths) if column_width > MIN_COLUMN_WIDTH and not numeric[n]]
        shrinkable = [n for n in wide if flexible[n]] or wide
        if not shrinkable:
            break
        widths[max(shrinkable, key=lambda n: widths[n])] -= 1
    return widths


def _jsonable(value: Any, depth: int = 0) -> Any:
    if depth > MAX_JSON_DEPTH:
        return "…"
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _jsonable(getattr(value, field.name), depth + 1) for field in fields(value)}
    match value:
        case dict():
            return {str(key): _jsonable(each, depth + 1) for key, each in value.items()}
        case list() | tuple():
            return [_jsonable(each, depth + 1) for each in value]
        case float() if not math.isfinite(value):  # not JSON; PostgreSQL stores larger numbers than Python
            return str(value)
        case datetime():
            return "infinity" if value == NEVER else value.isoformat()
        case timedelta():
            return durations.text(value)
        case UUID():
            return str(value)
        case _:
            return value
