"""A standby of an embedded server: copied with pg_basebackup, then promoted, stopped and started again by tests."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from awa_py.embedded.account import Account, server_account, server_environment
from awa_py.embedded.binaries import binaries_for, find_binaries
from awa_py.embedded.cluster import _free_port
from awa_py.embedded.launcher import DEFAULTS
from tests.processes import eventually

STOP_TIMEOUT_S = 30.0


class Standby:
    """A PostgreSQL that follows the server at `primary_url`. `url` leads to it."""

    def __init__(self, primary_url: str, directory: Path, binaries: Path, account: Account) -> None:
        parts = urlsplit(primary_url)
        self.port = _free_port()
        self.url = urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{self.port}"))
        self._primary_url = primary_url
        self._data = directory / "data"
        self._log = directory / "log"
        self._binaries = binaries
        self._account = account
        self._process: subprocess.Popen[bytes] | None = None

    def copy(self) -> None:
        """Copy the primary's data, with the settings of a standby."""
        program = self._binaries / "pg_basebackup"
        answer = self._account.run(
            [program, "-d", self._primary_url, "-D", self._data, "--write-recovery-conf", "--checkpoint=fast"]
        )
        assert answer.returncode == 0, answer.stdout

    async def start(self) -> None:
        settings = {**DEFAULTS, "port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
        argv: list[str | Path] = [self._binaries / "postgres", "-D", self._data, "-c", "fsync=off"]
        argv += [f"-c{name}={value}" for name, value in settings.items()]
        switch = self._account.switch
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                cwd="/",
                env=server_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._account.uid if switch else None,
                group=self._account.gid if switch else None,
                extra_groups=[] if switch else None,
            )
        await eventually("the standby accepts connections", self._accepts_connections)

    async def promote(self) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            assert await connection.fetchval("SELECT pg_promote()")
        finally:
            await connection.close()

    def freeze(self, *, frozen: bool) -> None:
        """Stop or continue the main process: it accepts no connection while it is frozen."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGINT)
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    async def _accepts_connections(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text(errors="replace")
        try:
            connection = await asyncpg.connect(self.url)
        except (OSError, asyncpg.CannotConnectNowError):
            return False
        await connection.close()
        return True


@contextmanager
def standby_of(primary_url: str) -> Iterator[Standby]:
    """Copy the server and yield the copy, which is not started yet."""
    directory = Path(tempfile.mkdtemp(prefix="awa-standby-"))
    account = server_account(directory / "data")
    if account.switch:
        os.chown(directory, account.uid, account.gid)
    binaries = binaries_for(account, find_binaries())
    standby = Standby(primary_url, directory, binaries, account)
    try:
        standby.copy()
        yield standby
    finally:
        standby.stop()
        shutil.rmtree(directory)


def both(first: str, second: str, query: str = "") -> str:
    """Return a URL that names the hosts of both URLs."""
    hosts = f"{urlsplit(first).netloc},{urlsplit(second).netloc.rpartition('@')[2]}"
    return urlunsplit(urlsplit(first)._replace(netloc=hosts, query=query))
