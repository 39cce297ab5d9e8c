"""The process between a worker and a command: it starts the command, and leaves nothing of it behind.

It is started as a script of its own, by path, and imports nothing but the standard library: it comes up fast, whatever
the worker has loaded, and it has one thread, so that it may fork as it likes.

    orders, a line on standard input ──► look for the program ──► run it ──► it ended ──► end what it left ──► report
                                                                   │
      a byte, or the end, of standard input; or the worker is gone ┴──► SIGTERM, and after a while SIGKILL ─────┘

The end of standard input alone would not do: a process that a handler has forked holds the worker's side of it open,
and may outlive the worker. So the worker says when to stop, and the keeper looks whether it still has its parent.

The command writes to the keeper's standard output. The report, one JSON object, goes to standard error, which the
command does not have: `exit_code`, or `signal`, or why it did not run: `refused` for good, `failed` this time.
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
"""What the worker writes after the orders. Any byte would do."""

BURIAL_S = 2.0  # for the kernel to end what was killed
LOOK_S = 0.5  # how often to look whether the worker is gone
POLL_S = 0.01
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Refused(Exception):
    """The command is outside of what is allowed."""


class CommandRunner:
    """Runs one command."""

    def __init__(self, orders: dict[str, Any], worker: int) -> None:
        self._orders = orders
        self._worker = worker
        self._prctl = _prctl()
        self._woken = _listen_to_signals()
        self._child: subprocess.Popen[bytes] | None = None
        self._status: int | None = None  # as waitpid says it

    def run(self) -> dict[str, Any]:
        """Runs the command to its end. The report."""
        try:
            self._start()
        except Refused as refusal:
            return {"refused": str(refusal)}
        except (OSError, subprocess.SubprocessError) as error:
            return {"failed": f"{self._orders['argv'][0]!r} could not be started: {error}"}
        self._wait()
        self._end_leftovers()
        assert self._status is not None
        code = os.waitstatus_to_exitcode(self._status)
        return {"exit_code": code} if code >= 0 else {"signal": -code}

    def _start(self) -> None:
        if self._prctl is not None:
            # Who leaves the command's session to live on is given to us, not to init: none gets away.
            self._prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        argv: list[str] = self._orders["argv"]
        root = os.path.realpath(self._orders["root"])
        _enter(root, self._orders["cwd"])
        program = _find_program(root, argv[0])
        with _stdin(self._orders["stdin"]) as stdin:
            self._child = subprocess.Popen(
                argv,
                executable=program,
                env=self._orders["env"],
                stdin=stdin,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=self._dying_with(os.getpid()),
            )

    def _wait(self) -> None:
        """Until the command has ended, by itself or because nobody wants it any more."""
        lifeline = sys.stdin.fileno()
        kill_at: float | None = None
        while self._status is None:
            if kill_at is None:
                ready, _, _ = select.select([lifeline, self._woken], [], [], LOOK_S)
            else:
                ready, _, _ = select.select([self._woken], [], [], max(0.0, kill_at - time.monotonic()))
            if self._woken in ready:
                os.read(self._woken, 512)
            if kill_at is None and (lifeline in ready or _is_gone(self._worker)):
                kill_at = time.monotonic() + GRACE_S
                self._signal(signal.SIGTERM)
            if kill_at is not None and time.monotonic() >= kill_at:
                self._signal(signal.SIGKILL)
                kill_at += POLL_S
            self._reap()

    def _end_leftovers(self) -> None:
        """What the command left behind: it may hold the output open, and nobody would wait for it."""
        deadline = time.monotonic() + BURIAL_S
        self._signal_group(signal.SIGKILL)
        while self._reap() and time.monotonic() < deadline:
            self._signal(signal.SIGKILL)
            time.sleep(POLL_S)

    def _reap(self) -> bool:
        """Takes note of who has ended. Whether anybody is left."""
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
        """To all of the command's processes, also those that left its session."""
        self._signal_group(number)
        for pid in _descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _signal_group(self, number: signal.Signals) -> None:
        assert self._child is not None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, number)

    def _dying_with(self, parent: int) -> Callable[[], None] | None:
        """What makes the kernel end the command where somebody kills its keeper."""
        prctl = self._prctl
        if prctl is None:
            return None

        def bind() -> None:
            prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

        return bind


def _enter(root: str, cwd: str | None) -> None:
    """Goes into the directory, and then looks where that is: nobody can put a link in its place any more."""
    os.chdir(root)
    if cwd is None:
        return
    try:
        os.chdir(cwd)
    except OSError as error:
        raise OSError(f"cwd {cwd!r}: {error.strerror}") from None
    if not _is_inside(os.getcwd(), root):
        raise Refused(f"cwd {cwd!r} is outside of {root}")


def _find_program(root: str, name: str) -> str:
    """The program's real path, which is inside of the root. A bare name is one of ROOT/bin, or of ROOT."""
    places = [name] if "/" in name else [os.path.join(root, "bin", name), os.path.join(root, name)]
    for place in places:
        path = os.path.realpath(place)
        if not _is_inside(path, root):
            raise Refused(f"program {name!r} is outside of {root}")
        with suppress(FileNotFoundError, NotADirectoryError):
            mode = os.stat(path).st_mode
            if stat.S_ISREG(mode) and os.access(path, os.X_OK):
                return path
            raise OSError(f"{path} is no program: make it executable")
    raise OSError(f"there is no such program in {root}" + ("" if "/" in name else " or its bin"))


def _is_inside(path: str, root: str) -> bool:
    return os.path.commonpath([path, root]) == root


def _stdin(text: str | None) -> IO[bytes]:
    """A file, not a pipe: whether the command reads it or not, nobody waits."""
    if text is None:
        return open(os.devnull, "rb")
    file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(text.encode())
    file.seek(0)
    return file


def _descendants(ancestor: int) -> list[int]:
    """All processes below this one, where /proc tells."""
    children: dict[int, list[int]] = {}
    with suppress(FileNotFoundError):
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                # pid (name) state ppid …, and a name may hold anything
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    below = [ancestor]
    while below:
        below = [child for pid in below for child in children.get(pid, [])]
        found += below
    return found


def _prctl() -> Callable[..., int] | None:
    return ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None


def _listen_to_signals() -> int:
    """What can be read when a child has ended."""
    # Those that are sent to everybody at once are the worker's business: it says when to stop. By a handler, since
    # the command would inherit SIG_IGN.
    for unheeded in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(unheeded, lambda *_: None)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _is_gone(worker: int) -> bool:
    """By the pid that the worker gave, not by the parent at the start: it may have been gone by then."""
    return os.getppid() != worker


def _read_orders(worker: int) -> dict[str, Any] | None:
    """None: the worker is gone, or changed its mind."""
    text = b""
    while b"\n" not in text:
        ready, _, _ = select.select([sys.stdin.fileno()], [], [], LOOK_S)
        if _is_gone(worker):
            return None
        if ready:
            part = os.read(sys.stdin.fileno(), 1 << 16)
            if not part:
                return None
            text += part
    line, _, stop = text.partition(b"\n")
    orders: dict[str, Any] | None = None if stop else json.loads(line)
    return orders


def main() -> None:
    worker = int(sys.argv[1])
    orders = _read_orders(worker)
    if orders is not None:
        report = CommandRunner(orders, worker).run()
        with suppress(BrokenPipeError):
            os.write(sys.stderr.fileno(), json.dumps(report).encode())


if __name__ == "__main__":
    main()
