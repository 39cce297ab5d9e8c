"""The supervisor: runs several processes of one command (`awa worker --processes N`).

    supervisor ──signals───► N children, each in its own process group, so that Ctrl-C reaches each only once
               ──lifeline──► a pipe: when the supervisor ends, its children stop as if by SIGTERM
               ◄──reports─── a pipe: each child reports that it has started and, under systemd, its status from then on

A child that dies is restarted, after a delay that grows. A child that exits with 0 has finished its work (--burst).
If the first start fails with wrong usage, or no child ever starts, the supervisor gives up: a retry would not help.

Under systemd, all processes are one service, which is ready when each of them is. A child that does not report for
the watchdog's period is killed, and restarted like one that died.
"""

import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType

from awa_py.errors import AwaError, ConfigError
from awa_py.observability.metrics import ProcessStats
from awa_py.systemd.notifier import EXTENSION_S, STOPPING, Notifier, reloading
from awa_py.systemd.reload import Reload
from awa_py.worker.processes.child_process import ChildProcess
from awa_py.worker.processes.lifeline import LIFELINE_VARIABLE, lifeline, watch_supervisor
from awa_py.worker.processes.status_pipe import StatusReporter, read_reports, status_pipe
from awa_py.worker.processes.systemd_status import SystemdStatus

logger = logging.getLogger("awa.supervisor")

INDEX_VARIABLE = "AWA_PROCESS_INDEX"  # from 0
SOCKET_VARIABLE = "AWA_METRICS_FD"  # the listening socket on which a process serves its metrics
LOOPBACK = "127.0.0.1"

FIRST_RESTART_DELAY_S = 0.5
MAX_RESTART_DELAY_S = 30.0
FAILURES_RESET_S = 60.0  # after this time of running, earlier failures do not count
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP)
WRONG_USAGE = 2
MAX_SIGNAL_WAIT_S = 1.0  # a signal that arrives right before the queue's get() blocks does not interrupt it


class Supervisor:
    """Keeps N processes of a command running, restarts those that die, and passes signals on to all."""

    def __init__(
        self,
        command: Sequence[str],
        processes: int,
        env: Mapping[str, str] | None = None,
        *,
        with_metrics: bool = False,
        notifier: Notifier | None = None,
        reload: Reload | None = None,
    ) -> None:
        """`with_metrics`: give each process a loopback socket on which it serves its metrics and health."""
        if processes < 1:
            raise ConfigError(f"processes must be 1 or more, not {processes}")
        self._command = list(command)
        self._env = dict(os.environ if env is None else env)
        self.children = [
            ChildProcess(number, socket.create_server((LOOPBACK, 0)) if with_metrics else None)
            for number in range(1, processes + 1)
        ]
        self._signals: SimpleQueue[int] = SimpleQueue()  # its put() may interrupt its get(), as a signal handler does
        self._systemd = SystemdStatus(notifier or Notifier(), self.children)
        self._reload = reload
        self._lifeline_fd = self._report_fd = self._child_report_fd = -1
        self._stopping = False
        self._exit_code = 0

    def run(self) -> int:
        """Run until all processes have ended. Return 0 after a stop or if all exited with 0, else the failure's code.

        Call it in the main thread: it handles SIGTERM, SIGINT, SIGCHLD and SIGHUP meanwhile.
        """
        with self._handle_signals(), lifeline() as self._lifeline_fd, status_pipe() as pipe:
            self._report_fd, self._child_report_fd = pipe
            with signals_for_main_thread():
                watch_supervisor()  # this supervisor may have one itself
            try:
                for child in self.children:
                    self._start(child)
                while any(child.is_active for child in self.children):
                    self._wait_for_signal()
                    self._reap()
                    self._restart_due()
                    if self._systemd.enabled:
                        self._read_reports()
                        self._abort_unresponsive()
                        self._systemd.send(phase=self._phase)
            finally:
                self._stop(signal.SIGTERM)
                self._wait_for_children()
        if self._will_restart:
            self._systemd.extend_timeout()
        return self._exit_code

    @contextmanager
    def _handle_signals(self) -> Iterator[None]:
        def put(number: int, _frame: FrameType | None) -> None:
            self._signals.put(number)

        reloads = self._reload is not None and self._reload.enabled
        numbers = [number for number in SIGNALS if reloads or number != signal.SIGHUP]
        previous = {number: signal.signal(number, put) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _start(self, child: ChildProcess) -> None:
        index = child.number - 1
        variables = {
            LIFELINE_VARIABLE: str(self._lifeline_fd),
            INDEX_VARIABLE: str(index),
            **StatusReporter.variable(self._child_report_fd, index, self._systemd.report_interval_s),
        }
        inherited = [self._lifeline_fd, self._child_report_fd]
        if child.metrics_socket is not None:
            variables[SOCKET_VARIABLE] = str(child.metrics_socket.fileno())
            inherited.append(child.metrics_socket.fileno())
        child.restart_at = None
        child.starts += 1
        child.started_at = time.monotonic()
        child.last_report_at = child.started_at + EXTENSION_S  # a start may take that much longer
        child.is_ready = child.is_aborted = False
        child.stats = ProcessStats()
        child.process = subprocess.Popen(
            self._command,
            env=self._env | variables,
            stdin=subprocess.DEVNULL,
            pass_fds=inherited,
            process_group=0,
        )
        logger.info("process %s started: pid %d", self._name(child), child.process.pid)

    def _wait_for_signal(self) -> None:
        """Wait for a signal and handle it. Return without one when a restart or a status is due."""
        due = [child.restart_at for child in self.children if child.restart_at is not None]
        if self._systemd.enabled:
            due.append(self._systemd.due_at)
        try:
            number = self._signals.get(timeout=max(0.0, min(due) - time.monotonic()) if due else MAX_SIGNAL_WAIT_S)
        except Empty:
            return
        if number == signal.SIGHUP:
            self._reload_settings()
        elif number != signal.SIGCHLD:
            self._handle_stop_signal(number)

    def _handle_stop_signal(self, number: int) -> None:
        drains_for_reload = self._will_restart
        if self._reload is not None:
            self._reload.next_environ = None
        if (
            not drains_for_reload
        ):  # otherwise the children drain already, and a second signal would interrupt their jobs
            logger.info("sending %s to all processes", signal.Signals(number).name)
            self._stop(number)
        self._systemd.send(STOPPING, phase=self._phase)

    def _reload_settings(self) -> None:
        """Stop all processes for a restart if the new settings are valid. Otherwise change nothing."""
        reload = self._reload
        if reload is None or (self._stopping and reload.next_environ is None):
            return
        self._systemd.send(*reloading(), phase="reloading")
        self._systemd.extend_timeout()
        try:
            reload.check()
        except AwaError as error:
            logger.error("reload failed, the current settings stay in use: %s", error)
        if reload.next_environ is None:
            self._systemd.send_reload_failed()
        elif not self._stopping:
            logger.info("the new settings are valid: restarting after the running jobs have ended")
            self._stop(signal.SIGTERM)

    def _stop(self, number: int) -> None:
        """Send the signal to all children, and restart none from now on."""
        self._stopping = True
        for child in self.children:
            child.restart_at = None
            if child.process is not None:
                child.process.send_signal(number)

    def _reap(self) -> None:
        for child in self.children:
            code = None if child.process is None else child.process.poll()
            if code is not None:
                self._handle_exit(child, code)

    def _handle_exit(self, child: ChildProcess, code: int) -> None:
        child.process = None
        if self._stopping or code == 0:
            logger.info("process %s ended: %s", self._name(child), _describe_exit(code))
            return
        self._read_reports()
        if child.starts == 1:
            child.failed_to_start = code in (1, WRONG_USAGE) and not child.has_started
        if (child.starts == 1 and code == WRONG_USAGE) or all(each.failed_to_start for each in self.children):
            self._give_up(child, code)
        else:
            self._schedule_restart(child, code)

    def _give_up(self, child: ChildProcess, code: int) -> None:
        logger.error("process %s could not start (%s): giving up", self._name(child), _describe_exit(code))
        self._exit_code = code
        self._stop(signal.SIGTERM)

    def _schedule_restart(self, child: ChildProcess, code: int) -> None:
        child.failures = 1 if child.age_s >= FAILURES_RESET_S else child.failures + 1
        delay_s = restart_delay_s(child.failures)
        child.restart_at = time.monotonic() + delay_s
        logger.warning("process %s died: %s; restarting it in %.3g s", self._name(child), _describe_exit(code), delay_s)

    def _restart_due(self) -> None:
        now = time.monotonic()
        for child in self.children:
            if child.restart_at is not None and child.restart_at <= now:
                self._start(child)

    def _read_reports(self) -> None:
        for report in read_reports(self._report_fd):
            child = self.children[report.index]
            child.has_started = child.has_started or report.has_started
            child.is_ready = report.is_ready
            child.last_report_at = time.monotonic()
            child.stats = report.stats

    def _abort_unresponsive(self) -> None:
        """Kill children that have not reported for the watchdog's period: first with SIGABRT, for a traceback."""
        now, timeout_s = time.monotonic(), self._systemd.watchdog_s
        for child in self.children:
            if timeout_s is not None and child.process is not None and now - child.last_report_at > timeout_s:
                logger.error("process %s has not responded for %.3g s: killing it", self._name(child), timeout_s)
                child.process.send_signal(signal.SIGKILL if child.is_aborted else signal.SIGABRT)
                child.process.send_signal(signal.SIGCONT)
                child.last_report_at, child.is_aborted = now, True

    @property
    def _will_restart(self) -> bool:
        return self._reload is not None and self._reload.next_environ is not None

    @property
    def _phase(self) -> str:
        if not self._stopping:
            return ""
        return "reloading" if self._will_restart else "stopping"

    def _wait_for_children(self) -> None:
        for child in self.children:
            if child.process is not None:  # only after an error of the supervisor itself
                child.process.wait()

    def _name(self, child: ChildProcess) -> str:
        return f"{child.number} of {len(self.children)}"


@contextmanager
def signals_for_main_thread() -> Iterator[None]:
    """Block signals in threads that are started meanwhile: delivered there, they would not wake the supervisor."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def restart_delay_s(failures: int) -> float:
    """Return the delay before the next start after this number of failures in a row."""
    return float(min(FIRST_RESTART_DELAY_S * 2 ** min(failures - 1, 30), MAX_RESTART_DELAY_S))


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
