"""A progress bar: one line on standard error that is overwritten, on a terminal only.

It is drawn by its own thread, four times a second, so that it does not disturb an event loop that is being measured.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

REFRESH_INTERVAL_S = 0.25
WIDTH = 30
ERASE = "\r\x1b[K"


class Progress:
    """Show the progress of long operations; print nothing unless standard error is a terminal."""

    def __init__(self, *, wanted: bool, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = wanted and self._stream.isatty()

    @contextmanager
    def bar(self, label: str, total: int = 0, done: Callable[[], int] = int) -> Iterator[None]:
        """Show `done` out of `total` while the block runs. Without a total, show only the number."""
        if not self._shown:
            yield
            return
        ended = threading.Event()
        thread = threading.Thread(target=self._draw, args=(ended, label, total, done), name="awa-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._write(ERASE)

    def _draw(self, ended: threading.Event, label: str, total: int, done: Callable[[], int]) -> None:
        while True:
            self._write(ERASE + line(label, total, done()))
            if ended.wait(REFRESH_INTERVAL_S):
                return

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # the terminal was closed
            self._shown = False


def line(label: str, total: int, done: int) -> str:
    """Return e.g. `drain ━━━━━━━━━╌╌╌╌╌╌╌╌╌╌ 6,000 of 20,000` or `drain … 6,000`."""
    if not total:
        return f"{label} … {done:,}" if done else f"{label} …"
    done = min(done, total)
    full = WIDTH * done // total
    return f"{label} {'━' * full}{'╌' * (WIDTH - full)} {done:,} of {total:,}"
