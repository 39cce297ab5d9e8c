"""A service manager for tests: the other end of NOTIFY_SOCKET."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Message = dict[str, str]


class Manager:
    """Hears what services tell, and keeps it with the time of its arrival."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._end.bind(self.address)
        self._heard: list[tuple[float, Message]] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            text = self._end.recv(65536).decode()
            if not text:
                return
            message = dict(line.partition("=")[::2] for line in text.splitlines())
            self._heard.append((time.monotonic(), message))

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"", self.address)
        self._thread.join()
        self._end.close()

    def env(self, *, watchdog_s: float | None = None) -> dict[str, str]:
        """What a service of this manager finds in its environment."""
        given = {"NOTIFY_SOCKET": self.address}
        return given if watchdog_s is None else {**given, "WATCHDOG_USEC": str(int(watchdog_s * 1e6))}

    @property
    def messages(self) -> list[Message]:
        return [message for _, message in list(self._heard)]

    @property
    def statuses(self) -> list[str]:
        return [message["STATUS"] for message in self.messages if "STATUS" in message]

    def count(self, key: str) -> int:
        return sum(key in message for message in self.messages)

    def silent_s(self, key: str) -> float:
        """How long ago it was said for the last time."""
        return time.monotonic() - max(at for at, message in list(self._heard) if key in message)

    def since(self, key: str) -> list[Message]:
        """What was said from the last message on that had the key."""
        messages = self.messages
        last = max((n for n, message in enumerate(messages) if key in message), default=len(messages))
        return messages[last:]

    def says(self, words: str) -> Callable[[], bool]:
        return lambda: any(words in each for each in self.statuses)


@contextmanager
def manager(directory: Path) -> Iterator[Manager]:
    one = Manager(directory / "notify")
    try:
        yield one
    finally:
        one.close()
