"""`awa demo` as a real process. It must clean up, whatever ends it."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.terminal import read_all

pytestmark = pytest.mark.chaos

TIMEOUT_S = 60.0


class Demo:
    """A running demo. All of its processes and files are found by its own temporary directory."""

    def __init__(self, *arguments: str, temporary: Path) -> None:
        self.temporary = temporary
        self.output = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "awa_cli", "demo", *arguments],
            env={**os.environ, "TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.watchdog = threading.Timer(2 * TIMEOUT_S, self.process.kill)
        self.watchdog.start()

    def wait_for(self, text: str) -> None:
        assert self.process.stdout is not None
        while text not in self.output:
            line = self.process.stdout.readline()
            assert line, f"the demo ended without {text!r}:\n{self.output}"
            self.output += line

    def wait(self) -> int:
        """Read all output and return the exit code."""
        assert self.process.stdout is not None
        self.output += self.process.stdout.read()
        return self.process.wait(TIMEOUT_S)

    def leftovers(self) -> list[str]:
        """Return the processes and files that belong to the demo, of any user."""
        found = [str(path) for path in self.temporary.iterdir()]
        for process in psutil.process_iter():
            try:
                if process.environ().get("TMPDIR") == str(self.temporary):
                    found.append(f"{process.pid}: {' '.join(process.cmdline())}")
            except psutil.Error:
                continue
        return found


@pytest.fixture
def temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="demo-") as directory:
        yield Path(directory).resolve()


@pytest.fixture
def demos(temporary: Path) -> Iterator[list[Demo]]:
    started: list[Demo] = []
    yield started
    for demo in started:
        demo.watchdog.cancel()
        demo.process.kill()
        demo.process.communicate()
        assert wait_until_clean(demo) == []


def wait_until_clean(demo: Demo) -> list[str]:
    deadline = time.monotonic() + TIMEOUT_S
    while (leftovers := demo.leftovers()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return leftovers


@pytest.fixture
def demo(demos: list[Demo], temporary: Path) -> Demo:
    demos.append(Demo("--seconds", "12", temporary=temporary))
    return demos[0]


def test_demo_shows_retry_rescue_cron_and_bulk_enqueue(demo: Demo) -> None:
    assert demo.wait() == 0, demo.output
    assert demo.leftovers() == []
    for pattern in (
        r"send_receipt #\d+ failed: MailServerBusy: try later; retry in 1(\.\d+)? s",
        r"send_receipt #\d+ completed on worker pid \d+ on its 2nd attempt",
        r"killed worker pid \d+(, the leader,)? with kill -9 while it ran long_report #\d+",
        r"long_report #\d+ was rescued: heartbeat stale",
        r"schedule rates fired: fetch_rates enqueued",
        r"2,000 count_click jobs enqueued in one call",
        r"\d+ s: [\d,]+ jobs completed \([\d,]+/s\), [1-9]\d* retried, [1-9]\d* rescued, [1-9]\d* enqueued by cron\.",
    ):
        assert re.search(pattern, demo.output), f"{pattern} is not in:\n{demo.output}"


@pytest.mark.parametrize("moment", ["starting PostgreSQL", "starting 2 workers", "killed worker"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_at_any_stage_ends_the_demo_cleanly(demo: Demo, moment: str, number: signal.Signals) -> None:
    demo.wait_for(moment)
    demo.process.send_signal(number)
    assert demo.wait() == 0, demo.output
    assert demo.output.endswith("Nothing is left behind.\n")
    assert demo.leftovers() == []


def test_repeated_ctrl_c_does_not_interrupt_the_cleanup(demo: Demo) -> None:
    demo.wait_for("killed worker")
    while demo.process.poll() is None:
        demo.process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert demo.wait() == 0, demo.output
    assert demo.leftovers() == []


def test_killed_demo_leaves_nothing_behind(demo: Demo) -> None:
    demo.wait_for("killed worker")
    assert len(demo.leftovers()) > 3
    demo.process.kill()
    demo.process.wait()
    assert wait_until_clean(demo) == []


def test_demo_in_an_existing_database_drops_its_schema(
    demos: list[Demo], temporary: Path, fresh_database_url: str
) -> None:
    arguments = ("--seconds", "10", "--database-url", fresh_database_url)
    demos.append(Demo(*arguments, temporary=temporary))
    demos[0].wait_for("jobs enqueued in one call")
    second = Demo(*arguments, temporary=temporary)
    demos.append(second)
    assert second.wait() == 1
    assert "awa: the schema awa_demo already exists" in second.output
    assert demos[0].wait() == 0, demos[0].output
    third = Demo("--seconds", "1", *arguments[2:], temporary=temporary)
    demos.append(third)
    assert third.wait() == 0, third.output


def test_demo_in_a_terminal_is_live(temporary: Path) -> None:
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "awa_cli", "demo", "--seconds", "3"],
        env={**os.environ, "TMPDIR": str(temporary), "TERM": "xterm-256color"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    shown = read_all(controller)
    assert process.wait(TIMEOUT_S) == 0, shown
    assert "Ctrl-C ends the demo" in shown
    assert re.search(r"awa.*demo.*of 00:03\.0", shown)
    assert "reports" in shown
    assert list(temporary.iterdir()) == []
