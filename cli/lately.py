"""awa stats --since: what ended in the last hours or days, by queue and kind."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from rich.text import Text

from awa_py import durations
from awa_py.observability.latency_histogram import BucketCounts, merge, percentiles
from awa_py.store import metric_buckets
from awa_py.store.metric_buckets import BucketSum

from .environment import Environment
from .output import Row, console, group, lapse, print_json, say, show, sparkline, table

MINUTE = timedelta(minutes=1)
MOST_SLOTS = 40  # of a sparkline


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What ended of a queue, or (kind) of a part of it, within a time."""

    queue: str
    kind: str | None
    completed: int
    failed: int
    cancelled: int
    retried: int
    waits: BucketCounts
    runs: BucketCounts
    slots: BucketCounts

    @classmethod
    def of(cls, sums: Sequence[BucketSum], kind: str | None = None) -> "Figures":
        return cls(
            queue=sums[0].queue,
            kind=kind,
            completed=sum(each.completed for each in sums),
            failed=sum(each.failed for each in sums),
            cancelled=sum(each.cancelled for each in sums),
            retried=sum(each.retried for each in sums),
            waits=merge(each.waits for each in sums),
            runs=merge(each.runs for each in sums),
            slots=merge(each.slots for each in sums),
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


async def show_lately(
    env: Environment, since: timedelta, *, queue: str | None, kind: str | None, as_json: bool
) -> None:
    """What ended since then; as JSON with the minutes themselves."""
    async with env.session() as session:
        now = await session.now()
        first = (now - since).replace(second=0, microsecond=0)
        minutes = math.ceil((now - first) / MINUTE)
        slot_minutes = math.ceil(minutes / MOST_SLOTS)
        sums = await metric_buckets.sum_buckets(session, first, queue=queue, kind=kind, slot_minutes=slot_minutes)
        by_minute = await metric_buckets.list_buckets(session, first, queue=queue, kind=kind) if as_json else []
    seconds = (now - first).total_seconds()
    by_queue = [Figures.of(list(sums)) for _, sums in groupby(sums, lambda each: each.queue)]
    by_kind = [Figures.of([each], each.kind) for each in sums]
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
        lines = list(_lines(by_queue, by_kind))
        slots = math.ceil(minutes / slot_minutes)
        out = console()
        show(
            group(
                table([_figures(each) for each in lines], out.width),
                table(
                    [_course(each, slots, slot_minutes, seconds, out.options.ascii_only) for each in lines], out.width
                ),
                Text(_footer(first, now, slot_minutes)),
            )
        )
    else:
        say(f"nothing that ended in the last {durations.text(since)} is in the roll-up yet; it is written every minute")


def _lines(by_queue: Sequence[Figures], by_kind: Sequence[Figures]) -> Iterator[Figures]:
    """The kinds of each queue, and where there are several, the whole queue first."""
    for whole in by_queue:
        kinds = [each for each in by_kind if each.queue == whole.queue]
        if len(kinds) > 1:
            yield whole
        yield from kinds


def _figures(figures: Figures) -> Row:
    """Narrow enough for eighty columns."""
    return {
        "queue": figures.queue,
        "kind": figures.kind or "(all)",
        "jobs": Text(f"{figures.jobs:,}", justify="right"),
        "failed": _failed(figures),
        "wait 50/95/99%": Text(_spread(figures.waits)),
        "run 50/95/99%": Text(_spread(figures.runs)),
    }


def _course(figures: Figures, slots: int, slot_minutes: int, seconds: float, ascii_only: bool) -> Row:
    jobs = [figures.slots.get(slot, 0) for slot in range(slots)]
    return {
        "queue": figures.queue,
        "kind": figures.kind or "(all)",
        "per s": Text(_rate(figures.jobs / seconds), justify="right"),
        "at most": Text(_rate(max(jobs) / (60 * slot_minutes)), justify="right"),
        "throughput": Text(sparkline(jobs, ascii_only=ascii_only), style="green"),
    }


def _footer(first: datetime, now: datetime, slot_minutes: int) -> str:
    shown = "%H:%M" if now - first < timedelta(days=1) else "%Y-%m-%d %H:%M"
    span = " to ".join(f"{moment.astimezone(UTC):{shown}}" for moment in (first, now))
    bar = "a minute" if slot_minutes == 1 else durations.text(slot_minutes * MINUTE)
    return f"{span} UTC, {bar} a bar; rolled up every minute"


def _failed(figures: Figures) -> Text:
    share = figures.failed / figures.jobs
    words = f"{figures.failed:,} {share:.1%}" if figures.failed else "0"
    return Text(words, style="red" if figures.failed else "", justify="right")


def _spread(cells: BucketCounts) -> str:
    return "/".join("" if seconds is None else lapse(seconds) for seconds in percentiles(cells).values()).strip("/")


def _rate(per_second: float) -> str:
    if per_second >= 100:
        return f"{per_second:,.0f}"
    return f"{per_second:.3g}" if per_second >= 0.1 else f"{per_second:.2f}" if per_second >= 0.01 else "<0.01"
