"""A fake pooler in front of PostgreSQL: in transaction mode, or in session mode and without notifications."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from tests.proxy import SSL_REQUEST

# Authentication messages that the client must answer: password, MD5, SASL, SASL continue.
AUTHENTICATION_REQUESTS = {3, 5, 10, 11}
IDLE = b"I"
FAKE_KEY_DATA = b"\x7f\0\0\x01secr"  # a backend PID and a cancel key


class Stream(NamedTuple):
    """The connection to a client or to the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self, *, startup: bool = False) -> tuple[bytes, bytes]:
        """Return the type and the body of the next message. A startup message has no type."""
        kind = b"" if startup else await self.reader.readexactly(1)
        length = int.from_bytes(await self.reader.readexactly(4), "big")
        return kind, await self.reader.readexactly(length - 4)

    def write(self, kind: bytes, body: bytes) -> None:
        self.writer.write(kind + (len(body) + 4).to_bytes(4, "big") + body)


@dataclass
class FakePooler:
    """Opens one server session per client. If `shared`, each transaction gets the session that was used last."""

    host: str
    port: int
    shared: bool = True  # transaction mode
    drop_notifications: bool = False
    idle: list[Stream] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    freed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Stream(reader, writer)
        self.streams.append(client)
        try:
            await self._forward(client, await self._connect(client))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # one side has closed its connection
        finally:
            writer.close()

    async def _connect(self, client: Stream) -> Stream:
        """Forward the startup message and the authentication, so that the server decides who may connect."""
        _, startup = await client.read(startup=True)
        if int.from_bytes(startup[:4], "big") == SSL_REQUEST:
            client.writer.write(b"N")
            _, startup = await client.read(startup=True)
        server = Stream(*await asyncio.open_connection(self.host, self.port))
        self.streams.append(server)
        server.write(b"", startup)
        while True:
            kind, body = await server.read()
            # Like a real pooler, report a made-up PID: the next transaction may run in another session.
            client.write(kind, FAKE_KEY_DATA if kind == b"K" else body)
            if kind == b"Z":
                return server
            if kind == b"R" and int.from_bytes(body[:4], "big") in AUTHENTICATION_REQUESTS:
                server.write(*await client.read())

    async def _forward(self, client: Stream, own: Stream) -> None:
        if self.shared:
            await self._release(own)
        answering: asyncio.Task[None] | None = None
        server = own
        while True:
            kind, body = await client.read()
            if kind == b"X":
                return
            if answering is None or answering.done():
                server = await self._acquire() if self.shared else own
                answering = asyncio.create_task(self._forward_answers(server, client))
            server.write(kind, body)

    async def _forward_answers(self, server: Stream, client: Stream) -> None:
        """Forward answers until the transaction ends."""
        while True:
            kind, body = await server.read()
            if kind == b"A" and self.drop_notifications:
                continue
            ended = kind == b"Z" and body == IDLE and self.shared
            if ended:
                await self._release(server)
            client.write(kind, body)
            if ended:
                return

    async def _acquire(self) -> Stream:
        async with self.freed:
            await self.freed.wait_for(lambda: self.idle)
            return self.idle.pop()

    async def _release(self, server: Stream) -> None:
        async with self.freed:
            self.idle.append(server)
            self.freed.notify()


@asynccontextmanager
async def fake_pooler(url: str, *, shared: bool = True, drop_notifications: bool = False) -> AsyncIterator[str]:
    """Start a pooler and yield the URL that leads through it to the same database."""
    parts = urlsplit(url)
    pooler = FakePooler(
        parts.hostname or "127.0.0.1", parts.port or 5432, shared=shared, drop_notifications=drop_notifications
    )
    server = await asyncio.start_server(pooler.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    account, at, _ = parts.netloc.rpartition("@")
    try:
        yield urlunsplit(parts._replace(netloc=f"{account}{at}127.0.0.1:{port}"))
    finally:
        server.close()
        for stream in pooler.streams:
            stream.writer.close()
        await server.wait_closed()
