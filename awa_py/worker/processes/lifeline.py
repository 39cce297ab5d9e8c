"""The lifeline: a pipe whose end tells child processes that their parent is gone, even if it was killed.

Children inherit the read end and block on it. The write end closes when the parent ends, however it does.
"""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("awa.supervisor")

LIFELINE_VARIABLE = "AWA_SUPERVISOR_FD"


@contextmanager
def lifeline() -> Iterator[int]:
    """Open the pipe and yield the read end for the children."""
    read_fd, write_fd = os.pipe()
    try:
        yield read_fd
    finally:
        os.close(write_fd)
        os.close(read_fd)


def watch_supervisor() -> None:
    """Stop this process, as SIGTERM does, when its supervisor ends. Does nothing without a supervisor."""
    number = os.environ.pop(LIFELINE_VARIABLE, None)  # processes that jobs start must not inherit it
    if number is None:
        return
    read_fd = int(number)
    os.set_inheritable(read_fd, False)
    threading.Thread(target=_stop_at_end_of, args=(read_fd,), name="awa-lifeline", daemon=True).start()


def _stop_at_end_of(read_fd: int) -> None:
    os.read(read_fd, 1)  # returns when the write end is closed: nothing is ever written
    logger.warning("the supervisor has ended: stopping")
    # To the main thread: a signal to the process might be delivered to another thread, and not wake the main one.
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGTERM)
