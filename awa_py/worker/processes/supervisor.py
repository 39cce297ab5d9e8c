"""Several processes of one command: `awa worker --processes N`.

    supervisor ──signals──► N children, each in a process group of its own, so that Ctrl-C reaches it once
               ◄─lifeline── each child blocks on the read end of a pipe: the supervisor's death, however it
                            comes, closes the other end, and the child stops as if by SIGTERM
               ◄─reports─── each child says in another pipe, once it is at work and, under systemd, from then on,
                            how it is

A child that dies is started again, sooner at first, later more slowly. One that exits 0 has done its work (--burst).
Where the very first start fails with wrong usage, or none of them ever got to work, trying again would not help.

Under systemd, all of them are one service: it is ready when each of them is. A child that is silent for as long as the
watchdog's patience is ended, and started again like one that died.
"""

import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType

from awa_py.errors import AwaError, ConfigError
from awa_py.observability.metrics import ProcessStats
from awa_py.systemd.notifier import EXTENSION_S, STOPPING, Notifier, reloading
from awa_py.systemd.reload import Reload
from awa_py.worker.processes import status_pipe
from awa_py.worker.processes.child_process import ChildProcess
from awa_py.worker.processes.status_pipe import StatusReporter
from awa_py.worker.processes.systemd_status import SystemdStatus

logger = logging.getLogger("awa.supervisor")

LIFELINE_VARIABLE = "AWA_SUPERVISOR_FD"
INDEX_VARIABLE = "AWA_PROCESS_INDEX"  # from 0
SOCKET_VARIABLE = "AWA_METRICS_FD"  # a socket that listens, for the process to serve its metrics on
LOOPBACK = "127.0.0.1"

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0  # whoever lived for this long is forgiven its earlier failures
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP)
WRONG_USAGE = 2


class Supervisor:
    """Keeps N copies of a command running: one that died is started again; a signal goes to all."""

    def __init__(
        self,
        command: Sequence[str],
        processes: int,
        env: Mapping[str, str] | None = None,
        *,
        listening: bool = False,
        notifier: Notifier | None = None,
        settings: Reload | None = None,
    ) -> None:
        """`listening`: each process has a loopback socket, to be asked how it is."""
        if processes < 1:
            raise ConfigError(f"processes is 1 or more, not {processes}")
        self._command = list(command)
        self._env = dict(os.environ if env is None else env)
        self.children = [
            ChildProcess(number, socket.create_server((LOOPBACK, 0)) if listening else None)
            for number in range(1, processes + 1)
        ]
        self._events: SimpleQueue[int] = SimpleQueue()  # the numbers of signals; its put() may interrupt its get()
        self._herald = SystemdStatus(notifier or Notifier(), self.children)
        self._settings = settings
        self._reports = -1
        self._stopping = False
        self._exit_code = 0

    def run(self) -> int:
        """Blocks until all have ended: 0 after a stop, or where all exited 0; else the code that says why not.

        For the main thread, since it takes SIGTERM, SIGINT, SIGCHLD and SIGHUP for itself meanwhile.
        """
        with self._hearing_signals(), lifeline() as read_end, status_pipe.pipe() as pipe:
            self._reports, report_end = pipe
            with signals_for_main_thread():
                watch_supervisor()  # a supervisor may have one of its own
            try:
                for child in self.children:
                    self._start(child, read_end, report_end)
                while any(child.at_work for child in self.children):
                    self._take_signals()
                    self._reap()
                    self._start_again(read_end, report_end)
                    if self._herald.is_heard:
                        self._hear_children()
                        self._abort_the_hung()
                        self._herald.tell(phase=self._phase)
            finally:
                self._stop(signal.SIGTERM)
                self._wait()
        if self._begins_anew:
            self._herald.ask_for_time()
        return self._exit_code

    @contextmanager
    def _hearing_signals(self) -> Iterator[None]:
        def note(number: int, _frame: FrameType | None) -> None:
            self._events.put(number)

        reloads = self._settings is not None and self._settings.enabled
        numbers = [number for number in SIGNALS if reloads or number != signal.SIGHUP]
        before = {number: signal.signal(number, note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self, child: ChildProcess, read_end: int, report_end: int) -> None:
        own = {
            LIFELINE_VARIABLE: str(read_end),
            INDEX_VARIABLE: str(child.number - 1),
            **StatusReporter.variable(report_end, child.number - 1, self._herald.hears_every_s),
        }
        passed = [read_end, report_end]
        if child.listener is not None:
            own[SOCKET_VARIABLE] = str(child.listener.fileno())
            passed.append(child.listener.fileno())
        child.start_again_at = None
        child.starts += 1
        child.started_at = time.monotonic()
        child.heard_at = child.started_at + EXTENSION_S  # a start may take so much longer
        child.is_ready = child.is_aborted = False
        child.stats = ProcessStats()
        child.process = subprocess.Popen(
            self._command,
            env=self._env | own,
            stdin=subprocess.DEVNULL,
            pass_fds=passed,
            process_group=0,
        )
        logger.info("process %s started: pid %d", self._name(child), child.process.pid)

    def _take_signals(self) -> None:
        due = [child.start_again_at for child in self.children if child.start_again_at is not None]
        if self._herald.is_heard:
            due.append(self._herald.due)
        try:
            number = self._events.get(timeout=max(0.0, min(due) - time.monotonic()) if due else None)
        except Empty:
            return
        if number == signal.SIGHUP:
            self._reload()
        elif number != signal.SIGCHLD:
            self._told_to_stop(number)

    def _told_to_stop(self, number: int) -> None:
        drains_for_reload = self._begins_anew
        if self._settings is not None:
            self._settings.next_environ = None
        if not drains_for_reload:  # else they have been told already, and a second time would hurry them
            logger.info("%s goes to all processes", signal.Signals(number).name)
            self._stop(number)
        self._herald.tell(STOPPING, phase=self._phase)

    def _reload(self) -> None:
        """Stops all for a new beginning, if the settings are right; else all stays as it was."""
        settings = self._settings
        if settings is None or (self._stopping and settings.next_environ is None):
            return
        self._herald.tell(*reloading(), phase="reloading")
        self._herald.ask_for_time()
        try:
            settings.check()
        except AwaError as error:
            logger.error("reload failed, the current settings stay in use: %s", error)
        if settings.next_environ is None:
            self._herald.tell_that_nothing_changed()
        elif not self._stopping:
            logger.info("the new settings are valid: restarting after the running jobs have ended")
            self._stop(signal.SIGTERM)

    def _stop(self, number: int) -> None:
        """Passes the signal on, and starts nothing any more."""
        self._stopping = True
        for child in self.children:
            child.start_again_at = None
            if child.process is not None:
                child.process.send_signal(number)

    def _reap(self) -> None:
        for child in self.children:
            code = None if child.process is None else child.process.poll()
            if code is not None:
                self._ended(child, code)

    def _ended(self, child: ChildProcess, code: int) -> None:
        child.process = None
        if self._stopping or code == 0:
            logger.info("process %s ended: %s", self._name(child), _wording(code))
            return
        lived_s = time.monotonic() - child.started_at
        self._hear_children()
        if child.starts == 1:
            child.failed_to_start = code in (1, WRONG_USAGE) and not child.got_to_work
        if (child.starts == 1 and code == WRONG_USAGE) or all(each.failed_to_start for each in self.children):
            self._give_up(child, code)
        else:
            self._plan_restart(child, code, lived_s)

    def _hear_children(self) -> None:
        for report in status_pipe.received(self._reports):
            child = self.children[report.index]
            child.got_to_work = child.got_to_work or report.at_work
            child.is_ready = report.is_ready
            child.heard_at = time.monotonic()
            child.stats = report.stats

    def _abort_the_hung(self) -> None:
        """Ends children that have been silent for too long, with a traceback of what they hang in if they can."""
        now, patience_s = time.monotonic(), self._herald.watchdog_s
        for child in self.children:
            if patience_s is not None and child.process is not None and now - child.heard_at > patience_s:
                logger.error("process %s has been silent for %.3g s: ending it", self._name(child), patience_s)
                child.process.send_signal(signal.SIGKILL if child.is_aborted else signal.SIGABRT)
                child.process.send_signal(signal.SIGCONT)
                child.heard_at, child.is_aborted = now, True

    @property
    def _begins_anew(self) -> bool:
        return self._settings is not None and self._settings.next_environ is not None

    @property
    def _phase(self) -> str:
        if not self._stopping:
            return ""
        return "reloading" if self._begins_anew else "stopping"

    def _give_up(self, child: ChildProcess, code: int) -> None:
        logger.error("process %s could not start (%s): giving up", self._name(child), _wording(code))
        self._exit_code = code
        self._stop(signal.SIGTERM)

    def _plan_restart(self, child: ChildProcess, code: int, lived_s: float) -> None:
        child.failures = 1 if lived_s >= STEADY_S else child.failures + 1
        pause_s = restart_pause_s(child.failures)
        child.start_again_at = time.monotonic() + pause_s
        logger.warning("process %s died: %s; it starts again in %.3g s", self._name(child), _wording(code), pause_s)

    def _start_again(self, read_end: int, report_end: int) -> None:
        now = time.monotonic()
        for child in self.children:
            if child.start_again_at is not None and child.start_again_at <= now:
                self._start(child, read_end, report_end)

    def _wait(self) -> None:
        """Only after an error of our own there is somebody to wait for."""
        for child in self.children:
            if child.process is not None:
                child.process.wait()

    def _name(self, child: ChildProcess) -> str:
        return f"{child.number} of {len(self.children)}"


@contextmanager
def signals_for_main_thread() -> Iterator[None]:
    """Threads that are started meanwhile never take a signal: taken there, it would not wake the supervisor up."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def restart_pause_s(failures: int) -> float:
    """How long to wait before the next start, after so many failures in a row."""
    return float(min(FIRST_PAUSE_S * 2 ** min(failures - 1, 30), LONGEST_PAUSE_S))


def watch_supervisor() -> None:
    """For a child: from now on it stops, as if by SIGTERM, when its supervisor is gone. Does nothing without one."""
    number = os.environ.pop(LIFELINE_VARIABLE, None)  # not for the child's own children
    if number is None:
        return
    read_end = int(number)
    os.set_inheritable(read_end, False)
    threading.Thread(target=_stop_at_end_of, args=(read_end,), name="awa-lifeline", daemon=True).start()


def _stop_at_end_of(read_end: int) -> None:
    os.read(read_end, 1)  # nobody ever writes: it returns when nobody can
    logger.warning("the supervisor is gone: stopping")
    # To the main thread itself: sent to the process, it might not wake it up where it waits.
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGTERM)


@contextmanager
def lifeline() -> Iterator[int]:
    """The read end of a pipe, for children to inherit; the write end lives and dies with this process."""
    read_end, write_end = os.pipe()
    try:
        yield read_end
    finally:
        os.close(write_end)
        os.close(read_end)


def _wording(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
