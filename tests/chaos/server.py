"""The PostgreSQL servers of a run: a primary and, for a failover, a standby that takes its place."""

import asyncio
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import psutil

from awa_py.connections import DedicatedConnection
from awa_py.embedded import EmbeddedPostgres, ShutdownMode, find_binaries
from awa_py.embedded.account import server_account
from awa_py.embedded.binaries import binaries_for
from awa_py.embedded.cluster import PORTS, Access, Home, is_port_free
from awa_py.embedded.lock import open_lock

# With fsync, so that a crash is an honest one. The WAL writer's delay is the default: it bounds how long a claim, which
# commits asynchronously, can be lost.
SETTINGS = {
    "fsync": "on",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "128MB",
    "min_wal_size": "32MB",
    "wal_keep_size": "64MB",
    "hot_standby": "on",
    "wal_retrieve_retry_interval": "200ms",
    "log_min_messages": "warning",
}
DISK_BYTES = 640 * 1024**2


class Site:
    """A place for a server: its directory and its port. The server may be missing."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.server: EmbeddedPostgres | None = None

    @property
    def postgres(self) -> EmbeddedPostgres:
        assert self.server is not None, f"there is no server at site {self.name}"
        return self.server

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port; a port that nobody listens on if there is no server."""
        if self.server is None:
            return "127.0.0.1", 1
        return "127.0.0.1", urlsplit(self.server.url).port or 0

    def start(self) -> None:
        self.server = EmbeddedPostgres(self.directory, settings=SETTINGS)
        self.server.start()

    def start_copy_of(self, primary: "Site") -> None:
        """Start a standby of a running primary."""
        home, source = Home(self.directory), primary.postgres
        home.path.mkdir(mode=0o711)
        account = server_account(home.data)
        binaries = binaries_for(account, find_binaries())
        home.data.mkdir(mode=0o700)
        if account.switch:
            os.chown(home.data, account.uid, account.gid)
        copied = account.run([binaries / "pg_basebackup", "-d", source.url, "-D", home.data, "-R", "-c", "fast"])
        if copied.returncode:
            raise RuntimeError(f"pg_basebackup failed: {copied.stdout}")
        Access(port=free_port(), password=urlsplit(source.url).password or "").write(home)
        os.close(open_lock(home.users_lock))
        self.start()

    def remove(self) -> None:
        """End the server, however it is, and delete its files."""
        if self.server is not None:
            for process in self.processes():  # also frozen ones, which must not run for another moment
                with suppress(psutil.Error):
                    process.kill()
            self.server.stop_server("kill")
            self.server.stop()
            self.server = None
        shutil.rmtree(self.directory, ignore_errors=True)

    def processes(self) -> list[psutil.Process]:
        pid = self.postgres.server_pid
        if not pid:
            return []
        postmaster = psutil.Process(pid)
        return [postmaster, *postmaster.children(recursive=True)]

    def freeze(self) -> None:
        """Stop all processes of the server, as if its host were frozen."""
        self._send_to_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let all processes of a frozen server continue."""
        self._send_to_all(signal.SIGCONT)

    def _send_to_all(self, number: signal.Signals) -> None:
        for process in self.processes():
            with suppress(psutil.Error):
                process.send_signal(number)

    async def stop(self, mode: ShutdownMode) -> None:
        await asyncio.to_thread(self.postgres.stop_server, mode)

    async def start_again(self) -> None:
        await asyncio.to_thread(self.postgres.start_server)

    @asynccontextmanager
    async def connection(self, name: str = "chaos") -> AsyncIterator[DedicatedConnection]:
        """Open a connection of the test itself, past the proxies."""
        connection: DedicatedConnection = await asyncpg.connect(
            self.postgres.url, timeout=10, server_settings={"application_name": name}
        )
        try:
            yield connection
        finally:
            connection.terminate()

    async def wait_until_ready(self, timeout_s: float = 60) -> None:
        """Wait until the server accepts connections, e.g. after it crashed by itself."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                async with self.connection() as connection:
                    await connection.execute("SELECT 1")
                return
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)


class SmallDisk:
    """A file system of limited size for the servers, if this process may mount one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._balloon = path / "balloon"
        path.mkdir(mode=0o711)
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0711", "tmpfs", str(path)]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            self.problem = answer.stderr.strip() if answer.returncode else ""
        except OSError as error:
            self.problem = str(error)

    @property
    def is_mounted(self) -> bool:
        return not self.problem

    def fill(self) -> None:
        """Take all free space."""
        with suppress(OSError), open(self._balloon, "ab", buffering=0) as balloon:
            while True:
                balloon.write(bytes(64 * 1024))

    def free(self) -> None:
        self._balloon.unlink(missing_ok=True)

    def remove(self) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)


def free_port() -> int:
    """Return a port that no outgoing connection takes."""
    for port in random.SystemRandom().sample(PORTS, 200):
        if is_port_free(port):
            return port
    raise RuntimeError("no free port")
