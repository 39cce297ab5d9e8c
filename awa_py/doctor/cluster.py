"""The processes: somebody leads, workers live, and what the leader has to do is done."""

from datetime import timedelta

from awa_py.doctor.context import CheckContext
from awa_py.doctor.finding import Findings
from awa_py.store import backlog, election
from awa_py.text import count, relative_time, short_duration

WORKERS = 10_000
RUNNING_LOOKED_AT = 1_000
GRACE = timedelta(seconds=60)
START = "Start `awa worker` or `awa maintenance`."
SEE_LEADER = "See the leader's log (`awa leader` says where it runs) for what stops it; restarting it elects another."


async def check_leader(context: CheckContext, notes: Findings) -> None:
    """Somebody holds the leader's lock."""
    leader = await election.get_leader(context.session)
    if leader is None:
        notes.problem(None, "Nobody leads: nothing is promoted, rescued, scheduled or cleaned up.", START)
        return
    now = await context.session.now()
    notes.ok(f"{leader.hostname}:{leader.pid}, elected {relative_time(leader.elected_at - now)}")


async def check_workers(context: CheckContext, notes: Findings) -> None:
    """The workers of the registry beat."""
    staleness = context.settings.heartbeat_staleness
    workers = await backlog.list_heartbeats(context.session, limit=WORKERS)
    silent = [worker for worker in workers if worker.silent_s > staleness.total_seconds()]
    for worker in silent:
        notes.warning(
            f"worker {worker.hostname}:{worker.pid}",
            f"No heartbeat for {short_duration(timedelta(seconds=worker.silent_s))}: it is dead, frozen or cut off.",
            "Look for it on that host. Its jobs are given to others, and its row goes after "
            f"{short_duration(10 * staleness)} of silence.",
        )
    if len(silent) == len(workers):
        notes.warning(None, "No worker is alive.", "Start `awa worker`.")
    notes.ok(f"{len(workers)} alive")


async def check_overdue(context: CheckContext, notes: Findings) -> None:
    """Due jobs are promoted, deadlines enforced, abandoned jobs rescued."""
    settings = context.settings
    overdue = await backlog.get_overdue_work(
        context.session,
        look_at=RUNNING_LOOKED_AT,
        staleness=settings.heartbeat_staleness,
        grace=GRACE + settings.heartbeat_rescue_interval,
    )
    if _late(overdue.promotion_s, settings.promote_interval):
        notes.problem(
            "promotion",
            f"A scheduled job was due {_long(overdue.promotion_s)} ago, and nobody made it available.",
            f"{START} If somebody leads: {SEE_LEADER}",
        )
    if _late(overdue.deadline_s, settings.deadline_rescue_interval):
        notes.problem(
            "deadlines",
            f"A running job has been past its deadline for {_long(overdue.deadline_s)}, and nobody ended it.",
            f"{START} If somebody leads: {SEE_LEADER}",
        )
    if overdue.stale_jobs:
        notes.problem(
            "rescue",
            f"{count(overdue.stale_jobs, 'running job')} lost its worker, and nobody rescued it."
            if overdue.stale_jobs == 1
            else f"{count(overdue.stale_jobs, 'running job')} lost their workers, and nobody rescued them.",
            f"{START} If somebody leads: {SEE_LEADER}",
        )
    notes.ok("nothing is overdue")


def _late(seconds: float | None, interval: timedelta) -> bool:
    return seconds is not None and seconds > (GRACE + interval).total_seconds()


def _long(seconds: float | None) -> str:
    return short_duration(timedelta(seconds=seconds or 0.0))
