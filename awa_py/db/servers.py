"""Open connections to the servers that a URL names, and keep away from a former primary.

A URL may name several hosts. Each has its own timeout, so a silent host does not keep the others from being asked. The
server that was chosen last is asked first. If it does not answer, or is not what it was (restarted, promoted), all
hosts are asked, and the primary with the newest timeline is chosen.
"""

import asyncio
import inspect
import io
import logging
import socket
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import asyncpg
from asyncpg import connect_utils

from awa_py.connections import DedicatedConnection
from awa_py.db.errors import CONNECTION_LOST, CONNECTION_REFUSED
from awa_py.errors import StaleServer
from awa_py.text import describe

logger = logging.getLogger("awa.db")

CONNECT_TIMEOUT_S = 10.0  # for each host
OTHER_HOSTS_S = 2.0  # how long one host waits for another: before it is asked, and to say that it is newer

# The client notices a server that vanished. Without this, a statement would wait many minutes for its answer.
CLIENT_KEEPALIVE_OPTIONS = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 15_000}

# The current WAL file's name begins with the timeline. pg_control_checkpoint() would lag behind a promotion by minutes.
READ_SERVER = """
    SELECT (pg_catalog.pg_control_system()).system_identifier,
           CASE WHEN pg_catalog.pg_is_in_recovery() THEN NULL
                ELSE pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8) END,
           pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time())
"""

STANDBY_ATTRIBUTES = ("standby", "prefer-standby", "read-only")  # of target_session_attrs

Address: TypeAlias = str | tuple[str, int]  # the path of a unix socket, or host and port


@dataclass(frozen=True, slots=True)
class Server:
    """A running PostgreSQL. Every promotion of a standby begins a new, higher timeline."""

    system_id: str  # the same for a primary and its standbys
    timeline: int | None  # None: a standby
    started_at: str

    def is_newer_than(self, other: "Server") -> bool:
        """Return True if this is the primary and the other one a standby or a former primary of the same cluster."""
        if self.timeline is None or self.system_id != other.system_id:
            return False
        return other.timeline is None or self.timeline > other.timeline


@dataclass(frozen=True, slots=True)
class Answer:
    """A connection that a server accepted. `server` is None if the login may not ask which one it is."""

    connection: DedicatedConnection
    address: Address
    server: Server | None

    @property
    def is_standby(self) -> bool:
        return self.server is not None and self.server.timeline is None


class Timelines:
    """The newest timeline of each cluster that this process has seen. Several threads use it."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._open: WeakKeyDictionary[DedicatedConnection, tuple[Server, asyncio.AbstractEventLoop]] = (
            WeakKeyDictionary()
        )
        self._lock = threading.Lock()

    def check(self, connection: DedicatedConnection, server: Server, address: Address) -> None:
        """Remember the server's timeline. Raise StaleServer if a newer one was seen.

        If it is a newer one, end the connections to the former primary: it may have been cut off from others only, and
        what is written there is lost.
        """
        if server.timeline is None:
            return
        with self._lock:
            newest = max(self._newest.get(server.system_id, 0), server.timeline)
            self._newest[server.system_id] = newest
            self._open[connection] = server, asyncio.get_running_loop()
            former = [
                (older, loop) for older, (of_server, loop) in self._open.items() if server.is_newer_than(of_server)
            ]
        for older, loop in former:
            with suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(older.terminate)
        if server.timeline < newest:
            raise StaleServer(
                f"the server at {_text(address)} is a former primary: it is on timeline {server.timeline}, and a "
                f"standby was promoted to timeline {newest} since. Stop it, or make it a standby (pg_rewind). If it "
                "was restored on purpose, restart this process"
            )


class Servers:
    """The servers that a URL names."""

    def __init__(self, url: str, timelines: Timelines | None = None) -> None:
        self._url = url
        self._timelines = timelines or Timelines()
        self._last: tuple[Address, Server] | None = None  # the primary that was chosen last

    async def connect(
        self, application_name: str, *, settings: Mapping[str, str] | None = None, **options: Any
    ) -> DedicatedConnection:
        """Open a connection. `settings` are sent with the startup message; `options` are arguments of asyncpg."""
        options["server_settings"] = {"application_name": application_name, **(settings or {})}
        addresses, wants_standby = _parse(self._url)
        if len(addresses) == 1:
            return (await self._open(addresses[0], options)).connection
        answer = await self._choose(addresses, options, wants_standby=wants_standby)
        if answer.server is not None and answer.server.timeline is not None:
            if self._last is not None and self._last[0] != answer.address:
                logger.info("the server is now %s (before: %s)", _text(answer.address), _text(self._last[0]))
            self._last = answer.address, answer.server
        return answer.connection

    async def _open(self, address: Address, options: dict[str, Any]) -> Answer:
        """Connect to one host. Raise StaleServer if it is a former primary."""
        host, port = (address, _socket_port(address)) if isinstance(address, str) else address
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await asyncpg.connect(
                    self._url, host=host, port=port, timeout=CONNECT_TIMEOUT_S, **options
                )
                try:
                    server = await _read_server(connection)
                    if server is not None:
                        self._timelines.check(connection, server, address)
                except BaseException:
                    connection.terminate()
                    raise
        except TimeoutError:
            raise TimeoutError(f"no answer within {CONNECT_TIMEOUT_S:g} s") from None
        _enable_tcp_keepalive(connection)
        return Answer(connection, address, server)

    async def _choose(self, addresses: Sequence[Address], options: dict[str, Any], *, wants_standby: bool) -> Answer:
        """Connect to the server that was chosen last, if it is unchanged. Else ask all, and choose the newest."""
        tasks: dict[Address, asyncio.Task[Answer]] = {}
        chosen: Answer | None = None
        try:
            last = self._last
            if last is not None and last[0] in addresses:
                task = tasks[last[0]] = asyncio.create_task(self._open(last[0], options))
                await asyncio.wait([task], timeout=OTHER_HOSTS_S)
                if _succeeded(task) and (task.result().address, task.result().server) == last:
                    chosen = task.result()
                    return chosen
            for address in addresses:
                if address not in tasks:
                    tasks[address] = asyncio.create_task(self._open(address, options))
            await _wait_for_answers(tasks.values(), wants_standby=wants_standby)
            answers = [tasks[address].result() for address in addresses if _succeeded(tasks[address])]
            if not answers:
                raise _combined({address: tasks[address].exception() for address in addresses})
            chosen = _best(answers, wants_standby=wants_standby)
            for task in tasks.values():
                if task.done() and isinstance(stale := task.exception(), StaleServer):
                    logger.warning("%s", stale)
            return chosen
        finally:
            for task in tasks.values():
                task.cancel()
            for result in await asyncio.gather(*tasks.values(), return_exceptions=True):
                if isinstance(result, Answer) and result is not chosen:
                    result.connection.terminate()


def _parse(url: str) -> tuple[list[Address], bool]:
    """Return the addresses, as asyncpg finds them, and whether a standby is wanted.

    asyncpg looks at the URL, the service file and variables such as PGHOST. It has no public function for this. What
    does not concern the addresses is given, so that it is not looked for twice.
    """
    given = {"dsn": url, "password": "", "ssl": False, "direct_tls": False}
    parse = connect_utils._parse_connect_dsn_and_args  # type: ignore[attr-defined]
    addresses, parameters = parse(**{name: given.get(name) for name in inspect.signature(parse).parameters})
    return list(dict.fromkeys(addresses)), parameters.target_session_attrs in STANDBY_ATTRIBUTES


async def _read_server(connection: DedicatedConnection) -> Server | None:
    output = io.BytesIO()
    # COPY is one simple query: it works through any pooler and leaves no prepared statement behind.
    with suppress(asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedFunctionError, asyncpg.FeatureNotSupportedError):
        await connection.copy_from_query(READ_SERVER, output=output)
    if not output.getvalue():
        return None
    system_id, timeline, started_at = output.getvalue().decode().rstrip("\n").split("\t")
    return Server(system_id, None if timeline == r"\N" else int(timeline, 16), started_at)


async def _wait_for_answers(tasks: Collection[asyncio.Task[Answer]], *, wants_standby: bool) -> None:
    """Wait until every host answered or failed. Once one that fits has answered, do not wait long for the others."""
    pending = set(tasks)
    timeout_s: float | None = None
    while pending:
        done, pending = await asyncio.wait(pending, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return
        if any(_succeeded(task) and (wants_standby or not task.result().is_standby) for task in done):
            timeout_s = OTHER_HOSTS_S


def _succeeded(task: asyncio.Task[Answer]) -> bool:
    return task.done() and task.exception() is None


def _best(answers: Sequence[Answer], *, wants_standby: bool) -> Answer:
    """Return the newest primary. Of equals, and of servers that cannot be compared, the first one is taken."""
    if wants_standby:
        return next((answer for answer in answers if answer.is_standby), answers[0])
    best = answers[0]
    for answer in answers[1:]:
        if answer.server is not None and best.server is not None and answer.server.is_newer_than(best.server):
            best = answer
    return best


def _combined(errors: Mapping[Address, BaseException | None]) -> BaseException:
    """Return one error for all hosts. It counts as a refusal only if no host may accept the connection later."""
    found = [error for error in errors.values() if error is not None]
    unexpected = [error for error in found if not isinstance(error, (*CONNECTION_LOST, *CONNECTION_REFUSED))]
    if unexpected or all(isinstance(error, CONNECTION_REFUSED) for error in found):
        return (unexpected or found)[0]
    reasons = [f"{_text(address)}: {describe(error)}" for address, error in errors.items() if error is not None]
    is_stale = any(isinstance(error, StaleServer) for error in found)
    return (StaleServer if is_stale else ConnectionError)(f"no host accepts the connection ({'; '.join(reasons)})")


def _socket_port(path: str) -> int | None:
    """Return the port in a unix socket's name. The password file has an entry for it."""
    suffix = path.rpartition(".")[2]
    return int(suffix) if suffix.isdecimal() else None


def _text(address: Address) -> str:
    return address if isinstance(address, str) else f"{address[0]}:{address[1]}"


def _enable_tcp_keepalive(connection: DedicatedConnection) -> None:
    transport: asyncio.Transport = connection._transport  # type: ignore[attr-defined]  # asyncpg has no public access
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in CLIENT_KEEPALIVE_OPTIONS.items():
        if hasattr(socket, name):  # not every platform has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
