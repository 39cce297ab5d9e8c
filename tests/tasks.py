"""The leader's tasks by name."""

from awa_py import Settings
from awa_py.maintenance.rescue import Watch
from awa_py.maintenance.task import Task
from awa_py.maintenance.tasks import all_tasks
from awa_py.observability.metrics import Metrics


def leader_task(name: str, settings: Settings | None = None, *, watch: Watch | None = None) -> Task:
    (found,) = (task for task in all_tasks(settings or Settings(), [], Metrics(), watch=watch) if task.name == name)
    return found
