"""A real PgBouncer before the tests' server, where there is one to be found."""

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
ORDINARY = "nobody"  # PgBouncer refuses root
PATIENCE_S = 20

needs_pgbouncer = pytest.mark.skipif(PROGRAM is None, reason="there is no pgbouncer here")

PAGE = Path(__file__).parents[1] / "docs" / "pgbouncer.md"


class Bouncer:
    """One PgBouncer; `url` leads to the same database through it."""

    def __init__(self, server_url: str, directory: Path, *, mode: str, size: int, more: Mapping[str, str]) -> None:
        parts = urlsplit(server_url)
        self._directory = directory
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{self._port}"))
        settings = documented()
        settings["databases"] = {
            "*": f"host={parts.hostname} port={parts.port or 5432} user={parts.username} password={parts.password}"
        }
        settings["pgbouncer"] |= {"listen_addr": "127.0.0.1", "listen_port": str(self._port), "auth_type": "any"}
        settings["pgbouncer"] |= {"unix_socket_dir": "", "pool_mode": mode, "default_pool_size": str(size), **more}
        del settings["pgbouncer"]["auth_file"]
        (directory / "pgbouncer.ini").write_text(_text(settings))

    def start(self) -> None:
        assert PROGRAM is not None
        as_root = os.geteuid() == 0
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [PROGRAM, self._directory / "pgbouncer.ini"],
                cwd="/",
                stdout=log,
                stderr=log,
                user=ORDINARY if as_root else None,
                group=pwd.getpwnam(ORDINARY).pw_gid if as_root else None,
                extra_groups=[] if as_root else None,
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def kill(self) -> None:
        """At once, with all connections that lead through it."""
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
def bouncer(server_url: str, *, mode: str = "transaction", size: int = 4, **more: str) -> Iterator[Bouncer]:
    """Started, and gone at the end. As docs/pgbouncer.md sets it up, but for what is given."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        started = Bouncer(server_url, directory, mode=mode, size=size, more=more)
        started.start()
        try:
            yield started
        finally:
            started.kill()


def documented() -> dict[str, dict[str, str]]:
    """The settings that the page recommends."""
    found = re.search(r"```ini\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    parser = ConfigParser()
    parser.read_string(found[1])
    return {section: dict(parser[section]) for section in parser.sections()}


def _text(settings: Mapping[str, Mapping[str, str]]) -> str:
    lines = []
    for section, values in settings.items():
        lines += [f"[{section}]", *(f"{name} = {value}" for name, value in values.items())]
    return "\n".join([*lines, ""])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
