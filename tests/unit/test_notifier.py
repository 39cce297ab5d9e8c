"""What goes to NOTIFY_SOCKET."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from awa_py.systemd.notifier import READY, WATCHDOG, Notifier, extend_timeout, reloading, status


@pytest.fixture
def end(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "notify"))
        end.settimeout(10)
        yield end


def test_lines_go_out_together(end: socket.socket) -> None:
    assert Notifier(end.getsockname()).send(READY, status("2 running,\n3 done"), extend_timeout(1.5))
    assert end.recv(4096) == b"READY=1\nSTATUS=2 running, 3 done\nEXTEND_TIMEOUT_USEC=1500000"


def test_an_abstract_socket(tmp_path: Path) -> None:
    name = f"awa-test-{os.getpid()}-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(f"\0{name}")
        end.settimeout(10)
        assert Notifier(f"@{name}").send(WATCHDOG)
        assert end.recv(4096) == b"WATCHDOG=1"


def test_without_a_socket_nothing_happens() -> None:
    notifier = Notifier.from_environ({})
    assert not notifier.enabled
    assert notifier.watchdog_s is None
    assert notifier.send(READY)


def test_a_socket_that_is_gone_is_no_error(tmp_path: Path) -> None:
    assert not Notifier(str(tmp_path / "nowhere")).send(READY)


def test_a_manager_that_does_not_listen_holds_nobody_up(end: socket.socket) -> None:
    notifier = Notifier(end.getsockname())
    began = time.monotonic()
    while notifier.send(WATCHDOG):
        assert time.monotonic() - began < 30, "its queue is never full"
    assert time.monotonic() - began < 30


def test_what_the_environment_says_is_taken_from_it(end: socket.socket) -> None:
    environ = {
        "NOTIFY_SOCKET": end.getsockname(),
        "WATCHDOG_USEC": "60000000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/root",
    }
    notifier = Notifier.from_environ(environ)
    assert notifier.enabled
    assert (notifier.watchdog_s, notifier.interval_s) == (60, 5)
    assert environ == {"HOME": "/root"}


@pytest.mark.parametrize(
    ("usec", "pid", "watchdog_s"),
    [("4000000", "", 4), ("4000000", "1", None), ("0", "", None), ("", "", None), ("soon", "", None)],
)
def test_the_watchdog_is_for_the_process_that_it_names(usec: str, pid: str, watchdog_s: float | None) -> None:
    notifier = Notifier.from_environ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": usec, "WATCHDOG_PID": pid})
    assert notifier.watchdog_s == watchdog_s
    assert notifier.interval_s == (5 if watchdog_s is None else 1)


def test_a_reload_says_when_it_began() -> None:
    first, second = reloading()
    assert first == "RELOADING=1"
    assert abs(int(second.removeprefix("MONOTONIC_USEC=")) / 1e6 - time.monotonic()) < 10
