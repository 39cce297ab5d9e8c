"""The process between a worker and a command: it runs the command and ends every process that the command started.

It is started as a script, by path, and imports only the standard library: it starts fast, whatever the worker has
loaded, and it has one thread, so that it can fork safely.

    request, a line on standard input ──► find the program ──► run it ──► it ended ──► kill its processes ──► report
                                                                │
      a byte or the end of standard input, or the worker died ──┴──► SIGTERM, then SIGKILL ───────────────────┘

The end of standard input alone is not reliable: a process that a handler forked holds the worker's end of the pipe open
and may outlive the worker. So the worker also writes a byte to stop, and this process checks that its parent lives.

The command writes to this process's standard output. The report, one JSON object, goes to standard error, which the
command does not inherit. It has one key: `exit_code`, `signal`, or why the command did not run: `rejected` (do not
retry) or `failed` (may be retried).
"""

import ctypes
import json
import os
import select
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

GRACE_S = 2.0
"""Between SIGTERM and SIGKILL. A worker that shuts down gives its handlers five seconds to end."""

STOP = b"."
"""Written by the worker after the request. Any byte works."""

REAP_TIMEOUT_S = 2.0  # for killed processes to end
PARENT_POLL_S = 0.5  # how often to check that the worker lives
POLL_S = 0.01
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class OutsideRoot(Exception):
    """The program or the working directory is outside the root."""


class CommandRunner:
    """Runs one command."""

    def __init__(self, request: dict[str, Any], worker_pid: int) -> None:
        self._request = request
        self._worker_pid = worker_pid
        self._prctl = _prctl()
        self._wake_fd = _install_signal_handlers()
        self._child: subprocess.Popen[bytes] | None = None
        self._status: int | None = None  # from waitpid

    def run(self) -> dict[str, Any]:
        """Run the command to its end and return the report."""
        try:
            self._start()
        except OutsideRoot as error:
            return {"rejected": str(error)}
        except (OSError, subprocess.SubprocessError) as error:
            return {"failed": f"{self._request['argv'][0]!r} could not be started: {error}"}
        self._wait()
        self._kill_remaining()
        assert self._status is not None
        code = os.waitstatus_to_exitcode(self._status)
        return {"exit_code": code} if code >= 0 else {"signal": -code}

    def _start(self) -> None:
        if self._prctl is not None:
            # Orphaned descendants become our children, not init's, so that we can find and kill all of them.
            self._prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        argv: list[str] = self._request["argv"]
        root = os.path.realpath(self._request["root"])
        _change_directory(root, self._request["cwd"])
        program = _find_program(root, argv[0])
        with _stdin(self._request["stdin"]) as stdin:
            self._child = subprocess.Popen(
                argv,
                executable=program,
                env=self._request["env"],
                stdin=stdin,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=self._die_with(os.getpid()),
            )

    def _wait(self) -> None:
        """Wait until the command has ended. Kill it if the worker asks for it or has died."""
        stdin = sys.stdin.fileno()
        kill_at: float | None = None
        while self._status is None:
            if kill_at is None:
                ready, _, _ = select.select([stdin, self._wake_fd], [], [], PARENT_POLL_S)
            else:
                ready, _, _ = select.select([self._wake_fd], [], [], max(0.0, kill_at - time.monotonic()))
            if self._wake_fd in ready:
                os.read(self._wake_fd, 512)
            if kill_at is None and (stdin in ready or _is_gone(self._worker_pid)):
                kill_at = time.monotonic() + GRACE_S
                self._signal(signal.SIGTERM)
            if kill_at is not None and time.monotonic() >= kill_at:
                self._signal(signal.SIGKILL)
                kill_at += POLL_S
            self._reap()

    def _kill_remaining(self) -> None:
        """Kill the processes that the command left behind. They would hold its output open."""
        deadline = time.monotonic() + REAP_TIMEOUT_S
        self._signal_group(signal.SIGKILL)
        while self._reap() and time.monotonic() < deadline:
            self._signal(signal.SIGKILL)
            time.sleep(POLL_S)

    def _reap(self) -> bool:
        """Reap ended children. Return whether any are left."""
        assert self._child is not None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._child.pid:
                self._status = status
                self._child.returncode = os.waitstatus_to_exitcode(status)

    def _signal(self, number: signal.Signals) -> None:
        """Signal all of the command's processes, also those that left its session."""
        self._signal_group(number)
        for pid in _descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _signal_group(self, number: signal.Signals) -> None:
        assert self._child is not None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)

    def _die_with(self, parent: int) -> Callable[[], None] | None:
        """Return a preexec_fn that makes the kernel kill the command when this process is killed."""
        prctl = self._prctl
        if prctl is None:
            return None

        def set_death_signal() -> None:
            prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

        return set_death_signal


def _change_directory(root: str, cwd: str | None) -> None:
    """Change into the directory, then check where it is: at that point it cannot be replaced by a link."""
    os.chdir(root)
    if cwd is None:
        return
    try:
        os.chdir(cwd)
    except OSError as error:
        raise OSError(f"cwd {cwd!r}: {error.strerror}") from None
    if not _is_inside(os.getcwd(), root):
        raise OutsideRoot(f"cwd {cwd!r} is outside {root}")


def _find_program(root: str, name: str) -> str:
    """Return the program's real path inside the root. A bare name is looked up in ROOT/bin and then in ROOT."""
    candidates = [name] if "/" in name else [os.path.join(root, "bin", name), os.path.join(root, name)]
    for candidate in candidates:
        path = os.path.realpath(candidate)
        if not _is_inside(path, root):
            raise OutsideRoot(f"program {name!r} is outside {root}")
        with suppress(FileNotFoundError, NotADirectoryError):
            mode = os.stat(path).st_mode
            if stat.S_ISREG(mode) and os.access(path, os.X_OK):
                return path
            raise OSError(f"{path} is not an executable file: run chmod +x")
    raise OSError(f"there is no such program in {root}" + ("" if "/" in name else " or its bin directory"))


def _is_inside(path: str, root: str) -> bool:
    return os.path.commonpath([path, root]) == root


def _stdin(text: str | None) -> IO[bytes]:
    """Return a file with the text. A pipe would block if the command does not read it."""
    if text is None:
        return open(os.devnull, "rb")
    file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(text.encode())
    file.seek(0)
    return file


def _descendants(ancestor: int) -> list[int]:
    """Return all descendants of a process, if /proc exists."""
    children: dict[int, list[int]] = {}
    with suppress(FileNotFoundError):
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                # pid (name) state ppid …; the name may contain any character
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    generation = [ancestor]
    while generation:
        generation = [child for pid in generation for child in children.get(pid, [])]
        found += generation
    return found


def _prctl() -> Callable[..., int] | None:
    return ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None


def _install_signal_handlers() -> int:
    """Ignore termination signals. Return a descriptor that becomes readable when a child has ended."""
    # A terminal or service manager signals all processes at once; only the worker decides when to stop. Use a handler,
    # since the command would inherit SIG_IGN.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(ignored, lambda *_: None)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _is_gone(worker_pid: int) -> bool:
    """Compare with the pid that the worker passed: the worker may have died before this process started."""
    return os.getppid() != worker_pid


def _read_request(worker_pid: int) -> dict[str, Any] | None:
    """Read the request. Return None if the worker has died or already asked to stop."""
    text = b""
    while b"\n" not in text:
        ready, _, _ = select.select([sys.stdin.fileno()], [], [], PARENT_POLL_S)
        if _is_gone(worker_pid):
            return None
        if ready:
            part = os.read(sys.stdin.fileno(), 1 << 16)
            if not part:
                return None
            text += part
    line, _, stop = text.partition(b"\n")
    request: dict[str, Any] | None = None if stop else json.loads(line)
    return request


def main() -> None:
    worker_pid = int(sys.argv[1])
    request = _read_request(worker_pid)
    if request is not None:
        report = CommandRunner(request, worker_pid).run()
        with suppress(BrokenPipeError):
            os.write(sys.stderr.fileno(), json.dumps(report).encode())


if __name__ == "__main__":
    main()
