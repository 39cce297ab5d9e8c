"""The table of maintenance tasks."""

import pytest

from awa_py import Settings
from awa_py.maintenance.task import run_once
from awa_py.maintenance.tasks import all_tasks
from awa_py.observability.metrics import Metrics
from awa_py.store.session import Session

pytestmark = pytest.mark.integration


async def test_every_task_changes_nothing_in_an_empty_database(session: Session) -> None:
    for task in all_tasks(Settings(), [], Metrics()):
        assert (await run_once(task, session)).rows_changed == 0


async def test_tasks_have_the_intervals_of_the_settings() -> None:  # A1
    intervals = {task.name: task.interval.total_seconds() for task in all_tasks(Settings(), [], Metrics())}
    assert {name: intervals[name] for name in ("promote", "rescue", "deadlines", "cleanup", "cron", "cron-sync")} == {
        "promote": 5,
        "rescue": 30,
        "deadlines": 30,
        "cleanup": 60,
        "cron": 1,
        "cron-sync": 60,
    }
    assert intervals["check"] <= 5
