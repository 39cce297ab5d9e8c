"""The process that runs PostgreSQL for as long as anybody uses it.

It is started as a script of its own, by path, and imports nothing but the standard library: it must come up
fast, stay small, and not depend on how the program that needed it was started.

    start ──► starting ──► ready ──died──► starting …
                 │           └──nobody left──► shut down, exit
                 └──died before it was ever ready──► exit: the log says why
"""

import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

DISMISS = signal.SIGUSR1
"""Sent by the last user, who holds the users' lock alone: nobody is left."""

STARTING_POLL_S = 0.02
WATCHING_POLL_S = 0.2
RETRY_S = 1.0
LEFTOVERS_PATIENCE_S = 10.0
LOG_LIMIT_BYTES = 8 * 1024 * 1024
SHUTDOWN = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))
"""Fast, then immediate, then by force: a server that hangs must not outlive its users."""

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """All that the guardian is told.

    `lock_fd` is its own lock, taken for it by whoever starts it. `marker` stands in the command line of each
    process of this server, and of no other.
    """

    argv: list[str]
    data: str
    marker: str
    users_lock: str
    hold_lock: str
    log: str
    lock_fd: int
    server_fds: list[int]
    uid: int | None
    gid: int | None
    remove: str | None

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> "Orders":
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What the guardian says in its lock file. A pid of 0: there is none, and not because it was killed."""

    guardian: int = 0
    server: int = 0
    ready: bool = False

    def write(self, fd: int) -> None:
        # Of one length always, so that no reader meets the end of an older one.
        os.pwrite(fd, f"{self.guardian:010d} {self.server:010d} {self.ready:d}\n".encode(), 0)

    @classmethod
    def read(cls, fd: int) -> "Status":
        words = os.pread(fd, 64, 0).split()
        if len(words) != 3:
            return cls()
        return cls(guardian=int(words[0]), server=int(words[1]), ready=words[2] == b"1")


class Guardian:
    """Keeps one server running until its last user is gone."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._data = Path(orders.data)
        self._users_fd = os.open(orders.users_lock, os.O_RDWR | os.O_CREAT, 0o600)
        self._hold_fd = os.open(orders.hold_lock, os.O_RDWR | os.O_CREAT, 0o600)
        self._child: subprocess.Popen[bytes] | None = None
        self._stale_pid_file: tuple[int, int] | None = None
        self._ready = False
        self._was_ever_ready = False
        self._retry_at = 0.0
        self._dismissed = False
        self._wake_fd = self._listen_to_signals()

    def run(self) -> int:
        """Tend the server until nobody is left; the exit code says whether it ever came up."""
        while not self._is_nobody_left():
            if not self._tend():
                Status().write(self._orders.lock_fd)
                return 1
            self._trim_log()
            self._sleep()
        self._shut_down()
        if self._orders.remove:
            shutil.rmtree(self._orders.remove, ignore_errors=True)
        return 0

    def _is_nobody_left(self) -> bool:
        # Kept once taken: whoever comes now waits until we have finished.
        return self._dismissed or _try_lock(self._users_fd, fcntl.LOCK_EX)

    def _tend(self) -> bool:
        """Start, watch or restart the server; False when it cannot start at all."""
        if self._child is None:
            if time.monotonic() >= self._retry_at:
                self._start()
        elif self._child.poll() is not None:
            return self._note_death()
        elif not self._ready and self._is_accepting():
            self._ready = self._was_ever_ready = True
            self._publish()
        return True

    def _start(self) -> None:
        if not _try_lock(self._hold_fd, fcntl.LOCK_SH):
            return
        try:
            clear_leftovers(self._data, self._orders.marker)
            self._stale_pid_file = self._pid_file_identity()
            self._child = self._spawn()
            # Told before the hold is let go: whoever takes it then knows which process to stop.
            self._publish()
        finally:
            fcntl.flock(self._hold_fd, fcntl.LOCK_UN)

    def _spawn(self) -> subprocess.Popen[bytes]:
        uid, gid = self._orders.uid, self._orders.gid
        return subprocess.Popen(
            self._orders.argv,
            stdin=subprocess.DEVNULL,
            pass_fds=self._orders.server_fds,
            user=uid,
            group=gid,
            extra_groups=None if uid is None else [],
            # After the change of user, which would clear it.
            preexec_fn=_dying_with(os.getpid()),
        )

    def _note_death(self) -> bool:
        # One that failed to start is likely to fail again; one that ran is needed back at once.
        self._retry_at = time.monotonic() + (0.0 if self._ready else RETRY_S)
        self._child = None
        self._ready = False
        self._publish()
        return self._was_ever_ready

    def _is_accepting(self) -> bool:
        if self._child is None or self._pid_file_identity() == self._stale_pid_file:
            return False
        lines = _lines(self._data / "postmaster.pid")
        return len(lines) >= 8 and lines[0] == str(self._child.pid) and lines[7].strip() == "ready"

    def _pid_file_identity(self) -> tuple[int, int] | None:
        try:
            status = (self._data / "postmaster.pid").stat()
        except OSError:
            return None
        return status.st_ino, status.st_ctime_ns

    def _publish(self) -> None:
        server = 0 if self._child is None else self._child.pid
        Status(guardian=os.getpid(), server=server, ready=self._ready).write(self._orders.lock_fd)

    def _shut_down(self) -> None:
        self._ready = False
        self._publish()
        for kind, patience_s in SHUTDOWN:
            if self._child is None:
                break
            self._child.send_signal(kind)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(patience_s)
                self._child = None
        clear_leftovers(self._data, self._orders.marker)
        Status().write(self._orders.lock_fd)

    def _trim_log(self) -> None:
        # Our standard error, and the server's; opened for appending, so that both go on at its new end.
        if os.fstat(sys.stderr.fileno()).st_size > LOG_LIMIT_BYTES:
            shutil.copyfile(self._orders.log, f"{self._orders.log}.1")
            os.ftruncate(sys.stderr.fileno(), 0)

    def _sleep(self) -> None:
        timeout_s = WATCHING_POLL_S if self._ready else STARTING_POLL_S
        woken, _, _ = select.select([self._wake_fd], [], [], timeout_s)
        if woken:
            os.read(self._wake_fd, 512)

    def _listen_to_signals(self) -> int:
        # The users' lock alone decides when to stop: a terminal or service manager that signals everybody
        # at once would otherwise take the server from users who are still finishing.
        # By a handler, since the server would inherit SIG_IGN and be deaf until it has set up its own.
        for unheeded in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(unheeded, lambda *_: None)
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(DISMISS, self._dismiss)
        self._publish()
        return reader

    def _dismiss(self, *_: object) -> None:
        self._dismissed = True


def clear_leftovers(data: Path, marker: str) -> None:
    """End what an earlier server left behind in its data directory, so that a new one can start."""
    for kind in (signal.SIGQUIT, signal.SIGKILL):
        for pid in server_processes(marker):
            with suppress(ProcessLookupError):
                os.kill(pid, kind)
        deadline = time.monotonic() + LEFTOVERS_PATIENCE_S
        while server_processes(marker) and time.monotonic() < deadline:
            time.sleep(STARTING_POLL_S)
    # PostgreSQL takes whatever has the pid in these for a server: a stranger who got it since, or a dead
    # server that nobody reaped. (A pid that nobody has, it sees through itself.)
    for lock_file in (data / "postmaster.pid", *data.glob(".s.PGSQL.*.lock")):
        pid = _first_number(lock_file)
        if is_alive(pid) and _is_foreign(pid, data):
            lock_file.unlink(missing_ok=True)


def server_processes(marker: str) -> list[int]:
    """The PostgreSQL processes whose command line, or title, holds the marker."""
    return [pid for pid, command in _command_lines() if _is_postgres(command) and marker in command]


def _command_lines() -> Iterator[tuple[int, str]]:
    if not sys.platform.startswith("linux"):
        listing = subprocess.run(
            ["ps", "-axww", "-o", "pid=,command="],
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
        ).stdout
        for pid, _, command in (line.strip().partition(" ") for line in listing.splitlines()):
            yield int(pid), command.strip()
        return
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                command = Path("/proc", entry, "cmdline").read_text(errors="replace")
                yield int(entry), command.replace("\0", " ")


def _is_postgres(command: str) -> bool:
    return os.path.basename(command.partition(" ")[0]).rstrip(":") == "postgres"


def _is_foreign(pid: int, data: Path) -> bool:
    """Whether a living process is surely none of a server in this data directory."""
    if not any(other == pid and _is_postgres(command) for other, command in _command_lines()):
        return True
    try:
        return not os.path.samefile(f"/proc/{pid}/cwd", data)
    except OSError:
        return False


def _first_number(file: Path) -> int:
    lines = _lines(file)
    # A negative one is that of a server in single-user mode.
    return abs(int(lines[0])) if lines and lines[0].lstrip("-").isdigit() else 0


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Whether a process of that pid exists, whoever's it is; never one of pid 0."""
    if not pid:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _dying_with(parent: int) -> Callable[[], None] | None:
    """What makes the kernel stop the server at once when the guardian is killed."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def bind() -> None:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGQUIT), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return bind


def main() -> int:
    """Detach from whoever started us, then guard."""
    if os.fork():
        return 0
    os.chdir("/")
    return Guardian(Orders.load(sys.argv[1])).run()


if __name__ == "__main__":
    sys.exit(main())
