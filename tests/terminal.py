"""What is seen on a terminal."""

import os
from contextlib import suppress


def seen_until(ours: int, text: str) -> str:
    """What is written to a terminal until this text is there, or its other end is closed."""
    shown = ""
    with suppress(OSError):
        while text not in shown and (piece := os.read(ours, 65536)):
            shown += piece.decode(errors="replace")
    return shown


def seen_on(ours: int) -> str:
    """All that is written to a terminal until its other end is closed; ours is closed too, then."""
    shown = ""
    try:
        while piece := os.read(ours, 65536):
            shown += piece.decode(errors="replace")
    except OSError:  # Linux's way of saying that the other end is closed
        pass
    finally:
        os.close(ours)
    return shown
