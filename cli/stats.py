"""awa stats: the jobs by state and queue now, or with --since the jobs that ended in the last hours or days."""

import asyncio
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Annotated, Any, NoReturn

import typer
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from awa_py import durations
from awa_py.model.job import State
from awa_py.observability.latency_histogram import BucketCounts, merge, percentiles
from awa_py.store import election, jobs, metric_buckets, queues
from awa_py.store.election import Leader
from awa_py.store.jobs import JobCounts
from awa_py.store.metric_buckets import BucketSum
from awa_py.store.queues import QueueRow
from awa_py.store.session import Session
from awa_py.store.workers import WorkerRow, list_workers
from awa_py.text import count

from .environment import Environment
from .leader import NO_LEADER
from .output import (
    Row,
    ago,
    approximate,
    console,
    group,
    plain_text,
    print_json,
    say,
    show,
    sparkline,
    state_text,
    table,
)
from .parsing import JsonOption, parse_duration
from .queue_output import queue_rows

MINUTE = timedelta(minutes=1)
REFRESH_INTERVAL_S = 1.0
MAX_BARS = 40  # of a sparkline


def stats(
    env: Environment,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second until Ctrl-C.")] = False,
    since: Annotated[
        timedelta | None,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="Show counts, rates and latencies of the jobs that ended in this period, e.g. 1h or 7d.",
        ),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", metavar="NAME", help="With --since: only this queue.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", "-k", metavar="NAME", help="With --since: only this kind.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Count jobs by state and queue, or show recent throughput with --since."""
    if since is not None:
        if watch:
            raise typer.BadParameter("--watch cannot be used with --since: its counts change once a minute")
        if since < MINUTE:
            raise typer.BadParameter("--since must be at least 1m: ended jobs are counted per minute")
        env.run(_show_throughput(env, since, queue=queue, kind=kind, as_json=as_json))
        return
    if queue is not None or kind is not None:
        raise typer.BadParameter("--queue and --kind can only be used with --since")
    with suppress(KeyboardInterrupt) if watch else nullcontext():  # Ctrl-C is the normal end of --watch
        env.run(_show_overview(env, watch=watch, as_json=as_json))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The state of all queues at one moment."""

    now: datetime
    jobs: JobCounts
    queues: list[QueueRow]
    workers: list[WorkerRow]
    leader: Leader | None

    @classmethod
    async def read(cls, session: Session, *, staleness: timedelta) -> "Overview":
        return cls(
            now=await session.now(),
            jobs=await jobs.count_jobs(session, window=MINUTE),
            queues=await queues.list_queues(session, staleness=staleness),
            workers=await list_workers(session, staleness=staleness),
            leader=await election.get_leader(session),
        )

    def as_object(self) -> dict[str, Any]:
        return {
            "states": {state: self.jobs.by_state.get(state, 0) for state in State},
            "last_minute": {"completed": self.jobs.completed, "failed_or_cancelled": self.jobs.dead},
            "queues": self.queues,
            "workers": sum(worker.alive for worker in self.workers),
            "leader": self.leader,
        }

    def render(self, width: int) -> RenderableType:
        alive = [worker for worker in self.workers if worker.alive]
        slots = sum(worker.concurrency for worker in alive)
        leader = self.leader
        lines = [
            f"last minute: {self.jobs.completed:,} completed, {self.jobs.dead:,} failed or cancelled",
            f"workers: {len(alive)} with {count(slots, 'slot')}",
            f"leader: {leader.hostname}:{leader.pid}, elected {ago(leader.elected_at, self.now)}"
            if leader
            else NO_LEADER,
        ]
        states: list[Row] = [{"state": state_text(state), "jobs": self.jobs.by_state.get(state, 0)} for state in State]
        parts: list[RenderableType] = [table(states, width)]
        if self.queues:
            parts.append(table(queue_rows(self.queues, self.now), width))
        return group(*parts, plain_text("\n".join(lines)))


async def _show_overview(env: Environment, *, watch: bool, as_json: bool) -> None:
    staleness = env.settings.heartbeat_staleness
    async with env.session() as session:
        if watch:
            await _watch(session, staleness, as_json=as_json)
        overview = await Overview.read(session, staleness=staleness)
    if as_json:
        print_json(overview.as_object())
    else:
        show(overview.render(console().width))


async def _watch(session: Session, staleness: timedelta, *, as_json: bool) -> NoReturn:
    """Redraw the overview in place every second, or print one line of JSON every second."""
    out = console()
    with nullcontext() if as_json else Live(console=out, auto_refresh=False) as live:
        while True:
            overview = await Overview.read(session, staleness=staleness)
            if live is None:
                print_json(overview.as_object(), compact=True)
                sys.stdout.flush()
            else:
                live.update(overview.render(out.width), refresh=True)
            await asyncio.sleep(REFRESH_INTERVAL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The jobs of a queue, or of one kind in it, that ended in a period."""

    queue: str
    kind: str | None
    completed: int
    failed: int
    cancelled: int
    retried: int
    waits: BucketCounts
    runs: BucketCounts
    jobs_by_bar: BucketCounts

    @classmethod
    def of(cls, sums: Sequence[BucketSum], kind: str | None = None) -> "Throughput":
        return cls(
            queue=sums[0].queue,
            kind=kind,
            completed=sum(each.completed for each in sums),
            failed=sum(each.failed for each in sums),
            cancelled=sum(each.cancelled for each in sums),
            retried=sum(each.retried for each in sums),
            waits=merge(each.waits for each in sums),
            runs=merge(each.runs for each in sums),
            jobs_by_bar=merge(each.slots for each in sums),
        )

    @property
    def jobs(self) -> int:
        return self.completed + self.failed + self.cancelled

    def as_object(self, seconds: float) -> dict[str, Any]:
        return {
            "queue": self.queue,
            **({} if self.kind is None else {"kind": self.kind}),
            "jobs": self.jobs,
            "jobs_per_s": self.jobs / seconds,
            "completed": self.completed,
            "failed": self.failed,
            "failed_share": self.failed / self.jobs,
            "cancelled": self.cancelled,
            "retried": self.retried,
            "wait_s": percentiles(self.waits),
            "run_s": percentiles(self.runs),
        }


async def _show_throughput(
    env: Environment, since: timedelta, *, queue: str | None, kind: str | None, as_json: bool
) -> None:
    """Show what ended in the period; JSON includes the rows of each minute."""
    async with env.session() as session:
        now = await session.now()
        first = (now - since).replace(second=0, microsecond=0)
        minutes = math.ceil((now - first) / MINUTE)
        bar_minutes = math.ceil(minutes / MAX_BARS)
        sums = await metric_buckets.sum_buckets(session, first, queue=queue, kind=kind, slot_minutes=bar_minutes)
        by_minute = await metric_buckets.list_buckets(session, first, queue=queue, kind=kind) if as_json else []
    seconds = (now - first).total_seconds()
    by_queue = [Throughput.of(list(sums)) for _, sums in groupby(sums, lambda each: each.queue)]
    by_kind = [Throughput.of([each], each.kind) for each in sums]
    if as_json:
        print_json(
            {
                "since": first,
                "until": now,
                "queues": [each.as_object(seconds) for each in by_queue],
                "kinds": [each.as_object(seconds) for each in by_kind],
                "buckets": by_minute,
            }
        )
    elif sums:
        lines = list(_queues_and_kinds(by_queue, by_kind))
        bars = math.ceil(minutes / bar_minutes)
        out = console()
        show(
            group(
                table([_counts_row(each) for each in lines], out.width),
                table(
                    [_rate_row(each, bars, bar_minutes, seconds, out.options.ascii_only) for each in lines], out.width
                ),
                Text(_footer(first, now, bar_minutes)),
            )
        )
    else:
        period = durations.text(since)
        say(f"no ended job of the last {period} has been rolled up; the leader does this every minute")


def _queues_and_kinds(by_queue: Sequence[Throughput], by_kind: Sequence[Throughput]) -> Iterator[Throughput]:
    """Yield the kinds of each queue; if there are several, the whole queue first."""
    for whole in by_queue:
        kinds = [each for each in by_kind if each.queue == whole.queue]
        if len(kinds) > 1:
            yield whole
        yield from kinds


def _counts_row(each: Throughput) -> Row:
    """Return a row that fits 80 columns."""
    return {
        "queue": each.queue,
        "kind": each.kind or "(all)",
        "jobs": Text(f"{each.jobs:,}", justify="right"),
        "failed": _failed(each),
        "wait p50/95/99": Text(_latencies(each.waits)),
        "run p50/95/99": Text(_latencies(each.runs)),
    }


def _rate_row(each: Throughput, bars: int, bar_minutes: int, seconds: float, ascii_only: bool) -> Row:
    jobs = [each.jobs_by_bar.get(bar, 0) for bar in range(bars)]
    return {
        "queue": each.queue,
        "kind": each.kind or "(all)",
        "mean/s": Text(_rate(each.jobs / seconds), justify="right"),
        "peak/s": Text(_rate(max(jobs) / (60 * bar_minutes)), justify="right"),
        "throughput": Text(sparkline(jobs, ascii_only=ascii_only), style="green"),
    }


def _footer(first: datetime, now: datetime, bar_minutes: int) -> str:
    time_format = "%H:%M" if now - first < timedelta(days=1) else "%Y-%m-%d %H:%M"
    period = " to ".join(f"{moment.astimezone(UTC):{time_format}}" for moment in (first, now))
    return f"{period} UTC, {durations.text(bar_minutes * MINUTE)} per bar; rolled up every minute"


def _failed(each: Throughput) -> Text:
    text = f"{each.failed:,} {each.failed / each.jobs:.1%}" if each.failed else "0"
    return Text(text, style="red" if each.failed else "", justify="right")


def _latencies(cells: BucketCounts) -> str:
    found = percentiles(cells).values()
    return "/".join("" if seconds is None else approximate(seconds) for seconds in found).strip("/")


def _rate(per_second: float) -> str:
    if per_second >= 100:
        return f"{per_second:,.0f}"
    return f"{per_second:.3g}" if per_second >= 0.1 else f"{per_second:.2f}" if per_second >= 0.01 else "<0.01"
