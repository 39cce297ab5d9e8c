"""The operating system account that runs the server. PostgreSQL refuses root, so root uses an unprivileged one."""

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
    """The user that PostgreSQL runs as. `switch` is set if it differs from the current user."""

    name: str
    uid: int
    gid: int
    switch: bool

    def run(
        self, argv: Sequence[str | Path], *, stdin: str = "", fds: Sequence[int] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as this account and capture its output, stderr included."""
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
                # The account may not be able to enter the current directory.
                cwd="/",
                env=server_environment(),
                user=self.uid if self.switch else None,
                group=self.gid if self.switch else None,
                extra_groups=[] if self.switch else None,
            )
        except OSError as error:
            raise EmbeddedError(f"cannot run {argv[0]} as user {self.name}: {error}") from error

    def can_run(self, *programs: Path) -> bool:
        """Return whether the account can run the programs, including their shared libraries."""
        try:
            return all(self.run([program, "--version"]).returncode == 0 for program in programs)
        except EmbeddedError:
            return False

    def can_enter(self, directory: Path) -> bool:
        """Return whether the account can enter the directory through all of its parents."""
        return self.run(["/bin/sh", "-c", 'cd "$1"', "sh", directory]).returncode == 0


@dataclass(frozen=True, slots=True)
class ReachablePath:
    """A path to the data directory that the server can open, and the file descriptors that the path needs."""

    path: str
    fds: tuple[int, ...]


def server_account(data: Path) -> Account:
    """Return the account for this data directory: its owner if it exists, and never root."""
    if os.geteuid() != 0:
        return Account(name=str(os.geteuid()), uid=os.geteuid(), gid=os.getegid(), switch=False)
    if not data.exists():
        return _unprivileged_account()
    owner = data.stat()
    if owner.st_uid == 0:
        raise EmbeddedError(
            f"{data} belongs to root, and PostgreSQL refuses to run as root:"
            f" change its owner with `chown -R {_unprivileged_account().name} {data}`"
        )
    return Account(name=_user_name(owner.st_uid), uid=owner.st_uid, gid=owner.st_gid, switch=True)


@contextmanager
def reachable_path(data: Path, account: Account) -> Iterator[ReachablePath]:
    """Yield a path that the account can open, even if it cannot enter a parent of the data directory."""
    if not account.switch or account.can_enter(data):
        yield ReachablePath(str(data), ())
        return
    if not sys.platform.startswith("linux"):
        raise EmbeddedError(
            f"user {account.name}, who runs PostgreSQL for root, cannot enter {data}:"
            f" make its parent directories accessible with `chmod o+x`, or choose another directory"
        )
    # Linux resolves /proc/self/fd directly, without checking the permissions of the parents.
    fd = os.open(data, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield ReachablePath(f"/proc/self/fd/{fd}", (fd,))
    finally:
        os.close(fd)


def server_environment() -> dict[str, str]:
    """Return the environment without variables that would change PostgreSQL's directory, port or language."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return environ | {"LC_ALL": "C"}


def _unprivileged_account() -> Account:
    for name in CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid, switch=True)
    raise EmbeddedError(
        "PostgreSQL refuses to run as root, and there is no user named postgres or nobody: run awa as another user"
    )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
