"""Locks between processes: files under flock, which the kernel releases when their holder dies."""

import fcntl
import os
import time
from pathlib import Path

SHARED = fcntl.LOCK_SH
EXCLUSIVE = fcntl.LOCK_EX

POLL_S = 0.02


def open_lock(path: Path) -> int:
    """Open a lock file, made if missing, and return its descriptor; it is not locked yet."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(fd: int, kind: int) -> bool:
    """Take the lock if nobody is in the way. A refused change of kind loses the lock that was held."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_lock(fd: int, kind: int, timeout_s: float) -> bool:
    """Take the lock as soon as it is free; False when that takes longer than `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not try_lock(fd, kind):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
