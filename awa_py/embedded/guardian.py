"""The process that runs PostgreSQL as long as there are users.

It is started as a script, by path, and imports only the standard library, so that it starts fast, stays small, and does
not depend on how the calling program was started. That is why all of it is in one file.

    start ──► starting ──► ready ──died──► starting …
                 │           └──no users left──► shut down, exit
                 └──died before it was ever ready──► exit; the log has the cause
"""

import ctypes
import errno
import fcntl
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

STOP_SIGNAL = signal.SIGUSR1
"""Sent by the last user, which holds the users' lock exclusively."""

STARTING_POLL_S = 0.02
READY_POLL_S = 0.2
RESTART_DELAY_S = 1.0
CLEANUP_TIMEOUT_S = 10.0
MAX_LOG_BYTES = 8 * 1024 * 1024
SHUTDOWN = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))
"""Fast, immediate, then SIGKILL, each with its timeout: a server that hangs must not outlive its users."""

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """The guardian's parameters.

    `lock_fd` is its lock, acquired by the process that starts it. `marker` is in the command line of each process of
    this server and of no other.
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
    def load(cls, text: str) -> "LaunchRequest":
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The guardian's status in its lock file. It clears its pid when it exits, but not if it is killed."""

    guardian: int = 0
    server: int = 0
    ready: bool = False

    def write(self, fd: int) -> None:
        # The length is fixed, so that a reader never sees the end of an older status.
        os.pwrite(fd, f"{self.guardian:010d} {self.server:010d} {self.ready:d}\n".encode(), 0)

    @classmethod
    def read(cls, fd: int) -> "Status":
        words = os.pread(fd, 64, 0).split()
        if len(words) != 3:
            return cls()
        return cls(guardian=int(words[0]), server=int(words[1]), ready=words[2] == b"1")


def open_private(path: str | Path, flags: int) -> int:
    """Open a file of this user, never through a link. A new one can be read only by this user."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise PermissionError(errno.EPERM, "not a file of this user", str(path))
    return fd


class Guardian:
    """Keeps one server running until its last user has left."""

    def __init__(self, request: LaunchRequest) -> None:
        self._request = request
        self._data = Path(request.data)
        self._users_fd = open_private(request.users_lock, os.O_RDWR | os.O_CREAT)
        self._hold_fd = open_private(request.hold_lock, os.O_RDWR | os.O_CREAT)
        self._child: subprocess.Popen[bytes] | None = None
        self._stale_pid_file: tuple[int, int] | None = None
        self._ready = False
        self._was_ever_ready = False
        self._retry_at = 0.0
        self._stop_requested = False
        self._wake_fd = self._install_signal_handlers()

    def run(self) -> int:
        """Run the server until no user is left. Return 1 if it never became ready, else 0."""
        while not self._has_no_users():
            if not self._check_server():
                Status().write(self._request.lock_fd)
                return 1
            self._rotate_log()
            self._sleep()
        self._shut_down()
        if self._request.remove:
            shutil.rmtree(self._request.remove, ignore_errors=True)
        return 0

    def _has_no_users(self) -> bool:
        # The lock is kept: a new user waits until we have finished.
        return self._stop_requested or _try_lock(self._users_fd, fcntl.LOCK_EX)

    def _check_server(self) -> bool:
        """Start or restart the server if needed. Return False if it died before it was ever ready."""
        if self._child is None:
            if time.monotonic() >= self._retry_at:
                self._start()
        elif self._child.poll() is not None:
            return self._handle_death()
        elif not self._ready and self._is_accepting():
            self._ready = self._was_ever_ready = True
            self._publish()
        return True

    def _start(self) -> None:
        if not _try_lock(self._hold_fd, fcntl.LOCK_SH):
            return
        try:
            clean_up_crashed_server(self._data, self._request.marker)
            self._stale_pid_file = self._pid_file_identity()
            self._child = self._spawn()
            # Publish before releasing the hold: the next holder must know which process to stop.
            self._publish()
        finally:
            fcntl.flock(self._hold_fd, fcntl.LOCK_UN)

    def _spawn(self) -> subprocess.Popen[bytes]:
        uid, gid = self._request.uid, self._request.gid
        return subprocess.Popen(
            self._request.argv,
            stdin=subprocess.DEVNULL,
            pass_fds=self._request.server_fds,
            user=uid,
            group=gid,
            extra_groups=None if uid is None else [],
            # Runs after the change of user, which would clear it.
            preexec_fn=_die_with(os.getpid()),
        )

    def _handle_death(self) -> bool:
        # A server that failed to start will probably fail again; one that was ready must come back at once.
        self._retry_at = time.monotonic() + (0.0 if self._ready else RESTART_DELAY_S)
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
        Status(guardian=os.getpid(), server=server, ready=self._ready).write(self._request.lock_fd)

    def _shut_down(self) -> None:
        self._ready = False
        self._publish()
        for kind, timeout_s in SHUTDOWN:
            if self._child is None:
                break
            self._child.send_signal(kind)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout_s)
                self._child = None
        clean_up_crashed_server(self._data, self._request.marker)
        Status().write(self._request.lock_fd)

    def _rotate_log(self) -> None:
        # The log is our standard error and the server's, opened for appending: both continue at its new end.
        if os.fstat(sys.stderr.fileno()).st_size > MAX_LOG_BYTES:
            rotated = f"{self._request.log}.1"
            with suppress(FileNotFoundError):
                os.unlink(rotated)
            with (
                open(open_private(self._request.log, os.O_RDONLY), "rb") as log,
                open(open_private(rotated, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as copy,
            ):
                shutil.copyfileobj(log, copy)
            os.ftruncate(sys.stderr.fileno(), 0)

    def _sleep(self) -> None:
        timeout_s = READY_POLL_S if self._ready else STARTING_POLL_S
        woken, _, _ = select.select([self._wake_fd], [], [], timeout_s)
        if woken:
            os.read(self._wake_fd, 512)

    def _install_signal_handlers(self) -> int:
        # Only the users' lock decides when to stop: a terminal or service manager that signals all processes at once
        # would otherwise stop the server while users are still finishing.
        # Use a handler, since the server would inherit SIG_IGN until it has installed its own handlers.
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(ignored, lambda *_: None)
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(STOP_SIGNAL, self._request_stop)
        self._publish()
        return reader

    def _request_stop(self, *_: object) -> None:
        self._stop_requested = True


def clean_up_crashed_server(data: Path, marker: str) -> None:
    """Kill the processes of an earlier server and remove its lock files, so that a new one can start."""
    for kind in (signal.SIGQUIT, signal.SIGKILL):
        for pid in server_processes(marker):
            with suppress(ProcessLookupError):
                os.kill(pid, kind)
        deadline = time.monotonic() + CLEANUP_TIMEOUT_S
        while server_processes(marker) and time.monotonic() < deadline:
            time.sleep(STARTING_POLL_S)
    # PostgreSQL assumes that any process with the pid in these files is a server: an unrelated process that got the
    # pid since, or an unreaped zombie. (It handles a pid without a process itself.)
    for lock_file in (data / "postmaster.pid", *data.glob(".s.PGSQL.*.lock")):
        pid = _first_number(lock_file)
        if is_alive(pid) and _is_unrelated(pid, data):
            lock_file.unlink(missing_ok=True)


def server_processes(marker: str) -> list[int]:
    """Return the PostgreSQL processes whose command line or title contains the marker."""
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


def _is_unrelated(pid: int, data: Path) -> bool:
    """Return whether a live process certainly does not belong to a server of this data directory."""
    if not any(other == pid and _is_postgres(command) for other, command in _command_lines()):
        return True
    try:
        return not os.path.samefile(f"/proc/{pid}/cwd", data)
    except OSError:
        return False


def _first_number(file: Path) -> int:
    lines = _lines(file)
    # It is negative for a server in single-user mode.
    return abs(int(lines[0])) if lines and lines[0].lstrip("-").isdigit() else 0


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Return whether a process with this pid exists, of any user. Pid 0 never does."""
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


def _die_with(parent: int) -> Callable[[], None] | None:
    """Return a preexec_fn that makes the kernel stop the server when the guardian is killed."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def set_death_signal() -> None:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGQUIT), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return set_death_signal


def main() -> int:
    """Detach from the caller, then run the server."""
    if os.fork():
        return 0
    os.chdir("/")
    return Guardian(LaunchRequest.load(sys.argv[1])).run()


if __name__ == "__main__":
    sys.exit(main())
