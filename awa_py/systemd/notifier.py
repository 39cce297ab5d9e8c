"""sd_notify: status messages to systemd, as datagrams to the socket in NOTIFY_SOCKET."""

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

SEND_TIMEOUT_S = 1.0  # a busy systemd must not block us
INTERVAL_S = 5.0
STARTUP_INTERVAL_S = 0.25  # during startup, since `systemctl start` waits
EXTENSION_S = 60.0


class Notifier:
    """Sends messages to systemd. Without a socket, it sends nothing."""

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_s = watchdog_s

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str]) -> Self:
        """Create it from the variables, and remove them, so that processes that jobs start do not inherit them."""
        address, watchdog_us, watchdog_pid = (environ.pop(name, "") for name in VARIABLES)
        is_watched = watchdog_us.isdecimal() and int(watchdog_us) and watchdog_pid in ("", str(os.getpid()))
        return cls(address, int(watchdog_us) / 1e6 if is_watched else None)

    @property
    def enabled(self) -> bool:
        return bool(self._address)

    @property
    def interval_s(self) -> float:
        """How often to send the status: several times per watchdog period."""
        return INTERVAL_S if self.watchdog_s is None else min(INTERVAL_S, self.watchdog_s / 4)

    def send(self, *lines: str) -> bool:
        """Send the lines in one message. Return False if sending failed."""
        if not self.enabled:
            return True
        message = "\n".join(" ".join(line.split()) for line in lines)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
                connection.settimeout(SEND_TIMEOUT_S)
                connection.sendto(message.encode(), self._address)
        except OSError as error:
            logger.debug("could not send %r to systemd: %s", message, error)
            return False
        return True


def status(text: str) -> str:
    """Return the message for the status line of `systemctl status`."""
    return f"STATUS={text}"


def extend_timeout(seconds: float) -> str:
    """Return the message that extends the timeout of a start, reload or stop from now on."""
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}"


def reloading() -> tuple[str, str]:
    """Return the messages that a reload has started. Newer versions of systemd need its monotonic time."""
    return "RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"
