"""awa as `awa worker` runs it, with its default settings apart from the number of slots."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from awa_cli.environment import tune_garbage_collector

import awa_py as awa
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from tests.bench.durable.contender import Contender, Send
from tests.bench.durable.costs import start_measuring
from tests.bench.durable.kit import TIMEOUT_S, main
from tests.bench.peers.kit.database import connected, settle, wait_until_finished

SLOTS = 500


class Awa(Contender):
    UNFINISHED = """
        SELECT EXISTS (SELECT FROM awa.ready) OR EXISTS (SELECT FROM awa.running) OR EXISTS (SELECT FROM awa.scheduled)
    """
    WAITING = "SELECT count(*) FROM awa.jobs WHERE state = 'waiting'"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._app = app = awa.App(url)
        self._waiting: list[int] = []  # the ids of the jobs that wait for signals
        stopwatch = self.stopwatch

        async def add(number: int) -> int:
            return number + 1

        @app.job
        async def steps(ctx: awa.Context, count: int) -> int:
            stopwatch.start()
            number = 0
            for _ in range(count):
                number = await ctx.step("add", add, number)
            stopwatch.end()
            return number

        @app.job
        async def child(number: int) -> int:
            return number

        @app.job
        async def parent(ctx: awa.Context, children: int) -> int:
            return sum(await ctx.map(child, range(children)))

        @app.job
        async def waiting(ctx: awa.Context) -> Any:
            signal = await ctx.wait_signal("go")
            return signal and signal.data

        @app.job
        async def plain(number: int) -> None:
            stopwatch.start()

        @app.job
        async def with_context(ctx: awa.Context, number: int) -> None:
            stopwatch.start()

        self._steps, self._parent, self._waiting_job = steps, parent, waiting
        self.plain, self.with_context = plain, with_context

    async def install(self) -> None:
        await migrations.migrate(Database(self.url, Schema()))

    @asynccontextmanager
    async def worker(self, workload: str, jobs: int) -> AsyncIterator[None]:
        async with self._app as app:
            worker = app.worker(["default"], concurrency=SLOTS)
            working = asyncio.create_task(worker.run())
            try:
                yield
            finally:
                worker.stop()
                await working

    async def enqueue_steps(self, jobs: int, steps: int) -> None:
        async with self._app as app:
            await app.enqueue_many([self._steps.new(steps) for _ in range(jobs)])

    async def enqueue_parent(self, children: int) -> None:
        await self._parent.enqueue(children)

    async def enqueue_waiting(self, jobs: int) -> None:
        enqueued = await self._app.enqueue_many([self._waiting_job.new() for _ in range(jobs)])
        self._waiting = [job.id for job in enqueued]

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[Send]:
        async def send(number: int) -> None:
            await self._app.signal(self._waiting[number], "go", "x")

        yield send

    async def enqueue_plain(self, jobs: int, *, context: bool) -> None:
        job: Any = self.with_context if context else self.plain
        async with self._app as app:
            await app.enqueue_many([job.new(number) for number in range(jobs)])


async def context_cost(contender: Awa, *, jobs: int, context: bool) -> dict[str, Any]:
    """Measure jobs that do nothing, with and without a Context."""
    await contender.install()
    await contender.enqueue_plain(jobs, context=context)
    async with connected(contender.url) as connection:
        await settle(connection, vacuum=True)
        costs = await start_measuring(connection)
        async with contender.worker("context", jobs):
            ended_ns = await wait_until_finished(connection, contender.UNFINISHED, TIMEOUT_S)
            await costs.stop()
    return {"jobs_per_s": jobs / ((ended_ns - contender.stopwatch.started_ns) / 1e9), **costs.each(jobs)}


if __name__ == "__main__":
    tune_garbage_collector()
    main(Awa, {"context": context_cost})
