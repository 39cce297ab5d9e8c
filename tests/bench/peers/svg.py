"""Bar charts and line charts as SVG, legible on light and dark backgrounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log10

WIDTH = 760
LABEL_WIDTH = 220
VALUE_WIDTH = 130  # for the value after a bar
BAR, GAP, TOP, BOTTOM = 20, 8, 48, 16

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 }
  .heading { font-weight: 600 }
  .soft { fill: #59636e; font-size: 12px }
  .grid { stroke: #d1d9e0; stroke-width: 1 }
  .own { fill: #1f883d } .limit { fill: #818b98 } .peer { fill: #4493f8 } .second { fill-opacity: 0.45 }
  .line { fill: none; stroke-width: 2.5 }
  .line.own { stroke: #1f883d; stroke-width: 4 } .line.limit { stroke: #818b98 } .line.peer { stroke: #4493f8 }
  .line.own, .line.limit, .line.peer { fill: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .soft { fill: #9198a1 } .grid { stroke: #3d444d }
    .own { fill: #3fb950 } .line.own { stroke: #3fb950; fill: none }
  }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row: a label, and one or two values."""

    label: str
    values: Sequence[float]
    shown: str
    role: str  # own, limit or peer: its colour


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a line chart, with a value for each step."""

    label: str
    values: Sequence[float]
    role: str


def bars(title: str, subtitle: str, groups: Mapping[str, Sequence[Bar]], *, logarithmic: bool = False) -> str:
    """Draw horizontal bars in groups with headings. The second of two values is drawn paler behind the first."""
    values = [value for rows in groups.values() for row in rows for value in row.values]
    scale = Scale(values, WIDTH - LABEL_WIDTH - VALUE_WIDTH, logarithmic=logarithmic)
    parts, y = [], TOP
    for heading, rows in groups.items():
        if heading:
            parts.append(f'<text class="heading" x="{LABEL_WIDTH}" y="{y + 15}">{escape(heading)}</text>')
            y += BAR + GAP
        for row in rows:
            parts += _bar(row, y, scale)
            y += BAR + GAP
    return _svg(title, subtitle, y + BOTTOM, parts)


def _bar(row: Bar, y: int, scale: "Scale") -> list[str]:
    parts = [f'<text x="{LABEL_WIDTH - 10}" y="{y + 15}" text-anchor="end">{escape(row.label)}</text>']
    for place, value in reversed(list(enumerate(row.values))):
        paler = " second" if place else ""
        box = f'x="{LABEL_WIDTH}" y="{y}" width="{scale(value):.1f}" height="{BAR}" rx="2"'
        parts.append(f'<rect class="{row.role}{paler}" {box}/>')
    end = LABEL_WIDTH + max((scale(value) for value in row.values), default=0)
    return [*parts, f'<text class="soft" x="{end + 8:.1f}" y="{y + 15}">{escape(row.shown)}</text>']


def lines(title: str, subtitle: str, steps: Sequence[str], series: Sequence[Line]) -> str:
    """Draw lines over a few steps, from zero. Labels are at the ends, moved apart if they would overlap."""
    height, left, right = 360, 60, 250
    top, bottom = TOP + 8, height - 36
    largest = max((value for line in series for value in line.values), default=1) * 1.05
    step_width = (WIDTH - left - right) / max(1, len(steps) - 1)

    def at(step: int, value: float) -> tuple[float, float]:
        return left + step * step_width, bottom - value / largest * (bottom - top)

    parts = []
    for tick in range(int(largest / 0.25) + 1):
        _, y = at(0, tick * 0.25)
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="soft" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick * 25} %</text>')
    for step, name in enumerate(steps):
        x, _ = at(step, 0)
        parts.append(f'<text class="soft" x="{x:.1f}" y="{height - 14}" text-anchor="middle">{escape(name)}</text>')
    label_y = float(height)
    for line in sorted(series, key=lambda line: line.values[-1]):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(i, value) for i, value in enumerate(line.values)))
        parts.append(f'<polyline class="line {line.role}" points="{points}"/>')
        x, y = at(len(line.values) - 1, line.values[-1])
        label_y = min(y + 4, label_y - 16)
        text = f"{line.label} {line.values[-1]:.0%}"
        parts.append(f'<text x="{x + 10:.1f}" y="{label_y:.1f}">{escape(text)}</text>')
    return _svg(title, subtitle, height, parts)


class Scale:
    """Convert values to pixels. A logarithmic scale begins half a decade below the smallest value."""

    def __init__(self, values: Sequence[float], width: float, *, logarithmic: bool) -> None:
        self._width, self._logarithmic = width, logarithmic
        self._largest = max(values, default=1) or 1
        positive = [value for value in values if value > 0]
        self._smallest = min(positive, default=1) / 3

    def __call__(self, value: float) -> float:
        if not self._logarithmic:
            return max(1.0, value / self._largest * self._width)
        if value <= self._smallest:
            return 1.0
        return max(1.0, log10(value / self._smallest) / log10(self._largest / self._smallest) * self._width)


def _svg(title: str, subtitle: str, height: int, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
        f'<text class="title" x="10" y="20">{escape(title)}</text>\n'
        f'<text class="soft" x="10" y="38">{escape(subtitle)}</text>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"
