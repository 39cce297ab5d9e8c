"""A TCP proxy to PostgreSQL that counts the statements that pass through it."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

SSL_REQUEST = 80877103


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
        name = "?"
        texts: dict[bytes, str] = {}  # by name of the prepared statement
        portal = "?"
        started = False
        while True:
            kind = await reader.readexactly(1) if started else b""
            head = await reader.readexactly(4)
            body = await reader.readexactly(int.from_bytes(head, "big") - 4)
            if not started and int.from_bytes(body[:4], "big") != SSL_REQUEST:
                started = True
                parameters = body[4:].decode().split("\0")
                settings = dict(zip(parameters[::2], parameters[1::2], strict=False))
                name = settings["application_name"]
                self.settings[name] = settings
            elif kind == b"P":  # Parse: name and statement
                statement, text = body.split(b"\0")[:2]
                texts[statement] = first_line(text)
            elif kind == b"B":  # Bind: portal and statement name
                portal = texts.get(body.split(b"\0")[1], "?")
            elif kind == b"E":  # Execute
                self.statements[name, portal] += 1
            elif kind == b"Q":
                self.statements[name, first_line(body.rstrip(b"\0"))] += 1
                self.settings[name] |= re.findall(r"set_config\('(\w+)', '(\w+)'", body.decode())
            await self._write(writer, kind + head + body)

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
