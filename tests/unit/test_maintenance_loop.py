"""The leader's loop with tasks that only count."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from unittest.mock import Mock

from awa_py.maintenance.loop import MaintenanceLoop
from awa_py.maintenance.task import Task, TaskResult
from awa_py.observability.metrics import Metrics
from awa_py.store.session import Session

SESSION = Mock(spec=Session)


async def run_until(loop: MaintenanceLoop, done: Callable[[], bool]) -> None:
    running = asyncio.create_task(loop.run(SESSION))
    try:
        async with asyncio.timeout(10):
            while not done():
                await asyncio.sleep(0)
    finally:
        running.cancel()


async def test_task_with_an_endless_backlog_takes_turns_with_the_others() -> None:
    runs: Counter[str] = Counter()

    def counting(name: str, *, has_more: bool) -> Task:
        async def run(_: Session) -> TaskResult:
            runs[name] += 1
            await asyncio.sleep(0.001)
            return TaskResult(has_more=has_more)

        return Task(name=name, interval=timedelta(milliseconds=10), run=run)

    tasks = [counting("endless", has_more=True), counting("periodic", has_more=False)]
    loop = MaintenanceLoop(tasks, Metrics(), batch_timeout_s=5)
    await run_until(loop, lambda: runs["periodic"] >= 5)
    assert runs["endless"] >= 5


async def test_two_tasks_with_endless_backlogs_alternate() -> None:
    order: list[str] = []

    def endless(name: str) -> Task:
        async def run(_: Session) -> TaskResult:
            order.append(name)
            await asyncio.sleep(0)
            return TaskResult(has_more=True)

        return Task(name=name, interval=timedelta(seconds=1), run=run)

    loop = MaintenanceLoop([endless("a"), endless("b")], Metrics(), batch_timeout_s=5)
    await run_until(loop, lambda: len(order) >= 10)
    assert abs(order.count("a") - order.count("b")) <= 1
