"""Helpers for tests of durable jobs: run a handler, wait until a job waits, let its time pass, and write to tables."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from awa_py import App, Context, Job, State
from awa_py.connections import Connection
from awa_py.store.session import Session
from tests.support import count, drain, eventually, seconds, working

LONG = "30s"  # more than any of these jobs takes
HOUR_S = 3600.0


async def is_waiting(app: App, job_id: int) -> bool:
    return (await app.get(job_id)).state is State.WAITING


async def all_waiting(app: App, ids: list[int]) -> bool:
    return all([await is_waiting(app, job_id) for job_id in ids])


@asynccontextmanager
async def waiting_job(app: App, kind: str, args: dict[str, Any] | None = None) -> AsyncIterator[int]:
    """Run a worker, and a job until it waits."""
    async with app, working(app, maintenance=True):
        job = await app.enqueue(kind, args)
        await eventually(lambda: is_waiting(app, job.id))
        yield job.id


async def pass_time(app: App, session: Session, passed_s: float = HOUR_S) -> None:
    """Let time pass for the waiting jobs, and run those that are due."""
    await session.connection.execute("UPDATE awa.scheduled SET run_at = run_at - $1::interval", seconds(passed_s))
    await session.connection.execute("UPDATE awa.checkpoints SET until = until - $1::interval", seconds(passed_s))
    await app.maintenance.promote()
    await drain(app)


async def run_handler(app: App, handler: Callable[[Context], Awaitable[Any]]) -> Job:
    """Run a job with this handler until nothing is due. Return it."""

    @app.job
    async def work(ctx: Context) -> Any:
        return await handler(ctx)

    async with app:
        job = await app.enqueue("work")
        await drain(app)
        return await app.get(job.id)


async def retry_now(app: App, job_id: int) -> Job:
    """Run the next attempt of a job."""
    async with app:
        assert await app.retry(job_id)
        await drain(app)
        return await app.get(job_id)


async def create_tables(session: Session) -> None:
    """Create the tables of a user."""
    await session.connection.execute("""
        CREATE TABLE public.booked (account text, amount int);
        CREATE TABLE public.balance (id int PRIMARY KEY, amount int);
        INSERT INTO public.balance VALUES (1, 0), (2, 0)
    """)


async def book(connection: Connection, account: str = "a", amount: int = 5) -> int:
    """Write to a table of the user, in the connection's transaction."""
    await connection.execute("INSERT INTO public.booked VALUES ($1, $2)", account, amount)
    return amount


async def booked(session: Session) -> int:
    """Return how many rows were written."""
    return await count(session.connection, "SELECT count(*) FROM public.booked")
