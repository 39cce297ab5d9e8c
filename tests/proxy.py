"""A TCP proxy to PostgreSQL that counts the statements that pass through it."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

SSL_REQUEST = 80877103
CANCEL_REQUEST = 80877102


class StatementReader:
    """Reads the messages of one client, and recognizes the statements that it runs."""

    def __init__(self) -> None:
        self.parameters: dict[str, str] = {}  # of the startup message
        self._started = False
        self._texts: dict[bytes, str] = {}  # by name of the prepared statement
        self._portal = "?"

    @property
    def application(self) -> str:
        return self.parameters.get("application_name", "?")

    async def read(self, reader: asyncio.StreamReader) -> tuple[bytes, str | None]:
        """Return the next message, and the first line of the statement that it runs, if it runs one."""
        kind = await reader.readexactly(1) if self._started else b""
        head = await reader.readexactly(4)
        body = await reader.readexactly(int.from_bytes(head, "big") - 4)
        statement = None
        if not self._started:
            self._read_startup(body)
        elif kind == b"P":  # Parse: name and statement
            name, text = body.split(b"\0")[:2]
            self._texts[name] = first_line(text)
        elif kind == b"B":  # Bind: portal and statement name
            self._portal = self._texts.get(body.split(b"\0")[1], "?")
        elif kind == b"E":  # Execute
            statement = self._portal
        elif kind == b"Q":
            statement = first_line(body.rstrip(b"\0"))
        return kind + head + body, statement

    def _read_startup(self, body: bytes) -> None:
        if int.from_bytes(body[:4], "big") not in (SSL_REQUEST, CANCEL_REQUEST):
            self._started = True
            words = body[4:].decode().split("\0")
            self.parameters = dict(zip(words[::2], words[1::2], strict=False))


class CountingProxy:
    """Counts statements by application name (e.g. `awa claims`) and by statement name."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._stopped: set[asyncio.StreamWriter] = set()
        self.statements: Counter[tuple[str, str]] = Counter()
        self.settings: dict[str, dict[str, str]] = {}  # startup parameters by application name

    @property
    def total(self) -> int:
        return self.statements.total()

    def count(self, connection: str, statement: str | None = None) -> int:
        """Return how many statements came from connections of that name; with `statement`, only those."""
        return sum(
            number
            for (name, line), number in self.statements.items()
            if name == f"awa {connection}" and statement in (None, line)
        )

    def __str__(self) -> str:
        return "\n".join(f"{number:6} {name}: {line}" for (name, line), number in self.statements.most_common())

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward everything in both directions until one side closes."""
        server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
        writers = (writer, server_writer)
        self._writers.update(writers)
        directions = [
            asyncio.create_task(self._forward_and_count(reader, server_writer)),
            asyncio.create_task(self._forward(server_reader, writer)),
        ]
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for each in writers:
            each.close()
        await asyncio.gather(*directions, return_exceptions=True)
        self._writers.difference_update(writers)

    def stop_forwarding(self) -> None:
        """Discard all further data of the existing connections without closing them."""
        self._stopped |= self._writers

    async def close_connections(self) -> None:
        """Close the remaining connections."""
        while self._writers:
            for writer in self._writers:
                writer.close()
            await asyncio.sleep(0.01)

    async def _forward_and_count(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = StatementReader()
        settings: dict[str, str] = {}
        while True:
            message, statement = await client.read(reader)
            if client.parameters and not settings:
                settings = self.settings[client.application] = client.parameters
            if statement is not None:
                self.statements[client.application, statement] += 1
            if message[:1] == b"Q":
                settings |= re.findall(r"set_config\('(\w+)', '(\w+)'", message[5:].decode())
            await self._write(writer, message)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._write(writer, data)

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if writer not in self._stopped:
            writer.write(data)
            await writer.drain()


def first_line(text: bytes) -> str:
    """Return the statement's first line, which names it if it is a comment."""
    return text.decode().strip().split("\n")[0].removeprefix("-- ")


@asynccontextmanager
async def counting_proxy(url: str) -> AsyncIterator[tuple[str, CountingProxy]]:
    """Yield a URL that leads to the database through the proxy, and the proxy."""
    parts = urlsplit(url)
    proxy = CountingProxy(parts.hostname or "127.0.0.1", parts.port or 5432)
    server = await asyncio.start_server(proxy.connect, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    account, at, _ = parts.netloc.rpartition("@")
    try:
        yield urlunsplit(parts._replace(netloc=f"{account}{at}127.0.0.1:{port}")), proxy
    finally:
        server.close()
        await proxy.close_connections()
        await server.wait_closed()
