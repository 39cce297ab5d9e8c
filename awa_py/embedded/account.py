"""Who runs the server: PostgreSQL refuses root, so root lends it to an unprivileged account."""

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from awa_py.errors import EmbeddedError

CANDIDATES = ("postgres", "_postgres", "nobody")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The operating system's user that PostgreSQL runs as. `switch` is set when that is not ourselves."""

    name: str
    uid: int
    gid: int
    switch: bool

    def run(
        self, argv: Sequence[str | Path], *, stdin: str = "", fds: Sequence[int] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as this account and return what it printed, stderr included."""
        try:
            return subprocess.run(
                argv,
                input=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
                pass_fds=fds,
                # Our own working directory may be one that the account cannot enter.
                cwd="/",
                env=server_environment(),
                user=self.uid if self.switch else None,
                group=self.gid if self.switch else None,
                extra_groups=[] if self.switch else None,
            )
        except OSError as error:
            raise EmbeddedError(f"cannot run {argv[0]} as user {self.name}: {error}") from error

    def can_run(self, *programs: Path) -> bool:
        """Whether the account can start the programs, their shared libraries included."""
        try:
            return all(self.run([program, "--version"]).returncode == 0 for program in programs)
        except EmbeddedError:
            return False

    def can_enter(self, directory: Path) -> bool:
        """Whether the account reaches the directory, through all of its parents."""
        return self.run(["/bin/sh", "-c", 'cd "$1"', "sh", directory]).returncode == 0


@dataclass(frozen=True, slots=True)
class Doorway:
    """A name for the data directory that the server can open, and the descriptors which that name needs."""

    path: str
    fds: tuple[int, ...]


def server_account(data: Path) -> Account:
    """The account for this data directory: its owner if it exists, and never root."""
    if os.geteuid() != 0:
        return Account(name=str(os.geteuid()), uid=os.geteuid(), gid=os.getegid(), switch=False)
    if not data.exists():
        return _unprivileged_account()
    owner = data.stat()
    if owner.st_uid == 0:
        raise EmbeddedError(
            f"{data} belongs to root, and PostgreSQL refuses to run as root:"
            f" give it away with `chown -R {_unprivileged_account().name} {data}`"
        )
    return Account(name=_name_of(owner.st_uid), uid=owner.st_uid, gid=owner.st_gid, switch=True)


@contextmanager
def doorway(data: Path, account: Account) -> Iterator[Doorway]:
    """Name the data directory so that the account can open it, even below a parent closed to it."""
    if not account.switch or account.can_enter(data):
        yield Doorway(str(data), ())
        return
    if not sys.platform.startswith("linux"):
        raise EmbeddedError(
            f"user {account.name}, who runs PostgreSQL for root, cannot enter {data}:"
            f" open its parent directories with `chmod o+x`, or choose another directory"
        )
    # Linux follows /proc/self/fd to the directory itself and never looks at the parents' permissions.
    fd = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Doorway(f"/proc/self/fd/{fd}", (fd,))
    finally:
        os.close(fd)


def server_environment() -> dict[str, str]:
    """Our environment without what would change PostgreSQL's mind about its directory, port or language."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C"}


def _unprivileged_account() -> Account:
    for name in CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid, switch=True)
    raise EmbeddedError(
        "PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it: run awa as another user"
    )


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
