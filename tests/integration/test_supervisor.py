"""A real supervisor that runs small scripts. They create files that show what happened."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from awa_py.errors import ConfigError
from awa_py.worker.processes.supervisor import Supervisor, restart_delay_s

PATIENCE_S = 30.0

# Every script starts with this. `say` creates a file whose name has the event and the pid.
PRELUDE = """
import os, signal, sys, time
from pathlib import Path
def say(what, text=""):
    path = Path(f"{what}.{os.getpid()}")
    path.with_suffix(path.suffix + "-").write_text(text)
    path.with_suffix(path.suffix + "-").rename(path)
def count(what):
    return len([path for path in Path().glob(what + ".*") if not path.name.endswith("-")])
"""
UNTIL_STOPPED = """
from awa_py.worker.processes.lifeline import watch_supervisor
def stop(number, frame):
    say(signal.Signals(number).name)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
watch_supervisor()
say("up", os.environ["AWA_PROCESS_INDEX"])
while True:
    time.sleep(0.05)  # not signal.pause(), which misses a signal that arrives right before it
"""
UNTIL_ASKED_TWICE = """
def stop(number, frame):
    say(f"asked{1 + count('asked1')}")
    if count("asked2"):
        sys.exit(0)
signal.signal(signal.SIGTERM, stop)
say("up")
while True:
    time.sleep(0.05)  # not signal.pause(), which misses a signal that arrives right before it
"""
MAIN = "import logging, sys; from awa_py.worker.processes.supervisor import Supervisor; logging.basicConfig(); " + (
    "sys.exit(Supervisor(sys.argv[2:], int(sys.argv[1])).run())"
)


class SupervisorRun:
    """A directory in which a supervisor runs a script, and the files of that script."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: subprocess.Popen[str] | None = None

    def start(self, script: str, processes: int = 2, *, group: bool = False) -> None:
        (self.directory / "script.py").write_text(PRELUDE + script)
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, str(processes), sys.executable, "script.py"],
            cwd=self.directory,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0 if group else None,
        )

    @property
    def supervisor(self) -> "subprocess.Popen[str]":
        assert self.process is not None
        return self.process

    def pids(self, event: str) -> list[int]:
        """Return the pids of the processes that reported this event."""
        said = [path for path in self.directory.glob(f"{event}.*") if not path.name.endswith("-")]
        return [int(path.suffix[1:]) for path in said]

    def wait(self) -> tuple[int, str]:
        _, log = self.supervisor.communicate(timeout=PATIENCE_S)
        return self.supervisor.returncode, log


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SupervisorRun]:
    run = SupervisorRun(tmp_path)
    yield run
    if run.process is not None:
        run.process.kill()
        run.process.communicate()
    for pid in run.pids("up"):
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_all_children_and_the_exit_code_is_0(run: SupervisorRun, number: signal.Signals) -> None:
    run.start(UNTIL_STOPPED, processes=3)
    eventually(lambda: len(run.pids("up")) == 3)
    indexes = sorted(path.read_text() for path in run.directory.glob("up.*"))
    run.supervisor.send_signal(number)
    code, log = run.wait()
    assert (code, log) == (0, "")
    assert sorted(run.pids(number.name)) == sorted(run.pids("up"))
    assert indexes == ["0", "1", "2"]


def test_second_signal_goes_to_all_children(run: SupervisorRun) -> None:
    run.start(UNTIL_ASKED_TWICE, processes=1)
    eventually(lambda: run.pids("up"))
    run.supervisor.send_signal(signal.SIGTERM)
    eventually(lambda: run.pids("asked1"))
    run.supervisor.send_signal(signal.SIGTERM)
    assert run.wait()[0] == 0
    assert run.pids("asked2")


def test_signal_to_the_process_group_reaches_each_child_once(run: SupervisorRun) -> None:
    """Ctrl-C sends such a signal. A child in the same group would get it twice, and interrupt its jobs."""
    run.start(UNTIL_ASKED_TWICE, processes=1, group=True)
    eventually(lambda: run.pids("up"))
    os.killpg(run.supervisor.pid, signal.SIGTERM)
    eventually(lambda: run.pids("asked1"))
    (child,) = run.pids("up")
    assert os.getpgid(child) == child
    run.supervisor.send_signal(signal.SIGTERM)
    assert run.wait()[0] == 0


def test_killed_child_is_restarted(run: SupervisorRun) -> None:
    run.start(UNTIL_STOPPED)
    eventually(lambda: len(run.pids("up")) == 2)
    os.kill(run.pids("up")[0], signal.SIGKILL)
    eventually(lambda: len(run.pids("up")) == 3)
    run.supervisor.terminate()
    code, log = run.wait()
    assert code == 0
    assert "of 2 died: killed by SIGKILL; restarting it in 0.5 s" in log


def test_child_that_fails_while_others_run_is_restarted(run: SupervisorRun) -> None:
    run.start('say("tried"); sys.exit(1 if os.environ["AWA_PROCESS_INDEX"] == "0" else None)\n')
    eventually(lambda: len(run.pids("tried")) >= 3)
    run.supervisor.terminate()
    code, log = run.wait()
    assert code == 0
    assert "process 1 of 2 died: exit code 1" in log


def test_child_that_exits_with_0_is_not_restarted(run: SupervisorRun) -> None:
    run.start('say("up")')
    assert run.wait() == (0, "")
    assert len(run.pids("up")) == 2


def test_child_that_waits_for_its_restart_is_not_started_after_a_stop(run: SupervisorRun) -> None:
    run.start('say("up"); os.kill(os.getpid(), signal.SIGKILL)', processes=1)
    assert run.supervisor.stderr is not None
    while "restarting it in 2 s" not in (line := run.supervisor.stderr.readline()):
        assert line, "the supervisor ended"
    run.supervisor.terminate()
    assert run.wait()[0] == 0
    assert len(run.pids("up")) == 3


def test_wrong_usage_at_the_first_start_stops_the_supervisor(run: SupervisorRun) -> None:
    """One child fails, and the others are stopped."""
    run.start('if os.environ["AWA_PROCESS_INDEX"] == "1": sys.exit(2)\n' + UNTIL_STOPPED, processes=3)
    code, log = run.wait()
    assert code == 2
    assert "process 2 of 3 could not start (exit code 2): giving up" in log
    assert not any(is_alive(pid) for pid in run.pids("up"))


def test_supervisor_gives_up_if_no_child_can_start(run: SupervisorRun) -> None:
    run.start('say("tried"); sys.exit(1)', processes=2)
    code, log = run.wait()
    assert code == 1
    assert "giving up" in log


def test_supervisor_gives_up_if_no_child_started_although_one_was_restarted(run: SupervisorRun) -> None:
    """One child is slower: meanwhile the other one was restarted, and failed again."""
    run.start(
        'say("tried")\n'
        'while os.environ["AWA_PROCESS_INDEX"] == "1" and count("tried") < 4:\n'
        "    time.sleep(0.02)\n"
        "sys.exit(1)"
    )
    code, log = run.wait()
    assert code == 1
    assert "process 2 of 2 could not start (exit code 1): giving up" in log


def test_children_that_die_after_their_start_are_restarted(run: SupervisorRun) -> None:
    """A job that kills its process must not stop the supervisor."""
    run.start(
        "from awa_py.worker.processes.status_pipe import ProcessStats, StatusReporter\n"
        "StatusReporter.from_environ().send(ProcessStats(), has_started=True, is_ready=True); say('up'); sys.exit(1)"
    )
    eventually(lambda: len(run.pids("up")) >= 5)
    run.supervisor.terminate()
    code, log = run.wait()
    assert code == 0
    assert "giving up" not in log


def test_wrong_usage_at_a_restart_does_not_stop_the_supervisor(run: SupervisorRun) -> None:
    """A start that worked once may work again, e.g. after the schema was newer for a moment."""
    run.start('say("tried"); sys.exit(2 if count("tried") == 2 else 0 if count("tried") == 3 else 3)', processes=1)
    assert run.wait()[0] == 0
    assert len(run.pids("tried")) == 3


def test_children_stop_when_the_supervisor_is_killed(run: SupervisorRun) -> None:
    run.start(UNTIL_STOPPED, processes=3)
    eventually(lambda: len(run.pids("up")) == 3)
    run.supervisor.kill()
    run.supervisor.wait()
    eventually(lambda: not any(is_alive(pid) for pid in run.pids("up")))
    assert sorted(run.pids("SIGTERM")) == sorted(run.pids("up"))


def test_missing_command_restores_the_signal_handlers() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(FileNotFoundError):
        Supervisor(["/nowhere/awa"], 2).run()
    assert signal.getsignal(signal.SIGTERM) == before


def test_restart_delay_grows_up_to_a_limit() -> None:
    assert [restart_delay_s(failures) for failures in (1, 2, 3, 6, 7, 8, 1000)] == [0.5, 1, 2, 16, 30, 30, 30]


def test_number_of_processes_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="processes must be 1 or more, not 0"):
        Supervisor(["true"], 0)
