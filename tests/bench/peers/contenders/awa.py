"""awa with the same kit as its peers, for latencies, which depend on how they are measured."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import awa_py as awa
from awa_py.db import migrations
from awa_py.db.database import Database
from awa_py.db.schema import Schema
from tests.bench.peers.kit.contender import Client, Contender, OnStart
from tests.bench.peers.kit.main import main


class AwaClient:
    """Enqueue with the app."""

    def __init__(self, app: awa.App) -> None:
        async def noop(n: int) -> None: ...

        self.app = app
        self.job = app.job(noop)

    async def enqueue(self, number: int) -> Any:
        return await self.job.enqueue(n=number)

    async def enqueue_many(self, numbers: Sequence[int]) -> Any:
        return await self.app.enqueue_many([self.job.new(n=number) for number in numbers])


class Awa(Contender):
    UNFINISHED = "SELECT EXISTS (SELECT FROM awa.ready) OR EXISTS (SELECT FROM awa.running)"

    async def install(self) -> None:
        await migrations.migrate(Database(self.url, Schema()))

    @asynccontextmanager
    async def client(self, connections: int) -> AsyncIterator[Client]:
        async with awa.App(self.url) as app:
            yield AwaClient(app)

    @asynccontextmanager
    async def worker(self, on_start: OnStart) -> AsyncIterator[None]:
        async def noop(n: int) -> None:
            on_start(n)

        app = awa.App(self.url)
        app.job(noop)
        async with app:
            worker = app.worker(["default"])
            working = asyncio.create_task(worker.run())
            try:
                yield
            finally:
                worker.stop()
                await working


if __name__ == "__main__":
    main(Awa)
