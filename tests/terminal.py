"""Read the output of a pseudo-terminal."""

import os
from contextlib import suppress


def read_until(fd: int, text: str) -> str:
    """Read until the text appears or the other end is closed."""
    output = ""
    with suppress(OSError):
        while text not in output and (chunk := os.read(fd, 65536)):
            output += chunk.decode(errors="replace")
    return output


def read_all(fd: int) -> str:
    """Read until the other end is closed, then close ours."""
    output = ""
    try:
        while chunk := os.read(fd, 65536):
            output += chunk.decode(errors="replace")
    except OSError:  # on Linux: the other end is closed
        pass
    finally:
        os.close(fd)
    return output
