"""What goes over the wire: a door to PostgreSQL that counts the statements that pass through it."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

SSL_REQUEST = 80877103


class Wire:
    """Counts by the name that a connection gave itself (e.g. `awa claims`), and by the statement's name."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._ends: set[asyncio.StreamWriter] = set()
        self._swallowed: set[asyncio.StreamWriter] = set()
        self.statements: Counter[tuple[str, str]] = Counter()
        self.settings: dict[str, dict[str, str]] = {}  # what a connection of that name asked for when it began

    @property
    def total(self) -> int:
        return self.statements.total()

    def of(self, connection: str, statement: str | None = None) -> int:
        """Return how many statements came from connections of that name; with `statement`, only those."""
        return sum(
            number
            for (name, line), number in self.statements.items()
            if name == f"awa {connection}" and statement in (None, line)
        )

    def __str__(self) -> str:
        return "\n".join(f"{number:6} {name}: {line}" for (name, line), number in self.statements.most_common())

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes everything on, both ways, until one side ends."""
        their_reader, their_writer = await asyncio.open_connection(self._host, self._port)
        ends = (writer, their_writer)
        self._ends.update(ends)
        ways = [
            asyncio.create_task(self._pass_on_and_count(reader, their_writer)),
            asyncio.create_task(self._pass_on(their_reader, writer)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.close()
        await asyncio.gather(*ways, return_exceptions=True)
        self._ends.difference_update(ends)

    def swallow(self) -> None:
        """From now on nothing passes over the connections that are there, and none of them ends."""
        self._swallowed |= self._ends

    async def hang_up(self) -> None:
        """Ends what is still connected."""
        while self._ends:
            for end in self._ends:
                end.close()
            await asyncio.sleep(0.01)

    async def _pass_on_and_count(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = "?"
        texts: dict[bytes, str] = {}  # of prepared statements
        portal = "?"
        greeted = False
        while True:
            kind = await reader.readexactly(1) if greeted else b""
            head = await reader.readexactly(4)
            body = await reader.readexactly(int.from_bytes(head, "big") - 4)
            if not greeted and int.from_bytes(body[:4], "big") != SSL_REQUEST:
                greeted = True
                words = body[4:].decode().split("\0")
                settings = dict(zip(words[::2], words[1::2], strict=False))
                name = settings["application_name"]
                self.settings[name] = settings
            elif kind == b"P":  # Parse: its name, and the statement
                statement, text = body.split(b"\0")[:2]
                texts[statement] = first_line(text)
            elif kind == b"B":  # Bind: the portal, and the statement's name
                portal = texts.get(body.split(b"\0")[1], "?")
            elif kind == b"E":  # Execute
                self.statements[name, portal] += 1
            elif kind == b"Q":
                self.statements[name, first_line(body.rstrip(b"\0"))] += 1
                self.settings[name] |= re.findall(r"set_config\('(\w+)', '(\w+)'", body.decode())
            await self._write(writer, kind + head + body)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._write(writer, data)

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if writer not in self._swallowed:
            writer.write(data)
            await writer.drain()


def first_line(text: bytes) -> str:
    """What the statement says that it does, or its first words."""
    return text.decode().strip().split("\n")[0].removeprefix("-- ")


@asynccontextmanager
async def counted(url: str) -> AsyncIterator[tuple[str, Wire]]:
    """An address that leads to that database, and what goes there."""
    parts = urlsplit(url)
    wire = Wire(parts.hostname or "127.0.0.1", parts.port or 5432)
    server = await asyncio.start_server(wire.connect, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    account, at, _ = parts.netloc.rpartition("@")
    try:
        yield urlunsplit(parts._replace(netloc=f"{account}{at}127.0.0.1:{port}")), wire
    finally:
        server.close()
        await wire.hang_up()
        await server.wait_closed()
