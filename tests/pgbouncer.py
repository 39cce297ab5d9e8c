"""A real PgBouncer in front of the tests' server, if the program is installed."""

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit, urlunsplit

import pytest

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
UNPRIVILEGED_USER = "nobody"  # PgBouncer refuses root
START_TIMEOUT_S = 20

needs_pgbouncer = pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed")

DOCUMENTATION = Path(__file__).parents[1] / "docs" / "pgbouncer.md"


class PgBouncer:
    """A PgBouncer process; `url` leads through it to the same database."""

    def __init__(self, server_url: str, directory: Path, *, mode: str, size: int, settings: Mapping[str, str]) -> None:
        parts = urlsplit(server_url)
        self._directory = directory
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{self._port}"))
        config = documented_config()
        config["databases"] = {
            "*": f"host={parts.hostname} port={parts.port or 5432} user={parts.username} password={parts.password}"
        }
        config["pgbouncer"] |= {"listen_addr": "127.0.0.1", "listen_port": str(self._port), "auth_type": "any"}
        config["pgbouncer"] |= {"unix_socket_dir": "", "pool_mode": mode, "default_pool_size": str(size), **settings}
        del config["pgbouncer"]["auth_file"]
        (directory / "pgbouncer.ini").write_text(_ini_text(config))

    def start(self) -> None:
        assert PROGRAM is not None
        as_root = os.geteuid() == 0
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [PROGRAM, self._directory / "pgbouncer.ini"],
                cwd="/",
                stdout=log,
                stderr=log,
                user=UNPRIVILEGED_USER if as_root else None,
                group=pwd.getpwnam(UNPRIVILEGED_USER).pw_gid if as_root else None,
                extra_groups=[] if as_root else None,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the process, and with it all connections that lead through it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    @property
    def log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return True
        except OSError:
            return False


@contextmanager
def pgbouncer(server_url: str, *, mode: str = "transaction", size: int = 4, **settings: str) -> Iterator[PgBouncer]:
    """Run a PgBouncer with the settings of docs/pgbouncer.md, except those that are given."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        started = PgBouncer(server_url, directory, mode=mode, size=size, settings=settings)
        started.start()
        try:
            yield started
        finally:
            started.kill()


def documented_config() -> dict[str, dict[str, str]]:
    """Return the settings that docs/pgbouncer.md recommends."""
    match = re.search(r"```ini\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    assert match is not None
    parser = ConfigParser()
    parser.read_string(match[1])
    return {section: dict(parser[section]) for section in parser.sections()}


def _ini_text(config: Mapping[str, Mapping[str, str]]) -> str:
    lines = []
    for section, values in config.items():
        lines += [f"[{section}]", *(f"{name} = {value}" for name, value in values.items())]
    return "\n".join([*lines, ""])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
