"""The table of maintenance tasks."""

from collections.abc import Sequence
from functools import partial

from awa_py.db.listener import Topic
from awa_py.maintenance.aging import EVERY, Aging
from awa_py.maintenance.cleanup import Cleanup
from awa_py.maintenance.cron import evaluate, sync
from awa_py.maintenance.promote import Promotion
from awa_py.maintenance.rebalance import Rebalance
from awa_py.maintenance.rescue import GONE, rescue_gone, rescue_overdue, rescue_stale
from awa_py.maintenance.rollup import RollUp
from awa_py.maintenance.task import Task, TaskResult
from awa_py.maintenance.unserved import Unserved
from awa_py.model.registry import CronDefinition
from awa_py.observability.metrics import Metrics
from awa_py.settings import Settings
from awa_py.store.session import Session


def all_tasks(settings: Settings, schedules: Sequence[CronDefinition], metrics: Metrics) -> list[Task]:
    """Everything that a leader does, in the order in which it begins."""
    cleanup = Cleanup(
        completed_retention=settings.completed_retention,
        failed_retention=settings.failed_retention,
        events_retention=settings.events_retention,
        rollup_retention=settings.rollup_retention,
        staleness=settings.heartbeat_staleness,
    )
    unserved = Unserved(staleness=settings.heartbeat_staleness, metrics=metrics)
    return [
        Task(name="check", interval=settings.leader_check_interval, run=_check, only_if_idle=True),
        Task(
            name="promote", interval=settings.promote_interval, run=Promotion().run, wake_topics=frozenset({Topic.DUE})
        ),
        Task(
            name="rescue",
            interval=settings.heartbeat_rescue_interval,
            run=partial(rescue_stale, staleness=settings.heartbeat_staleness, metrics=metrics),
        ),
        Task(name="gone", interval=GONE, run=partial(rescue_gone, metrics=metrics)),
        Task(
            name="deadlines",
            interval=settings.deadline_rescue_interval,
            run=partial(rescue_overdue, metrics=metrics),
        ),
        Task(name="cron-sync", interval=settings.cron_sync_interval, run=partial(sync, definitions=schedules)),
        Task(name="cron", interval=settings.cron_eval_interval, run=evaluate, wake_topics=frozenset({Topic.CRON})),
        Task(name="cleanup", interval=settings.cleanup_interval, run=cleanup.run),
        Task(name="aging", interval=EVERY, run=Aging(age=settings.aging_interval).run),
        Task(name="unserved", interval=settings.unserved_interval, run=unserved.run),
        Task(
            name="rebalance",
            interval=settings.rebalance_interval,
            run=Rebalance().run,
            wake_topics=frozenset({Topic.QUEUES}),
        ),
        Task(name="rollup", interval=settings.rollup_interval, run=RollUp(settings.rollup_retention).run),
    ]


async def _check(session: Session) -> TaskResult:
    """Shows PostgreSQL that the leader lives, and the leader that PostgreSQL does."""
    await session.connection.execute("SELECT 1")
    return TaskResult()
