"""Check the promises of awa against the evidence of a run. Each function checks one of them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.evidence import Evidence, Start
from tests.chaos.faults.base import MAX_RECOVERY_S
from tests.chaos.faults.network import HoldClaim
from tests.chaos.producers import Fate
from tests.chaos.recovery import recoveries

FINAL = {"completed", "failed", "cancelled"}
MIN_OUTAGE_S = 2.0  # a shorter one costs no lease
ALWAYS_FAIL = {"fail_always"}
MAY_FAIL = {"once", "twice"}  # if its worker is killed, a job with one attempt has failed


class Finding(NamedTuple):
    """What contradicts a promise, and the jobs that show it."""

    what: str
    jobs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise."""

    promise: str
    what: str
    jobs: tuple[int, ...]


Check = Callable[[Evidence], Iterator[Finding]]
CHECKS: dict[str, Check] = {}


def promise(text: str) -> Callable[[Check], Check]:
    """Register a check under the promise that it is about."""

    def register(check: Check) -> Check:
        CHECKS[text] = check
        return check

    return register


def check(evidence: Evidence) -> list[Violation]:
    """Return all violations."""
    return [Violation(text, *found) for text, function in CHECKS.items() for found in function(evidence)]


@promise("a committed job ends in exactly one final state")
def _committed(evidence: Evidence) -> Iterator[Finding]:
    found = Counter(row.id for row in evidence.rows)
    numbers = {row.n for row in evidence.rows}
    for order in evidence.orders:
        if order.fate is Fate.COMMITTED and order.n not in numbers:
            yield Finding(f"job {order.job} (n={order.n}, {order.kind}) was committed and is gone")
    for row in evidence.rows:
        if row.state not in FINAL:
            yield Finding(f"job {row.id} ({row.kind}) is still {row.state}", (row.id,))
        if found[row.id] > 1:
            yield Finding(f"job {row.id} ({row.kind}) exists {found[row.id]} times", (row.id,))
    for n, times in Counter(row.n for row in evidence.rows if row.n is not None).items():
        if times > 1:
            ids = tuple(row.id for row in evidence.rows if row.n == n)
            yield Finding(f"the job n={n} was enqueued once and exists as {ids}", ids)


@promise("a rolled-back job never exists and never runs")
def _rolled_back(evidence: Evidence) -> Iterator[Finding]:
    gone = {order.n for order in evidence.orders if order.fate is Fate.ROLLED_BACK}
    for row in evidence.rows:
        if row.n in gone:
            yield Finding(f"job {row.id} (n={row.n}) was rolled back and exists", (row.id,))
    for start in evidence.starts:
        if start.n in gone:
            yield Finding(f"job {start.job} (n={start.n}) was rolled back and ran", (start.job,))
    exist = {row.n for row in evidence.rows}
    for order in evidence.orders:
        if order.in_transaction and (order.n in exist) != (order.n in evidence.written_orders):
            other = (
                "its transaction's other row does not" if order.n in exist else "only its transaction's other row does"
            )
            yield Finding(f"n={order.n} ({order.kind}) exists, and {other}")


@promise("a job and its payload are never without each other")
def _payloads(evidence: Evidence) -> Iterator[Finding]:
    for job_id, is_job in evidence.unpaired:
        what = f"job {job_id} has lost its payload" if is_job else f"the payload of job {job_id} has no job"
        yield Finding(what, (job_id,))


@promise("the outcome is the one that the handler decided")
def _states(evidence: Evidence) -> Iterator[Finding]:
    for row in evidence.rows:
        allowed = {"failed"} if row.kind in ALWAYS_FAIL else {"completed"}
        if row.kind in MAY_FAIL:
            allowed.add("failed")
        if row.state in FINAL - allowed:
            yield Finding(f"job {row.id} ({row.kind}) is {row.state}", (row.id,))
        never_ran = row.state == "failed" and not evidence.by_job.get(row.id)
        if never_ran and not _may_be_claimed_without_a_start(evidence, row.created_at, row.finalized_at or 0):
            yield Finding(f"job {row.id} ({row.kind}) failed without ever having run", (row.id,))


def _may_be_claimed_without_a_start(evidence: Evidence, since: float, until: float) -> bool:
    """Return whether a worker was killed or frozen in this time, or the answer to its claim came after the lease."""
    return any(
        fault.name == HoldClaim.name and fault.began < until and fault.ended > since for fault in evidence.faults
    ) or any(
        (life.killed and life.ended is not None and since <= life.ended <= until)
        or any(began < until and ended > since for began, ended in evidence.long_freezes(life.pid))
        for life in evidence.lives
    )


@promise("max_attempts is never exceeded")
def _max_attempts(evidence: Evidence) -> Iterator[Finding]:
    for row in evidence.rows:
        # A snooze or a stop of the worker does not count, and a crash of PostgreSQL can take back a claim.
        counted = [
            start
            for start in evidence.by_job.get(row.id, ())
            if start.how not in ("snoozed", "stopped") and not evidence.may_have_lost_its_claim(start)
        ]
        if len(counted) > row.max_attempts:
            what = f"job {row.id} ({row.kind}) started {len(counted)} times, max_attempts is {row.max_attempts}"
            yield Finding(what, (row.id,))


@promise("an attempt that lost its lease changes nothing")
def _stale_outcomes(evidence: Evidence) -> Iterator[Finding]:
    for row in evidence.rows:
        starts = evidence.by_job.get(row.id, [])
        if row.state != "completed":
            continue
        counted = next((start for start in starts if start.nonce == row.nonce), None)
        if counted is None:
            yield Finding(f"job {row.id} ({row.kind}) completed with the result of no known attempt", (row.id,))
            continue
        newest = max(starts, key=lambda start: (start.lease, start.at))
        if counted is not newest and not evidence.may_have_lost_its_claim(newest):
            what = (
                f"job {row.id} ({row.kind}) completed by lease {counted.lease}, after lease {newest.lease} had started"
            )
            yield Finding(what, (row.id,))


@promise("no handler starts on a lease that has run out")
def _expired_starts(evidence: Evidence) -> Iterator[Finding]:
    for start in evidence.starts:
        if start.lease_age_s > evidence.staleness_s:
            what = f"job {start.job} ({start.kind}) started on a lease of {start.lease_age_s:.1f} s"
            yield Finding(what, (start.job,))
        elif start.looked_after_s is not None and start.row_lease != start.lease:
            until = start.at + start.looked_after_s
            if (
                start.lease_age_s + start.looked_after_s < evidence.staleness_s
                and not evidence.may_have_lost_its_claim(start)
                and not evidence.was_frozen(start, until)
                and not evidence.was_cut_off(start, until, min_s=MIN_OUTAGE_S)
            ):
                what = f"job {start.job} ({start.kind}) started with lease {start.lease}, its row had {start.row_lease}"
                yield Finding(what, (start.job,))


@promise("jobs of an ordered key run one at a time, in order")
def _ordered(evidence: Evidence) -> Iterator[Finding]:
    yield from _overlaps(evidence, "ordered", 1)
    first: defaultdict[str | None, dict[int, Start]] = defaultdict(dict)
    for start in sorted(evidence.starts, key=lambda start: start.at):
        if start.kind == "ordered" and not evidence.may_have_lost_its_claim(start):
            first[start.key].setdefault(start.job, start)
    for key, starts in first.items():
        for earlier, later in pairwise(sorted(starts)):
            if starts[later].at < starts[earlier].at:
                yield Finding(f"key {key}: job {later} started before job {earlier}", (earlier, later))


@promise("a concurrency key never exceeds its limit")
def _keyed(evidence: Evidence) -> Iterator[Finding]:
    yield from _overlaps(evidence, "keyed", evidence.key_limit)


def _overlaps(evidence: Evidence, kind: str, limit: int) -> Iterator[Finding]:
    changes: defaultdict[str | None, list[tuple[float, int, int]]] = defaultdict(list)
    for start in evidence.starts:
        # The claim that a crash took back is still running, and does not count any more.
        if start.kind == kind and not evidence.may_have_lost_its_claim(start):
            for began, ended in evidence.running(start):
                if began < ended:
                    changes[start.key] += [(began, 1, start.job), (ended, -1, start.job)]
    for key, of_key in changes.items():
        running: list[int] = []
        for _, change, job in sorted(of_key, key=lambda entry: entry[:2]):
            if change < 0:
                running.remove(job)
                continue
            running.append(job)
            if len(running) > limit:
                yield Finding(f"key {key}: jobs {running} ran at once, the limit is {limit}", tuple(running))


@promise("finished work does not run again")
def _repeated(evidence: Evidence) -> Iterator[Finding]:
    for row in evidence.rows:
        starts = evidence.by_job.get(row.id, [])
        for start in starts:
            if row.state == "completed" and start.nonce != row.nonce and start.at > (row.finalized_at or 0):
                what = (
                    f"job {row.id} ({row.kind}) started {start.at - (row.finalized_at or 0):.2f} s after it completed"
                )
                yield Finding(what, (row.id,))
        for done, again in pairwise(starts):
            if done.how == "ok" and done.ended is not None and not _may_run_again(evidence, done, again):
                what = (
                    f"job {row.id} ({row.kind}) ran again {again.at - done.ended:.1f} s after its handler had returned"
                )
                yield Finding(what, (row.id,))


def _may_run_again(evidence: Evidence, done: Start, again: Start) -> bool:
    """Return whether the outcome could not be known in time: its worker was soon killed, frozen, or alone cut off."""
    until = min(again.at, evidence.end_of(done) + MAX_RECOVERY_S)  # by then, outcomes are written
    return (
        evidence.may_have_lost_its_claim(done)
        or evidence.was_killed(done, until)
        or evidence.was_frozen(done, until)
        or evidence.was_cut_off(done, until, min_s=MIN_OUTAGE_S)
    )


@promise("one leader per epoch")
def _leaders(evidence: Evidence) -> Iterator[Finding]:
    for epoch, times in Counter(epoch for _, epoch in evidence.elections).items():
        if times > 1:
            names = [name for name, other in evidence.elections if other == epoch]
            yield Finding(f"epoch {epoch} was won by {', '.join(names)}")


@promise("a schedule fires exactly once for each fire time")
def _schedules(evidence: Evidence) -> Iterator[Finding]:
    ticks = [row for row in evidence.rows if row.kind == "tick" and row.fire_time]
    by_time: defaultdict[datetime, list[int]] = defaultdict(list)
    for row in ticks:
        by_time[datetime.fromisoformat(row.fire_time or "")].append(row.id)
    for moment, ids in by_time.items():
        if len(ids) > 1:
            yield Finding(f"{moment} fired as jobs {ids}", tuple(ids))
    for earlier, later in pairwise(sorted(by_time)):
        if later - earlier != timedelta(seconds=1):
            yield Finding(f"no fire between {earlier} and {later}")


@promise("a unique key has one unfinished job")
def _unique(evidence: Evidence) -> Iterator[Finding]:
    finalized = {row.id: row.finalized_at or float("inf") for row in evidence.rows}
    enqueued: defaultdict[str | None, list[tuple[float, float, int]]] = defaultdict(list)
    for order in evidence.orders:
        if order.kind == "only_one" and order.fate is Fate.COMMITTED and order.job is not None:
            enqueued[order.key].append((order.began, order.ended, order.job))
    for key, calls in enqueued.items():
        for first, second in pairwise(sorted(calls)):
            if first[1] < second[0] and second[1] < finalized.get(first[2], 0):
                what = f"key {key}: job {second[2]} was added while job {first[2]} held the key"
                yield Finding(what, (first[2], second[2]))


@promise("everything goes on by itself")
def _recovered(evidence: Evidence) -> Iterator[Finding]:
    for fault in evidence.faults:
        for what in fault.violations:
            yield Finding(f"{fault}: {what}")
    for recovery in recoveries(evidence, 0.0):
        if recovery.jobs_s is None or recovery.jobs_s > MAX_RECOVERY_S:
            after = "never" if recovery.jobs_s is None else f"{recovery.jobs_s:.1f} s later"
            yield Finding(f"{recovery.fault} ({recovery.detail}): jobs completed again {after}")
