"""What systemd is told: a datagram with a few lines to the socket that NOTIFY_SOCKET names."""

import logging
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Self

logger = logging.getLogger("awa.systemd")

SOCKET_VARIABLE = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE = "WATCHDOG_USEC"
WATCHDOG_PID_VARIABLE = "WATCHDOG_PID"
VARIABLES = (SOCKET_VARIABLE, WATCHDOG_VARIABLE, WATCHDOG_PID_VARIABLE)

READY = "READY=1"
STOPPING = "STOPPING=1"
WATCHDOG = "WATCHDOG=1"

SEND_TIMEOUT_S = 1.0  # systemd may be busy, but must not hold us up
INTERVAL_S = 5.0
STARTUP_INTERVAL_S = 0.25  # while it starts: somebody waits for it
EXTENSION_S = 60.0


class Notifier:
    """Tells systemd how this process is. Without a socket, nobody wants to know, and nothing is sent."""

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_s = watchdog_s

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str]) -> Self:
        """The one that the environment names. It is no longer named there: jobs start processes of their own."""
        address, watchdog_us, watchdog_pid = (environ.pop(name, "") for name in VARIABLES)
        is_watched = watchdog_us.isdecimal() and int(watchdog_us) and watchdog_pid in ("", str(os.getpid()))
        return cls(address, int(watchdog_us) / 1e6 if is_watched else None)

    @property
    def enabled(self) -> bool:
        return bool(self._address)

    @property
    def interval_s(self) -> float:
        """How often to tell: several times within the watchdog's patience."""
        return INTERVAL_S if self.watchdog_s is None else min(INTERVAL_S, self.watchdog_s / 4)

    def send(self, *lines: str) -> bool:
        """Sends the lines together. Whether they went out, or nobody wants them."""
        if not self.enabled:
            return True
        message = "\n".join(" ".join(line.split()) for line in lines)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
                end.settimeout(SEND_TIMEOUT_S)
                end.sendto(message.encode(), self._address)
        except OSError as error:
            logger.debug("systemd could not be told %r: %s", message, error)
            return False
        return True


def status(text: str) -> str:
    """The line that `systemctl status` shows."""
    return f"STATUS={text}"


def extend_timeout(seconds: float) -> str:
    """Asks for more time, from now on, before a start, a reload or a stop counts as failed."""
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}"


def reloading() -> tuple[str, str]:
    """Settings are being read again. Newer versions of systemd want to know since when, by this clock."""
    return "RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"
