"""How far it has come: one line on standard error that is written over, on a terminal only.

From a thread of its own, four times a second, by hand: the loop that is being measured is not to be disturbed by it.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

EVERY_S = 0.25
WIDTH = 30
ERASE = "\r\x1b[K"


class Progress:
    """A line for each thing that takes a while; silent where nobody would see it."""

    def __init__(self, *, wanted: bool, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = wanted and self._stream.isatty()

    @contextmanager
    def bar(self, label: str, total: int = 0, done: Callable[[], int] = int) -> Iterator[None]:
        """Shows how much is done of the total, as long as the block runs; without a total, how much, if anything."""
        if not self._shown:
            yield
            return
        over = threading.Event()
        thread = threading.Thread(target=self._draw, args=(over, label, total, done), name="awa-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._write(ERASE)

    def _draw(self, over: threading.Event, label: str, total: int, done: Callable[[], int]) -> None:
        while True:
            self._write(ERASE + line(label, total, done()))
            if over.wait(EVERY_S):
                return

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # the terminal is gone: so is whoever looked
            self._shown = False


def line(label: str, total: int, done: int) -> str:
    """`drain ━━━━━━━━━╌╌╌╌╌╌╌╌╌╌ 6,000 of 20,000`, or `drain … 6,000`"""
    if not total:
        return f"{label} … {done:,}" if done else f"{label} …"
    done = min(done, total)
    full = WIDTH * done // total
    return f"{label} {'━' * full}{'╌' * (WIDTH - full)} {done:,} of {total:,}"
