"""A TCP proxy between a process and PostgreSQL that can cut, refuse, stall, delay, and lose chosen answers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from tests.chaos.server import free_port
from tests.proxy import SSL_REQUEST, StatementReader

READY_FOR_QUERY = b"Z"
EOF = b""
# The first line of our statements is their name. asyncpg sends this COMMIT at the end of `transaction()`.
CLAIMS = frozenset({"claim_jobs", "claim_limited_jobs"})
FINISHES = frozenset({"complete_jobs", "fail_attempts", "snooze_jobs"})
COMMITS = frozenset({"COMMIT;"})

Messages = asyncio.Queue[tuple[float, bytes]]  # with the time of their delivery
Address = Callable[[], tuple[str, int]]
Action = Literal["lose request", "lose answer", "hold answer"]


@dataclass(slots=True, kw_only=True)
class Trap:
    """What happens to the next statement that matches: once, or with `repeat` each time."""

    statements: frozenset[str]
    action: Action
    hold_s: float = 0.0
    repeat: bool = False
    sprung: int = 0
    lost: asyncio.Event = field(default_factory=asyncio.Event)  # set when it has sprung for the first time


class FaultProxy:
    """One listening port that leads to one server. The address is asked for at each connection."""

    def __init__(self, port: int, target: Address) -> None:
        self.port = port
        self._target = target
        self._server: asyncio.Server | None = None
        self._connections: set[_Link] = set()
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.delay_s = 0.0
        self.trap: Trap | None = None

    async def open(self) -> None:
        """Accept connections."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def refuse(self) -> None:
        """Close all connections, and refuse new ones until `open` is called."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self.cut()

    def cut(self) -> None:
        """Reset all connections, in both directions. New ones are accepted."""
        for connection in list(self._connections):
            connection.abort()

    async def close(self) -> None:
        self.refuse()
        self.flowing.set()  # or a stalled connection would never end
        while self._connections:
            self.cut()
            await asyncio.sleep(0.01)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, reader, writer)
        self._connections.add(link)
        try:
            await link.run(*self._target())
        finally:
            link.abort()
            self._connections.discard(link)

    def matching_trap(self, statement: str) -> Trap | None:
        """Return the armed trap if the statement matches it, and disarm it unless it repeats."""
        trap = self.trap
        if trap is None or statement not in trap.statements:
            return None
        if not trap.repeat:
            self.trap = None
        trap.sprung += 1
        return trap


@asynccontextmanager
async def fault_proxy(url: str) -> AsyncIterator[tuple[str, FaultProxy]]:
    """Open a proxy to the server of the URL. Yield the URL that leads through it, and the proxy."""
    parts = urlsplit(url)
    proxy = FaultProxy(free_port(), lambda: (parts.hostname or "127.0.0.1", parts.port or 5432))
    await proxy.open()
    try:
        yield urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{proxy.port}")), proxy
    finally:
        await proxy.close()


class _Link:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writers = [writer]
        self._trap: Trap | None = None  # waits for the end of the answer to a statement that was passed on

    def abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def run(self, host: str, port: int) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(host, port)
        except OSError:
            return
        self._writers.append(server_writer)
        requests: Messages = asyncio.Queue()
        answers: Messages = asyncio.Queue()
        with suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass_eof(self._read_requests(requests), requests))
                tasks.create_task(self._pass_eof(self._read_answers(server_reader, answers), answers))
                tasks.create_task(self._deliver(requests, server_writer))
                tasks.create_task(self._deliver(answers, self._writers[0]))

    async def _pass_eof(self, reading: Coroutine[None, None, None], queue: Messages) -> None:
        """Close the other side's connection after everything that was sent before."""
        try:
            await reading
        except asyncio.IncompleteReadError:
            queue.put_nowait((time.monotonic() + self._proxy.delay_s, EOF))

    async def _read_requests(self, queue: Messages) -> None:
        client = StatementReader()
        while True:
            message, statement = await client.read(self._reader)
            if int.from_bytes(message[4:8], "big") == SSL_REQUEST and not client.parameters:
                self._writers[0].write(b"N")  # the answers of the server are then messages from the first byte on
                continue
            if statement is not None and (trap := self._proxy.matching_trap(statement)):
                if trap.action == "lose request":
                    trap.lost.set()
                    raise ConnectionResetError
                self._trap = trap
            queue.put_nowait((time.monotonic() + self._proxy.delay_s, message))

    async def _read_answers(self, reader: asyncio.StreamReader, queue: Messages) -> None:
        while True:
            head = await reader.readexactly(5)
            message = head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)
            deliver_at = time.monotonic() + self._proxy.delay_s
            trap = self._trap
            if trap is not None:
                if trap.action == "lose answer":
                    if head[:1] == READY_FOR_QUERY:  # PostgreSQL has committed
                        trap.lost.set()
                        raise ConnectionResetError
                    continue
                deliver_at += trap.hold_s
                trap.lost.set()
                if head[:1] == READY_FOR_QUERY:
                    self._trap = None
            queue.put_nowait((deliver_at, message))

    async def _deliver(self, queue: Messages, writer: asyncio.StreamWriter) -> None:
        while True:
            deliver_at, message = await queue.get()
            if (wait_s := deliver_at - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            await self._proxy.flowing.wait()
            if writer.is_closing():
                raise ConnectionResetError
            if message == EOF:
                writer.write_eof()
                return
            writer.write(message)
            if queue.empty():
                await writer.drain()
