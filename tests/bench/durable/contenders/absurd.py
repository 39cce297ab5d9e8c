"""Absurd with its asynchronous client. A client has one connection, so several work side by side in one process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import absurdctl  # type: ignore[import-not-found]
from absurd_sdk import AsyncAbsurd  # type: ignore[import-not-found]

from tests.bench.durable.contender import Contender, Send
from tests.bench.durable.kit import main
from tests.bench.peers.kit.database import connected

CLIENTS = 8
CHILDREN_CLIENTS = 4
CONCURRENCY = 10
POLL_INTERVAL_S = 0.02  # the default is 0.25 s
QUEUE = "default"
CHILDREN = "children"  # a job cannot wait for a job of its own queue


class Absurd(Contender):
    UNFINISHED = """
        SELECT EXISTS (SELECT FROM absurd.t_default WHERE state NOT IN ('completed', 'failed', 'cancelled'))
    """
    WAITING = "SELECT count(*) FROM absurd.t_default WHERE state = 'sleeping'"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._client = AsyncAbsurd(url, queue_name=QUEUE)

    async def install(self) -> None:
        async with connected(self.url) as connection:
            await connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
            for queue in (QUEUE, CHILDREN):
                await connection.execute("SELECT absurd.create_queue($1)", queue)

    @asynccontextmanager
    async def worker(self, workload: str, jobs: int) -> AsyncIterator[None]:
        # A client that finds nothing polls, which slows the others down.
        clients = 1 if workload in ("alone", "children") else CLIENTS
        queues = [QUEUE] * clients + ([CHILDREN] * CHILDREN_CLIENTS if workload == "children" else [])
        async with AsyncExitStack() as stack:
            for queue in queues:
                await stack.enter_async_context(self._work(queue))
            yield

    @asynccontextmanager
    async def _work(self, queue: str) -> AsyncIterator[None]:
        client = AsyncAbsurd(self.url, queue_name=queue)
        handlers = {"child": self._child} if queue == CHILDREN else self._handlers
        for name, handler in handlers.items():
            client.register_task(name=name, queue=queue)(handler)
        working = asyncio.create_task(client.start_worker(concurrency=CONCURRENCY, poll_interval=POLL_INTERVAL_S))
        try:
            yield
        finally:
            client.stop_worker()
            await working
            await client.close()

    @property
    def _handlers(self) -> dict[str, Any]:
        return {"steps": self._steps, "parent": self._parent, "waiting": self._waiting}

    async def _steps(self, params: dict[str, int], ctx: Any) -> int:
        self.stopwatch.start()
        number = 0

        async def add() -> int:
            return number + 1

        for _ in range(params["steps"]):
            number = await ctx.step("add", add)
        self.stopwatch.end()
        return number

    async def _child(self, params: dict[str, int], ctx: Any) -> int:
        return params["number"]

    async def _parent(self, params: dict[str, int], ctx: Any) -> int:
        spawned = [
            await self._client.spawn("child", {"number": number}, queue=CHILDREN)
            for number in range(params["children"])
        ]
        results = [await ctx.await_task_result(child["task_id"], queue_name=CHILDREN) for child in spawned]
        return sum(result.result for result in results)

    async def _waiting(self, params: dict[str, int], ctx: Any) -> Any:
        return await ctx.await_event(f"go {params['number']}")

    async def enqueue_steps(self, jobs: int, steps: int) -> None:
        for _ in range(jobs):
            await self._client.spawn("steps", {"steps": steps}, queue=QUEUE)

    async def enqueue_parent(self, children: int) -> None:
        await self._client.spawn("parent", {"children": children}, queue=QUEUE)

    async def enqueue_waiting(self, jobs: int) -> None:
        for number in range(jobs):
            await self._client.spawn("waiting", {"number": number}, queue=QUEUE)

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[Send]:
        client = AsyncAbsurd(self.url, queue_name=QUEUE)

        async def send(number: int) -> None:
            await client.emit_event(f"go {number}", "x", queue_name=QUEUE)

        yield send
        await client.close()


if __name__ == "__main__":
    main(Absurd)
