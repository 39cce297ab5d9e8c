"""Locks between processes, with flock. The kernel releases a lock when its holder dies."""

import fcntl
import os
import time
from pathlib import Path

from awa_py.embedded.guardian import open_private

SHARED = fcntl.LOCK_SH
EXCLUSIVE = fcntl.LOCK_EX

POLL_S = 0.02


def open_lock(path: Path) -> int:
    """Open a lock file, create it if missing, and return its descriptor. This does not lock it."""
    return open_private(path, os.O_RDWR | os.O_CREAT)


def try_lock(fd: int, kind: int) -> bool:
    """Acquire the lock if it is free. A failed conversion between shared and exclusive releases the held lock."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_lock(fd: int, kind: int, timeout_s: float) -> bool:
    """Wait for the lock. Return False if it is not free within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not try_lock(fd, kind):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
