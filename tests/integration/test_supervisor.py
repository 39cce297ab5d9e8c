"""Real processes: a supervisor that runs tiny scripts, which leave files behind to say what happened to them."""

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

# What every script begins with: `say` leaves a file, named after what happened and to whom.
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
    signal.pause()
"""
UNTIL_ASKED_TWICE = """
def stop(number, frame):
    say(f"asked{1 + count('asked1')}")
    if count("asked2"):
        sys.exit(0)
signal.signal(signal.SIGTERM, stop)
say("up")
while True:
    signal.pause()
"""
MAIN = "import logging, sys; from awa_py.worker.processes.supervisor import Supervisor; logging.basicConfig(); " + (
    "sys.exit(Supervisor(sys.argv[2:], int(sys.argv[1])).run())"
)


class Stage:
    """A directory in which a supervisor runs a script, and what can be seen of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: subprocess.Popen[str] | None = None

    def run(self, script: str, processes: int = 2, *, group: bool = False) -> None:
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

    def seen(self, what: str) -> list[int]:
        """The pids of those that said it."""
        said = [path for path in self.directory.glob(f"{what}.*") if not path.name.endswith("-")]
        return [int(path.suffix[1:]) for path in said]

    def ends(self) -> tuple[int, str]:
        _, log = self.supervisor.communicate(timeout=PATIENCE_S)
        return self.supervisor.returncode, log


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    if stage.process is not None:
        stage.process.kill()
        stage.process.communicate()
    for pid in stage.seen("up"):
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_goes_to_all_and_the_end_is_clean(stage: Stage, number: signal.Signals) -> None:
    stage.run(UNTIL_STOPPED, processes=3)
    eventually(lambda: len(stage.seen("up")) == 3)
    indexes = sorted(path.read_text() for path in stage.directory.glob("up.*"))
    stage.supervisor.send_signal(number)
    code, log = stage.ends()
    assert (code, log) == (0, "")
    assert sorted(stage.seen(number.name)) == sorted(stage.seen("up"))
    assert indexes == ["0", "1", "2"]


def test_the_second_signal_goes_to_all_too(stage: Stage) -> None:
    stage.run(UNTIL_ASKED_TWICE, processes=1)
    eventually(lambda: stage.seen("up"))
    stage.supervisor.send_signal(signal.SIGTERM)
    eventually(lambda: stage.seen("asked1"))
    stage.supervisor.send_signal(signal.SIGTERM)
    assert stage.ends()[0] == 0
    assert stage.seen("asked2")


def test_a_signal_to_the_group_reaches_each_child_once(stage: Stage) -> None:
    """Ctrl-C in a terminal is one: children that were in the group would hear it twice, and hurry."""
    stage.run(UNTIL_ASKED_TWICE, processes=1, group=True)
    eventually(lambda: stage.seen("up"))
    os.killpg(stage.supervisor.pid, signal.SIGTERM)
    eventually(lambda: stage.seen("asked1"))
    (child,) = stage.seen("up")
    assert os.getpgid(child) == child
    stage.supervisor.send_signal(signal.SIGTERM)
    assert stage.ends()[0] == 0


def test_a_killed_child_is_started_again(stage: Stage) -> None:
    stage.run(UNTIL_STOPPED)
    eventually(lambda: len(stage.seen("up")) == 2)
    os.kill(stage.seen("up")[0], signal.SIGKILL)
    eventually(lambda: len(stage.seen("up")) == 3)
    stage.supervisor.terminate()
    code, log = stage.ends()
    assert code == 0
    assert "of 2 died: killed by SIGKILL; restarting it in 0.5 s" in log


def test_a_child_that_fails_after_others_could_start_is_started_again(stage: Stage) -> None:
    stage.run('say("tried"); sys.exit(1 if os.environ["AWA_PROCESS_INDEX"] == "0" else None)\n')
    eventually(lambda: len(stage.seen("tried")) >= 3)
    stage.supervisor.terminate()
    code, log = stage.ends()
    assert code == 0
    assert "process 1 of 2 died: exit code 1" in log


def test_children_that_are_done_are_not_started_again(stage: Stage) -> None:
    stage.run('say("up")')
    assert stage.ends() == (0, "")
    assert len(stage.seen("up")) == 2


def test_a_stop_while_a_child_waits_for_its_next_start(stage: Stage) -> None:
    stage.run('say("up"); os.kill(os.getpid(), signal.SIGKILL)', processes=1)
    assert stage.supervisor.stderr is not None
    while "restarting it in 2 s" not in (line := stage.supervisor.stderr.readline()):
        assert line, "the supervisor ended"
    stage.supervisor.terminate()
    assert stage.ends()[0] == 0
    assert len(stage.seen("up")) == 3


def test_wrong_usage_at_the_first_start_ends_it(stage: Stage) -> None:
    """One says so, and the others are stopped."""
    stage.run('if os.environ["AWA_PROCESS_INDEX"] == "1": sys.exit(2)\n' + UNTIL_STOPPED, processes=3)
    code, log = stage.ends()
    assert code == 2
    assert "process 2 of 3 could not start (exit code 2): giving up" in log
    assert not any(alive(pid) for pid in stage.seen("up"))


def test_all_that_cannot_start_end_it(stage: Stage) -> None:
    stage.run('say("tried"); sys.exit(1)', processes=2)
    code, log = stage.ends()
    assert code == 1
    assert "giving up" in log


def test_all_that_cannot_start_end_it_though_some_tried_again(stage: Stage) -> None:
    """One is slower: the other was started again in the meantime, in vain."""
    stage.run(
        'say("tried")\n'
        'while os.environ["AWA_PROCESS_INDEX"] == "1" and count("tried") < 4:\n'
        "    time.sleep(0.02)\n"
        "sys.exit(1)"
    )
    code, log = stage.ends()
    assert code == 1
    assert "process 2 of 2 could not start (exit code 1): giving up" in log


def test_all_that_die_at_work_are_started_again(stage: Stage) -> None:
    """A job that kills its process must not take the supervisor with it."""
    stage.run(
        "from awa_py.worker.processes.status_pipe import ProcessStats, StatusReporter\n"
        "StatusReporter.from_environ().send(ProcessStats(), has_started=True, is_ready=True); say('up'); sys.exit(1)"
    )
    eventually(lambda: len(stage.seen("up")) >= 5)
    stage.supervisor.terminate()
    code, log = stage.ends()
    assert code == 0
    assert "giving up" not in log


def test_wrong_usage_later_on_does_not_end_it(stage: Stage) -> None:
    """What worked once may work again: the database's schema was newer for a moment, say."""
    stage.run('say("tried"); sys.exit(2 if count("tried") == 2 else 0 if count("tried") == 3 else 3)', processes=1)
    assert stage.ends()[0] == 0
    assert len(stage.seen("tried")) == 3


def test_no_child_survives_a_killed_supervisor(stage: Stage) -> None:
    stage.run(UNTIL_STOPPED, processes=3)
    eventually(lambda: len(stage.seen("up")) == 3)
    stage.supervisor.kill()
    stage.supervisor.wait()
    eventually(lambda: not any(alive(pid) for pid in stage.seen("up")))
    assert sorted(stage.seen("SIGTERM")) == sorted(stage.seen("up"))


def test_a_command_that_does_not_exist_leaves_nothing_behind() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(FileNotFoundError):
        Supervisor(["/nowhere/awa"], 2).run()
    assert signal.getsignal(signal.SIGTERM) == before


def test_pauses_grow_and_are_bounded() -> None:
    assert [restart_delay_s(failures) for failures in (1, 2, 3, 6, 7, 8, 1000)] == [0.5, 1, 2, 16, 30, 30, 30]


def test_at_least_one_process() -> None:
    with pytest.raises(ConfigError, match="processes must be 1 or more, not 0"):
        Supervisor(["true"], 0)
