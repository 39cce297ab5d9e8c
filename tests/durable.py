"""Helpers for tests of durable jobs."""

import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from awa_py import App, Job
from awa_py.errors import JobFailed
from awa_py.store.session import Session
from awa_py.worker.worker import Worker
from tests.support import PATIENCE_S, insert_queue, working


@asynccontextmanager
async def retrying_at_once(app: App, session: Session, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker that promotes jobs itself, on a queue whose jobs are retried without a pause."""
    await insert_queue(session, backoff_enabled=False)
    async with working(app, maintenance=True, **options) as worker:
        yield worker


async def end_of(app: App, job: Job[Any]) -> Job[Any]:
    """Wait until the job has ended, and return it."""
    with suppress(JobFailed):
        await app.result(job.id, timeout=PATIENCE_S)
    return await app.get(job.id)


async def run_to_end(app: App, session: Session, kind: str, args: dict[str, Any] | None = None, **options: Any) -> Job:
    """Enqueue a job, run it with as many attempts as it needs, and return it as it is then."""
    async with app, retrying_at_once(app, session):
        return await end_of(app, await app.enqueue(kind, args or {}, **options))


async def checkpoints(session: Session, job_id: int) -> dict[str, dict[str, Any]]:
    """Return the checkpoints of a job that has not completed, by name, in the order of its calls."""
    rows = await session.connection.fetch("SELECT * FROM awa.checkpoints WHERE job_id = $1 ORDER BY number", job_id)
    return {row["name"]: dict(row) for row in rows}


async def folded(session: Session, job_id: int) -> list[str]:
    """Return the names of the checkpoints in the row of a completed job."""
    text = await session.connection.fetchval("SELECT checkpoints FROM awa.completed WHERE id = $1", job_id)
    return [each["name"] for each in json.loads(text)] if text else []


async def waits(session: Session, job_id: int) -> bool:
    """Return whether the job is suspended."""
    query = "SELECT EXISTS (SELECT FROM awa.scheduled WHERE id = $1 AND state = 'waiting')"
    return bool(await session.connection.fetchval(query, job_id))


class Trace(list[Any]):
    """What happened, in order. Steps append to it."""

    async def step(self, value: Any) -> Any:
        self.append(value)
        return value

    def sync_step(self, value: Any) -> Any:
        self.append(value)
        return value


class FailingOnce:
    """Raises an error at the first call of each name."""

    def __init__(self) -> None:
        self._called: set[str] = set()

    def __call__(self, name: str) -> None:
        if name not in self._called:
            self._called.add(name)
            raise RuntimeError(f"{name} failed once")


def raising(ran: Trace, error: Exception) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return a function that notes its call and raises the error."""

    async def raise_it() -> None:
        ran.append(type(error).__name__)
        raise error

    return raise_it
