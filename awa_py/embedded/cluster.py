"""The files in an embedded server's directory, and their creation."""

import contextlib
import json
import os
import random
import secrets
import shutil
import socket
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from awa_py.embedded.account import Account, reachable_path
from awa_py.embedded.guardian import open_private
from awa_py.errors import EmbeddedError

SUPERUSER = "awa"
DATABASE = "awa"

PORTS = range(20_000, 32_768)
"""Below the ephemeral ports of Linux and macOS, so that no outgoing connection takes the port during a restart."""

MAX_SOCKET_PATH_BYTES = 100
LOG_TAIL_LINES = 20


@dataclass(frozen=True, slots=True)
class Home:
    """The directory of one embedded server, and the paths in it."""

    path: Path

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def users_lock(self) -> Path:
        return self.path / "users.lock"

    @property
    def guardian_lock(self) -> Path:
        return self.path / "guardian.lock"

    @property
    def hold_lock(self) -> Path:
        return self.path / "hold.lock"

    @property
    def access_file(self) -> Path:
        return self.path / "access.json"

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    def has_socket(self) -> bool:
        """Return whether a URL can name a unix socket in the data directory."""
        # In a URL, a comma separates hosts.
        is_short = len(os.fsencode(self.data / ".s.PGSQL.65535")) <= MAX_SOCKET_PATH_BYTES
        return is_short and "," not in str(self.data)

    def log_tail(self) -> str:
        """Return the end of the server's log, for error messages."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(lines[-LOG_TAIL_LINES:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The port and password, stored in a file that only the directory's owner can read."""

    port: int
    password: str

    @classmethod
    def read(cls, home: Home) -> "Access":
        """Read the file. Raise EmbeddedError if it is missing or invalid."""
        try:
            with open(open_private(home.access_file, os.O_RDONLY)) as file:
                stored = json.load(file)
            return cls(port=int(stored["port"]), password=str(stored["password"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EmbeddedError(f"{home.access_file}: cannot read the server's port and password: {error}") from error

    def write(self, home: Home) -> None:
        staging = home.access_file.with_suffix(".new")
        staging.unlink(missing_ok=True)
        with os.fdopen(os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())
        staging.replace(home.access_file)


def open_home(directory: Path) -> Home:
    """Create the directory if it is missing, and make it private.

    Raise EmbeddedError, and change nothing, if it contains something else, or if another user owns it or may write to
    it: that user could replace the server's files.
    """
    home = Home(directory)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The root of a newly formatted disk is not empty.
        entries = set(os.listdir(directory)) - {"lost+found"}
        status = directory.stat()
    except OSError as error:
        raise EmbeddedError(f"{directory} cannot be used as a data directory: {error}") from error
    if status.st_uid != os.geteuid():
        raise EmbeddedError(
            f"{directory} belongs to the user with uid {status.st_uid}, but this process has uid {os.geteuid()}:"
            " run it as the owner, or choose another directory"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise EmbeddedError(
            f"other users may write to {directory}: choose another directory, or, if you trust what is in it,"
            f" `chmod go-w {directory}`"
        )
    if entries and home.users_lock.name not in entries:
        raise EmbeddedError(
            f"{directory} is not empty and is not a data directory of awa:"
            f" choose another directory, or one that does not exist yet"
        )
    make_home_private(directory)
    return home


def make_home_private(directory: Path) -> None:
    """Deny access to others. If we are root, the server's account must be able to pass through."""
    directory.chmod(0o711 if os.geteuid() == 0 else 0o700)


def existing_major(home: Home) -> int | None:
    """Return the major version of PostgreSQL that created the data; None if there is no data yet."""
    if not home.data.exists():
        return None
    try:
        return int((home.data / "PG_VERSION").read_text())
    except (OSError, ValueError) as error:
        raise EmbeddedError(f"{home.data} is not a PostgreSQL data directory: {error}") from error


def ensure_access(home: Home) -> Access:
    """Return the stored port and password, with another port if that one is in use. Create them if missing."""
    if home.data.exists() or home.access_file.exists():
        access = Access.read(home)
    else:
        access = Access(port=0, password=secrets.token_urlsafe(24))
    if access.port == 0 or not is_port_free(access.port):
        access = Access(port=_free_port(), password=access.password)
        access.write(home)
    return access


def create_cluster(home: Home, binaries: Path, account: Account, *, password: str, major: int, durable: bool) -> None:
    """Create the data directory with an empty database. It appears atomically."""
    for unfinished in home.path.glob("data.new-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix="data.new-", dir=home.path))
    try:
        if account.switch:
            os.chown(staging, account.uid, account.gid)
        with reachable_path(staging, account) as reachable:
            _initialize(reachable.path, reachable.fds, binaries, account, password=password, major=major)
            _create_database(reachable.path, reachable.fds, binaries, account)
            if durable:
                _checked_run(account, [binaries / "initdb", "--sync-only", "-D", reachable.path], fds=reachable.fds)
        staging.rename(home.data)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def is_port_free(port: int) -> bool:
    """Return whether the port of the loopback address is free."""
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _initialize(
    data: str, fds: tuple[int, ...], binaries: Path, account: Account, *, password: str, major: int
) -> None:
    locale = ["--locale=C"]
    if major >= 17:
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    with tempfile.TemporaryFile("w") as secret:
        secret.write(password)
        secret.flush()
        secret.seek(0)
        if account.switch:
            os.fchown(secret.fileno(), account.uid, account.gid)
        # Passed as a file descriptor: no other process can open it by name.
        argv: list[str | Path] = [binaries / "initdb", "-D", data, "--no-sync", f"--username={SUPERUSER}"]
        argv += ["--auth=scram-sha-256", f"--pwfile=/dev/fd/{secret.fileno()}", "--encoding=UTF8", *locale]
        _checked_run(account, argv, fds=(*fds, secret.fileno()))


def _create_database(data: str, fds: tuple[int, ...], binaries: Path, account: Account) -> None:
    # Single-user mode needs neither a client nor a listening server.
    argv: list[str | Path] = [binaries / "postgres", "--single", "-F", "-D", data, "postgres"]
    output = _checked_run(account, argv, fds=fds, stdin=f"CREATE DATABASE {DATABASE};\n")
    if "ERROR" in output:
        raise EmbeddedError(f"cannot create the database {DATABASE}:\n{output}")


def _checked_run(account: Account, argv: list[str | Path], *, fds: tuple[int, ...], stdin: str = "") -> str:
    answer = account.run(argv, stdin=stdin, fds=fds)
    if answer.returncode != 0:
        raise EmbeddedError(f"{argv[0]} failed with exit code {answer.returncode}:\n{answer.stdout.strip()}")
    return answer.stdout


def _free_port() -> int:
    for port in random.SystemRandom().sample(PORTS, 100):
        if is_port_free(port):
            return port
    raise EmbeddedError(f"no free port found between {PORTS.start} and {PORTS.stop - 1}")
