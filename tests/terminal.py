"""What is seen on a terminal."""

import os


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
