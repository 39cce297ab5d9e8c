"""A pooler in front of PostgreSQL, as far as a client can tell: in transaction mode, or in session mode and deaf."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from tests.wire import SSL_REQUEST

ASKS_FOR_AN_ANSWER = {3, 5, 10, 11}  # of an authentication message: password, MD5, SASL, SASL goes on
IDLE = b"I"
MADE_UP = b"\x7f\0\0\x01secr"  # a process id and a key to cancel by


class Way(NamedTuple):
    """A connection, from either side."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self, *, greeting: bool = False) -> tuple[bytes, bytes]:
        """The next message: its kind and its body. A client's first one has no kind."""
        kind = b"" if greeting else await self.reader.readexactly(1)
        length = int.from_bytes(await self.reader.readexactly(4), "big")
        return kind, await self.reader.readexactly(length - 4)

    def write(self, kind: bytes, body: bytes) -> None:
        self.writer.write(kind + (len(body) + 4).to_bytes(4, "big") + body)


@dataclass
class Pooler:
    """Each client brings a session of PostgreSQL; `shared`, a transaction gets the one that was used last."""

    host: str
    port: int
    shared: bool = True  # transaction mode
    deaf: bool = False  # notifications are swallowed
    idle: list[Way] = field(default_factory=list)
    ways: list[Way] = field(default_factory=list)
    freed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Way(reader, writer)
        self.ways.append(client)
        try:
            await self._work(client, await self._greet(client))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # one side is gone
        finally:
            writer.close()

    async def _greet(self, client: Way) -> Way:
        """Passes the greeting and the password on, so that the server decides who comes in."""
        _, greeting = await client.read(greeting=True)
        if int.from_bytes(greeting[:4], "big") == SSL_REQUEST:
            client.writer.write(b"N")
            _, greeting = await client.read(greeting=True)
        server = Way(*await asyncio.open_connection(self.host, self.port))
        self.ways.append(server)
        server.write(b"", greeting)
        while True:
            kind, body = await server.read()
            # It introduces itself, and not the session, which may be another one the next time.
            client.write(kind, MADE_UP if kind == b"K" else body)
            if kind == b"Z":
                return server
            if kind == b"R" and int.from_bytes(body[:4], "big") in ASKS_FOR_AN_ANSWER:
                server.write(*await client.read())

    async def _work(self, client: Way, own: Way) -> None:
        if self.shared:
            await self._release(own)
        answers: asyncio.Task[None] | None = None
        lent = own
        while True:
            kind, body = await client.read()
            if kind == b"X":
                return
            if answers is None or answers.done():
                lent = await self._borrow() if self.shared else own
                answers = asyncio.create_task(self._answer(lent, client))
            lent.write(kind, body)

    async def _answer(self, server: Way, client: Way) -> None:
        """Passes answers on until the transaction is over."""
        while True:
            kind, body = await server.read()
            if kind == b"A" and self.deaf:
                continue
            over = kind == b"Z" and body == IDLE and self.shared
            if over:
                await self._release(server)
            client.write(kind, body)
            if over:
                return

    async def _borrow(self) -> Way:
        async with self.freed:
            await self.freed.wait_for(lambda: self.idle)
            return self.idle.pop()

    async def _release(self, server: Way) -> None:
        async with self.freed:
            self.idle.append(server)
            self.freed.notify()


@asynccontextmanager
async def pooled(url: str, *, shared: bool = True, deaf: bool = False) -> AsyncIterator[str]:
    """An address behind which a pooler leads to that database."""
    parts = urlsplit(url)
    pooler = Pooler(parts.hostname or "127.0.0.1", parts.port or 5432, shared=shared, deaf=deaf)
    server = await asyncio.start_server(pooler.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    account, at, _ = parts.netloc.rpartition("@")
    try:
        yield urlunsplit(parts._replace(netloc=f"{account}{at}127.0.0.1:{port}"))
    finally:
        server.close()
        for way in pooler.ways:
            way.writer.close()
        await server.wait_closed()
