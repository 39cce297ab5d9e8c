"""Checks of the processes: the leader, the workers, overdue maintenance, and jobs that were not woken."""

from datetime import timedelta

from awa_py.doctor.context import CheckContext
from awa_py.doctor.finding import Findings
from awa_py.store import backlog, election
from awa_py.store.workers import list_heartbeats
from awa_py.text import count, relative_time, short_duration

MAX_WORKERS_READ = 10_000
MAX_RUNNING_READ = 1_000
MAX_WAITING_READ = 1_000
MAX_IDS_SHOWN = 5
GRACE = timedelta(seconds=60)
CHILDREN_GRACE = timedelta(minutes=3)
LONG_WAIT = timedelta(days=30)
START_LEADER = "Start `awa worker` or `awa maintenance`."
SEE_LEADER = (
    "see the cause in its log (`awa leader` shows where it runs), or restart it so that another process takes over."
)


async def check_leader(context: CheckContext, findings: Findings) -> None:
    """Check that a process holds the leader's lock."""
    leader = await election.get_leader(context.session)
    if leader is None:
        says = "There is no leader: no job is promoted, rescued, scheduled or cleaned up."
        for holder in await election.list_lock_holders(context.session, silence=context.settings.leader_timeout):
            findings.problem("lock", f"{says} No process can lead: {holder} holds the leader's lock.", holder.remedy)
        if not findings.found:
            findings.problem(None, says, START_LEADER)
        return
    now = await context.session.now()
    findings.ok(f"{leader.hostname}:{leader.pid}, elected {relative_time(leader.elected_at - now)}")


async def check_workers(context: CheckContext, findings: Findings) -> None:
    """Check that the listed workers send heartbeats."""
    staleness = context.settings.heartbeat_staleness
    workers = await list_heartbeats(context.session, limit=MAX_WORKERS_READ)
    silent = [worker for worker in workers if worker.silent_s > staleness.total_seconds()]
    for worker in silent:
        findings.warning(
            f"worker {worker.hostname}:{worker.pid}",
            f"No heartbeat for {short_duration(timedelta(seconds=worker.silent_s))}: it is dead, frozen or cut off.",
            "Check the process on that host. The leader rescues its jobs, and removes its row after "
            f"{short_duration(10 * staleness)} without a heartbeat.",
        )
    if len(silent) == len(workers):
        findings.warning(None, "No worker is alive.", "Start `awa worker`.")
    findings.ok(f"{len(workers)} alive")


async def check_overdue(context: CheckContext, findings: Findings) -> None:
    """Check that due jobs are promoted, deadlines enforced and stale jobs rescued."""
    settings = context.settings
    overdue = await backlog.get_overdue_work(
        context.session,
        look_at=MAX_RUNNING_READ,
        staleness=settings.heartbeat_staleness,
        grace=GRACE + settings.heartbeat_rescue_interval,
    )
    if _is_late(overdue.promotion_s, settings.promote_interval):
        findings.problem(
            "promotion",
            f"A scheduled job was due {_duration(overdue.promotion_s)} ago and is not available yet.",
            f"{START_LEADER} If there is a leader: {SEE_LEADER}",
        )
    if _is_late(overdue.deadline_s, settings.deadline_rescue_interval):
        findings.problem(
            "deadlines",
            f"A running job is past its deadline by {_duration(overdue.deadline_s)} and was not stopped.",
            f"{START_LEADER} If there is a leader: {SEE_LEADER}",
        )
    if overdue.stale_jobs:
        findings.problem(
            "rescue",
            f"{count(overdue.stale_jobs, 'running job')} lost its worker and was not rescued."
            if overdue.stale_jobs == 1
            else f"{count(overdue.stale_jobs, 'running job')} lost their workers and were not rescued.",
            f"{START_LEADER} If there is a leader: {SEE_LEADER}",
        )
    findings.ok("nothing is overdue")


async def check_waits(context: CheckContext, findings: Findings) -> None:
    """Check that durable jobs go on when what they wait for has happened."""
    stuck = await backlog.get_stuck_waits(
        context.session, look_at=MAX_WAITING_READ, grace=CHILDREN_GRACE, long=LONG_WAIT
    )
    if stuck.parents:
        shown = ", ".join(map(str, stuck.parents[:MAX_IDS_SHOWN]))
        more = ", …" if len(stuck.parents) > MAX_IDS_SHOWN else ""
        wait = "waits" if len(stuck.parents) == 1 else "wait"
        findings.problem(
            "children",
            f"{count(len(stuck.parents), 'job')} still {wait} for children that ended more than "
            f"{short_duration(CHILDREN_GRACE)} ago: {shown}{more}.",
            f"{START_LEADER} If there is a leader: {SEE_LEADER}",
        )
    if stuck.long_waits:
        have = "has" if stuck.long_waits == 1 else "have"
        findings.notice(
            "signals",
            f"{count(stuck.long_waits, 'job')} {have} waited for a signal for more than {short_duration(LONG_WAIT)}, "
            "without a timeout.",
            "`awa job list --state waiting` shows waiting jobs, `awa job explain ID` the signal. Send it with "
            "`awa job signal`, or `awa job cancel` the job; give wait_signal() a timeout.",
        )
    findings.ok("no job waits for something that has happened")


def _is_late(seconds: float | None, interval: timedelta) -> bool:
    return seconds is not None and seconds > (GRACE + interval).total_seconds()


def _duration(seconds: float | None) -> str:
    return short_duration(timedelta(seconds=seconds or 0.0))
