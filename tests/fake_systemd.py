"""The receiving end of NOTIFY_SOCKET, for tests."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Message = dict[str, str]


class FakeSystemd:
    """Records the messages of services with their time of arrival."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._received: list[tuple[float, Message]] = []
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        while True:
            text = self._socket.recv(65536).decode()
            if not text:
                return
            message = dict(line.partition("=")[::2] for line in text.splitlines())
            self._received.append((time.monotonic(), message))

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", self.address)
        self._thread.join()
        self._socket.close()

    def env(self, *, watchdog_s: float | None = None) -> dict[str, str]:
        """Return the environment variables of a service."""
        variables = {"NOTIFY_SOCKET": self.address}
        return variables if watchdog_s is None else {**variables, "WATCHDOG_USEC": str(int(watchdog_s * 1e6))}

    @property
    def messages(self) -> list[Message]:
        return [message for _, message in list(self._received)]

    @property
    def statuses(self) -> list[str]:
        return [message["STATUS"] for message in self.messages if "STATUS" in message]

    def count(self, key: str) -> int:
        return sum(key in message for message in self.messages)

    def seconds_since(self, key: str) -> float:
        """Return the seconds since the last message with this key."""
        return time.monotonic() - max(at for at, message in list(self._received) if key in message)

    def since(self, key: str) -> list[Message]:
        """Return the messages from the last one with this key on."""
        messages = self.messages
        last = max((index for index, message in enumerate(messages) if key in message), default=len(messages))
        return messages[last:]

    def has_status(self, text: str) -> Callable[[], bool]:
        return lambda: any(text in status for status in self.statuses)


@contextmanager
def fake_systemd(directory: Path) -> Iterator[FakeSystemd]:
    systemd = FakeSystemd(directory / "notify")
    try:
        yield systemd
    finally:
        systemd.close()
