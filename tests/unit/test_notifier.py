"""Messages to NOTIFY_SOCKET."""

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from awa_py.systemd.notifier import READY, WATCHDOG, Notifier, extend_timeout, reloading, status


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(10)
        yield receiver


def test_lines_are_sent_in_one_datagram(receiver: socket.socket) -> None:
    assert Notifier(receiver.getsockname()).send(READY, status("2 running,\n3 done"), extend_timeout(1.5))
    assert receiver.recv(4096) == b"READY=1\nSTATUS=2 running, 3 done\nEXTEND_TIMEOUT_USEC=1500000"


def test_notifier_supports_abstract_sockets(tmp_path: Path) -> None:
    name = f"awa-test-{os.getpid()}-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        receiver.settimeout(10)
        assert Notifier(f"@{name}").send(WATCHDOG)
        assert receiver.recv(4096) == b"WATCHDOG=1"


def test_notifier_without_a_socket_is_disabled() -> None:
    notifier = Notifier.from_environ({})
    assert not notifier.enabled
    assert notifier.watchdog_s is None
    assert notifier.send(READY)


def test_send_to_a_missing_socket_returns_false(tmp_path: Path) -> None:
    assert not Notifier(str(tmp_path / "nowhere")).send(READY)


def test_send_does_not_block_on_a_full_socket(receiver: socket.socket) -> None:
    notifier = Notifier(receiver.getsockname())
    started = time.monotonic()
    while notifier.send(WATCHDOG):
        assert time.monotonic() - started < 30, "the socket's queue never filled up"
    assert time.monotonic() - started < 30


def test_notifier_removes_its_variables_from_the_environment(receiver: socket.socket) -> None:
    environ = {
        "NOTIFY_SOCKET": receiver.getsockname(),
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
def test_watchdog_applies_only_to_the_process_it_names(usec: str, pid: str, watchdog_s: float | None) -> None:
    notifier = Notifier.from_environ({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": usec, "WATCHDOG_PID": pid})
    assert notifier.watchdog_s == watchdog_s
    assert notifier.interval_s == (5 if watchdog_s is None else 1)


def test_reloading_message_has_the_monotonic_time() -> None:
    first, second = reloading()
    assert first == "RELOADING=1"
    assert abs(int(second.removeprefix("MONOTONIC_USEC=")) / 1e6 - time.monotonic()) < 10
