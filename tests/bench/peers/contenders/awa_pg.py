"""awa-pg with its queue storage: one logical queue in four partitions, and COPY for bulk.

Each of the four physical queues has a dispatcher; its documentation recommends this to drain one hot queue.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import awa  # type: ignore[import-not-found]

from tests.bench.peers.kit.contender import Client, Contender, OnStart
from tests.bench.peers.kit.main import main
from tests.bench.peers.kit.shape import Shape

QUEUE = awa.PartitionedQueue("default", 4)
WORKERS = 512
CONNECTIONS = 10


@dataclass
class Noop:
    n: int
    text: str = ""


class AwaPgClient:
    def __init__(self, client: Any, shape: Shape) -> None:
        self._client = client
        self._arguments = shape.arguments()
        self._unique = {"unique_opts": {"by_args": True}} if shape.unique else {}
        self._routes = (
            [QUEUE.route_by_index(partition) for partition in range(4)]
            if shape.queues == 1
            else [{"queue": name} for name in shape.queue_names()]
        )

    async def enqueue(self, number: int) -> Any:
        route = self._routes[number % len(self._routes)]
        return await self._client.insert(Noop(**self._arguments(number)), **route, **self._unique)

    async def enqueue_many(self, numbers: Sequence[int]) -> Any:
        jobs = [Noop(**self._arguments(number)) for number in numbers]
        routes = [self._routes[number % len(self._routes)] for number in numbers]
        return await self._client.enqueue_many_copy(jobs, opts=routes)


class AwaPg(Contender):
    # Its view awa.jobs would show this too, but takes seconds. A segment of the ring is removed as a whole, with both.
    UNFINISHED = """
        SELECT (SELECT count(*) FROM awa.ready_entries)
             > (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)
             + (SELECT count(*) FROM awa.done_entries)
    """

    async def install(self) -> None:
        client = awa.AsyncClient(self.url)
        await client.migrate()
        await client.install_queue_storage()
        await client.close()

    @asynccontextmanager
    async def client(self, connections: int) -> AsyncIterator[Client]:
        client = awa.AsyncClient(self.url, max_connections=connections)
        yield AwaPgClient(client, self.shape)
        await client.close()

    @asynccontextmanager
    async def worker(self, on_start: OnStart) -> AsyncIterator[None]:
        shape = self.shape
        slots = shape.concurrency // 4 if shape.concurrency else WORKERS
        if shape.queues == 1:
            first, queues = (
                QUEUE.physical_queues[0],
                QUEUE.queue_configs(
                    max_workers_per_partition=slots, claimers=1, claim_batch_size=512, deadline_duration_ms=0
                ),
            )
        else:
            first, queues = "default", [(name, slots) for name in shape.queue_names()]
        client = awa.AsyncClient(self.url, max_connections=CONNECTIONS)
        client.task(Noop, queue=first)(shape.handler(on_start, lambda job: job.args.n))
        await client.start(
            queues,
            poll_interval_ms=50,
            queue_storage_queue_rotate_interval_ms=10000,
            queue_storage_lease_rotate_interval_ms=5000,
        )
        try:
            yield
        finally:
            await client.shutdown(timeout_ms=2000)
            await asyncio.sleep(0)


if __name__ == "__main__":
    main(AwaPg)
