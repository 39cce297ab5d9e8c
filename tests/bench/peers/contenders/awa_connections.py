"""awa with a connection for each producer, as in programs that enqueue in their own transactions.

There is no group commit of several producers.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import awa_py as awa
from tests.bench.peers.contenders.awa import Awa, AwaClient
from tests.bench.peers.kit.contender import Client
from tests.bench.peers.kit.database import connected
from tests.bench.peers.kit.main import main


class ConnectionsClient(AwaClient):
    def __init__(self, app: awa.App, connections: list[Any]) -> None:
        super().__init__(app)
        self._free = connections

    async def enqueue(self, number: int) -> Any:
        connection = self._free.pop()
        try:
            return await self.job.options(connection=connection).enqueue(n=number)
        finally:
            self._free.append(connection)


class AwaConnections(Awa):
    @asynccontextmanager
    async def client(self, connections: int) -> AsyncIterator[Client]:
        async with AsyncExitStack() as stack:
            own_connections = [await stack.enter_async_context(connected(self.url)) for _ in range(connections)]
            app = await stack.enter_async_context(awa.App(self.url))
            yield ConnectionsClient(app, own_connections)


if __name__ == "__main__":
    main(AwaConnections)
