"""The output of the demo: a live screen in a terminal, plain lines elsewhere."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from awa_py.model.job import Job, State

from ..output import sparkline
from .snapshot import DemoEvent, Severity, Snapshot, name

SPARK_WIDTH = 40
TABLE_WIDTH = 58  # without the sparklines
BAR_WIDTH = 20
WORKER_LINES = 4
FIXED_LINES = 19  # of the screen, without the events
MIN_EVENTS = 4
SILENT_AFTER_S = 1.5  # show a worker without heartbeat as silent
HIDDEN_AFTER_S = 8.0  # and stop showing it
STATUS_INTERVAL_S = 2.0
STYLES = {Severity.GOOD: "green", Severity.BAD: "red", Severity.NEUTRAL: "default"}
MARKS = {Severity.GOOD: "✓", Severity.BAD: "✗", Severity.NEUTRAL: "·"}
WAITING = (State.AVAILABLE, State.SCHEDULED, State.WAITING)


class Display(Protocol):
    """Show snapshots and events while its context is open."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def add_events(self, events: Sequence[DemoEvent]) -> None: ...
    def show(self, snapshot: Snapshot) -> None: ...


class LineDisplay:
    """Print each event on a line, and the totals every two seconds. For pipes and logs."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line = print_line
        self._status_due_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add_events(self, events: Sequence[DemoEvent]) -> None:
        for event in events:
            self._print_line(f"{clock(event.at_s)}  {event.text}")

    def show(self, snapshot: Snapshot) -> None:
        if snapshot.at_s < self._status_due_s:
            return
        self._status_due_s = snapshot.at_s + STATUS_INTERVAL_S
        leader = f"leader pid {snapshot.leader.pid}" if snapshot.leader else "no leader"
        completed = f"{snapshot.total(State.COMPLETED):,} completed ({snapshot.completed_per_s:,.0f}/s)"
        running = f"{snapshot.total(State.RUNNING):,} running"
        self._print_line(
            f"{clock(snapshot.at_s)}  {completed}, {snapshot.total(*WAITING):,} waiting, {running}, "
            f"{snapshot.total(State.RETRYABLE):,} to retry, {len(snapshot.live_workers)} workers, {leader}"
        )


@dataclass(slots=True)
class QueueRate:
    """The rate at which a queue completed jobs between snapshots."""

    completed: int | None = None
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=SPARK_WIDTH))

    def update(self, completed: int, elapsed_s: float) -> None:
        if self.completed is not None and elapsed_s > 0:
            self.rates.append(max(0, completed - self.completed) / elapsed_s)
        self.completed = completed

    def sparkline(self, width: int) -> str:
        return sparkline(self.rates)[-width:].rjust(width)

    def mean(self, updates: int = 8) -> float:
        latest = list(self.rates)[-updates:]
        return sum(latest) / len(latest) if latest else 0.0


class ScreenDisplay:
    """Redraw the totals and the latest events in place. For terminals."""

    def __init__(self, console: Console, *, database: str, seconds: float | None) -> None:
        self._console = console
        self._database = database
        self._seconds = seconds
        self._events: deque[DemoEvent] = deque(maxlen=200)
        self._rates: dict[str, QueueRate] = {}
        self._shown_at_s = 0.0
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def add_events(self, events: Sequence[DemoEvent]) -> None:
        self._events.extend(events)

    def show(self, snapshot: Snapshot) -> None:
        for queue in snapshot.queues:
            rate = self._rates.setdefault(queue.name, QueueRate())
            rate.update(queue.counts.get(State.COMPLETED, 0), snapshot.at_s - self._shown_at_s)
        self._shown_at_s = snapshot.at_s
        parts = [
            self._header(snapshot),
            self._queues(snapshot),
            self._workers(snapshot),
            self._latest_events(),
            self._footer(),
        ]
        self._live.update(Group(*parts), refresh=True)

    def _header(self, snapshot: Snapshot) -> RenderableType:
        limit = "" if self._seconds is None else f" of {clock(self._seconds)}"
        leader = f"pid {snapshot.leader.pid}, epoch {snapshot.leader.epoch}" if snapshot.leader else "not elected yet"
        facts = Text.assemble(("PostgreSQL ", "dim"), self._database, ("    leader ", "dim"), leader)
        title = Text.assemble(("awa", "bold cyan"), (" demo ", "bold"), (f"{clock(snapshot.at_s)}{limit}", "cyan"))
        return Panel(facts, title=title, title_align="left", border_style="cyan", box=box.ROUNDED)

    def _queues(self, snapshot: Snapshot) -> RenderableType:
        table = Table(box=None, padding=(0, 0, 0, 2), header_style="dim", show_footer=True, footer_style="bold")
        table.add_column("queue", "all", min_width=8)
        table.add_column("waiting", f"{snapshot.total(*WAITING):,}", justify="right")
        table.add_column("running", f"{snapshot.total(State.RUNNING):,}", justify="right")
        table.add_column("retry", f"{snapshot.total(State.RETRYABLE):,}", justify="right")
        table.add_column("completed", f"{snapshot.total(State.COMPLETED):,}", justify="right", min_width=7)
        table.add_column("jobs/s", f"{snapshot.completed_per_s:,.0f}", justify="right")
        table.add_column("last 10 s", no_wrap=True)
        width = max(0, min(SPARK_WIDTH, self._console.width - TABLE_WIDTH))
        for queue in snapshot.queues:
            count, rate = queue.counts.get, self._rates[queue.name]
            table.add_row(
                Text(queue.name, style="bold"),
                _number(sum(count(state, 0) for state in WAITING), "yellow"),
                _number(count(State.RUNNING, 0), "cyan"),
                _number(count(State.RETRYABLE, 0), "red"),
                _number(count(State.COMPLETED, 0), "green"),
                f"{rate.mean():,.1f}" if rate.mean() < 100 else f"{rate.mean():,.0f}",
                Text(rate.sparkline(width), style="green"),
            )
        return table

    def _workers(self, snapshot: Snapshot) -> RenderableType:
        """Return the workers, and the progress of the long report."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        for worker in [worker for worker in snapshot.workers if worker.silent_s < HIDDEN_AFTER_S][-WORKER_LINES + 1 :]:
            is_leader = snapshot.leader is not None and snapshot.leader.worker_id == worker.id
            if worker.silent_s > SILENT_AFTER_S:
                mark, status = Text("  ✗", style="red"), Text(f"silent for {worker.silent_s:.0f} s", style="red")
            else:
                mark, status = (
                    Text("  ●", style="green"),
                    Text(f"{worker.running} running" + (", leader" if is_leader else "")),
                )
            grid.add_row(mark, f"worker pid {worker.pid}", status)
        reports = [job for job in snapshot.jobs.values() if job.kind == "long_report" and not job.state.final]
        for job in reports[:1]:
            grid.add_row(Text("  ▸", style="cyan"), name(job), self._progress(snapshot, job))
        return Padding(grid, (1, 0, 1 + WORKER_LINES - grid.row_count, 0))

    def _progress(self, snapshot: Snapshot, job: Job) -> RenderableType:
        progress = job.progress or {}
        pid = snapshot.find_pid(job)
        place = f"on pid {pid}" if job.state is State.RUNNING and pid else job.state
        facts = [progress.get("message"), place, f"attempt {max(1, job.attempt)}"]
        text = Text(", ".join(filter(None, facts)), style="dim", no_wrap=True, overflow="ellipsis")
        row = Table.grid(padding=(0, 2, 0, 0))
        row.add_row(ProgressBar(total=1.0, completed=float(progress.get("fraction", 0.0)), width=BAR_WIDTH), text)
        return row

    def _latest_events(self) -> RenderableType:
        lines_left = max(MIN_EVENTS, self._console.height - FIXED_LINES)
        latest = list(self._events)[-lines_left:]
        lines = [
            Text.assemble(
                (f"  {clock(event.at_s)}  ", "dim"),
                (f"{MARKS[event.severity]} {event.text}", STYLES[event.severity]),
                no_wrap=True,
                overflow="ellipsis",
            )
            for event in latest
        ]
        return Padding(Group(*lines), (0, 0, lines_left - len(lines), 0))

    def _footer(self) -> RenderableType:
        return Text("\n  Ctrl-C ends the demo and leaves nothing behind.", style="dim")


def clock(at_s: float) -> str:
    minutes, tenths = divmod(round(max(0.0, at_s) * 10), 600)
    return f"{minutes:02}:{tenths // 10:02}.{tenths % 10}"


def _number(value: int, style: str) -> Text:
    return Text(f"{value:,}", style=style if value else "dim")
