"""How the demo looks: live in a terminal, line by line elsewhere."""

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
from .scene import Event, Scene, Tone, name

SPARK_WIDTH = 40
FIGURES_WIDTH = 56  # of the table, without its sparklines
BAR_WIDTH = 20
WORK_LINES = 4
FIXED_LINES = 19  # of the live view, beside its events
LEAST_EVENTS = 4
SILENT_S, GONE_S = 1.5, 8.0  # from when on a worker's silence is shown, and until when
STATUS_EVERY_S = 2.0
STYLES = {Tone.GOOD: "green", Tone.BAD: "red", Tone.PLAIN: "default"}
MARKS = {Tone.GOOD: "✓", Tone.BAD: "✗", Tone.PLAIN: "·"}
WAITING = (State.AVAILABLE, State.SCHEDULED, State.WAITING)


class View(Protocol):
    """Shows scenes and tells events, until it is left."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def tell(self, events: Sequence[Event]) -> None: ...
    def show(self, scene: Scene) -> None: ...


class Lines:
    """For pipes and logs: events as they come, and a line of figures every other second."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._status_due_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def tell(self, events: Sequence[Event]) -> None:
        for event in events:
            self._say(f"{clock(event.at_s)}  {event.text}")

    def show(self, scene: Scene) -> None:
        if scene.at_s < self._status_due_s:
            return
        self._status_due_s = scene.at_s + STATUS_EVERY_S
        leader = f"leader pid {scene.leader.pid}" if scene.leader else "no leader"
        self._say(
            f"{clock(scene.at_s)}  {scene.total(State.COMPLETED):,} done ({scene.rate:,.0f}/s), "
            f"{scene.total(*WAITING):,} waiting, {scene.total(State.RUNNING):,} running, "
            f"{scene.total(State.RETRYABLE):,} to retry, {len(scene.living)} workers, {leader}"
        )


@dataclass(slots=True)
class LoopMonitor:
    """How many jobs a queue completed between scenes."""

    done: int | None = None
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=SPARK_WIDTH))

    def beat(self, done: int, passed_s: float) -> None:
        if self.done is not None and passed_s > 0:
            self.rates.append(max(0, done - self.done) / passed_s)
        self.done = done

    def sparkline(self, width: int) -> str:
        return sparkline(self.rates)[-width:].rjust(width)

    def rate(self, beats: int = 8) -> float:
        latest = list(self.rates)[-beats:]
        return sum(latest) / len(latest) if latest else 0.0


class Screen:
    """For terminals: figures that move, and the latest events below them."""

    def __init__(self, console: Console, *, database: str, seconds: float | None) -> None:
        self._console = console
        self._database = database
        self._seconds = seconds
        self._events: deque[Event] = deque(maxlen=200)
        self._pulses: dict[str, LoopMonitor] = {}
        self._shown_at_s = 0.0
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def tell(self, events: Sequence[Event]) -> None:
        self._events.extend(events)

    def show(self, scene: Scene) -> None:
        for queue in scene.queues:
            pulse = self._pulses.setdefault(queue.name, LoopMonitor())
            pulse.beat(queue.counts.get(State.COMPLETED, 0), scene.at_s - self._shown_at_s)
        self._shown_at_s = scene.at_s
        parts = [self._header(scene), self._figures(scene), self._work(scene), self._log(), self._footer()]
        self._live.update(Group(*parts), refresh=True)

    def _header(self, scene: Scene) -> RenderableType:
        limit = "" if self._seconds is None else f" of {clock(self._seconds)}"
        leader = f"pid {scene.leader.pid}, epoch {scene.leader.epoch}" if scene.leader else "election under way"
        facts = Text.assemble(("PostgreSQL ", "dim"), self._database, ("    leader ", "dim"), leader)
        title = Text.assemble(("awa", "bold cyan"), (" demo ", "bold"), (f"{clock(scene.at_s)}{limit}", "cyan"))
        return Panel(facts, title=title, title_align="left", border_style="cyan", box=box.ROUNDED)

    def _figures(self, scene: Scene) -> RenderableType:
        table = Table(box=None, padding=(0, 0, 0, 2), header_style="dim", show_footer=True, footer_style="bold")
        table.add_column("queue", "all", min_width=8)
        table.add_column("waiting", f"{scene.total(*WAITING):,}", justify="right")
        table.add_column("running", f"{scene.total(State.RUNNING):,}", justify="right")
        table.add_column("retry", f"{scene.total(State.RETRYABLE):,}", justify="right")
        table.add_column("done", f"{scene.total(State.COMPLETED):,}", justify="right", min_width=7)
        table.add_column("jobs/s", f"{scene.rate:,.0f}", justify="right")
        table.add_column("lately", no_wrap=True)
        width = max(0, min(SPARK_WIDTH, self._console.width - FIGURES_WIDTH))
        for queue in scene.queues:
            count, pulse = queue.counts.get, self._pulses[queue.name]
            table.add_row(
                Text(queue.name, style="bold"),
                _number(sum(count(state, 0) for state in WAITING), "yellow"),
                _number(count(State.RUNNING, 0), "cyan"),
                _number(count(State.RETRYABLE, 0), "red"),
                _number(count(State.COMPLETED, 0), "green"),
                f"{pulse.rate():,.1f}" if pulse.rate() < 100 else f"{pulse.rate():,.0f}",
                Text(pulse.sparkline(width), style="green"),
            )
        return table

    def _work(self, scene: Scene) -> RenderableType:
        """The workers, and how far the long jobs have come."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        for worker in [worker for worker in scene.workers if worker.silent_s < GONE_S][-WORK_LINES + 1 :]:
            leads = scene.leader is not None and scene.leader.worker_id == worker.id
            if worker.silent_s > SILENT_S:
                mark, says = Text("  ✗", style="red"), Text(f"silent for {worker.silent_s:.0f} s", style="red")
            else:
                mark, says = (
                    Text("  ●", style="green"),
                    Text(f"{worker.running} running" + (", leads" if leads else "")),
                )
            grid.add_row(mark, f"worker pid {worker.pid}", says)
        reports = [job for job in scene.jobs.values() if job.kind == "long_report" and not job.state.final]
        for job in reports[:1]:
            grid.add_row(Text("  ▸", style="cyan"), name(job), self._progress(scene, job))
        return Padding(grid, (1, 0, 1 + WORK_LINES - grid.row_count, 0))

    def _progress(self, scene: Scene, job: Job) -> RenderableType:
        progress = job.progress or {}
        pid = scene.pid_of(job)
        where = f"on pid {pid}" if job.state is State.RUNNING and pid else job.state
        words = [progress.get("message"), where, f"attempt {max(1, job.attempt)}"]
        says = Text(", ".join(filter(None, words)), style="dim", no_wrap=True, overflow="ellipsis")
        row = Table.grid(padding=(0, 2, 0, 0))
        row.add_row(ProgressBar(total=1.0, completed=float(progress.get("fraction", 0.0)), width=BAR_WIDTH), says)
        return row

    def _log(self) -> RenderableType:
        room = max(LEAST_EVENTS, self._console.height - FIXED_LINES)
        latest = list(self._events)[-room:]
        lines = [
            Text.assemble(
                (f"  {clock(event.at_s)}  ", "dim"),
                (f"{MARKS[event.tone]} {event.text}", STYLES[event.tone]),
                no_wrap=True,
                overflow="ellipsis",
            )
            for event in latest
        ]
        return Padding(Group(*lines), (0, 0, room - len(lines), 0))

    def _footer(self) -> RenderableType:
        return Text("\n  Ctrl-C ends the demo and leaves nothing behind.", style="dim")


def clock(at_s: float) -> str:
    minutes, tenths = divmod(round(max(0.0, at_s) * 10), 600)
    return f"{minutes:02}:{tenths // 10:02}.{tenths % 10}"


def _number(value: int, style: str) -> Text:
    return Text(f"{value:,}", style=style if value else "dim")
