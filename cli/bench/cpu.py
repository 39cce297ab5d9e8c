"""How much CPU processes have used, those of PostgreSQL included, where they run on this machine. Linux only."""

import os
import sys
import time
from pathlib import Path

PROC = Path("/proc")
SERVER_NAMES = ("postgres", "postmaster")
TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


def used_ns(pid: int) -> int | None:
    """The CPU time of a living process, whoever's it is, all its threads together.

    From its clock rather than from /proc, which counts in hundredths of a second: too coarse for a short run.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)  # clock_getcpuclockid(3), which Python does not offer
    except OSError:
        return None


def postmaster_of(backend: int) -> int | None:
    """The main process of the server that a backend belongs to; None where it is not one of this machine's."""
    found = _stat(backend)
    if found is None or found[0] not in SERVER_NAMES:
        return None
    parent = int(found[1][1])
    above = _stat(parent)
    return parent if above is not None and above[0] in SERVER_NAMES else None


def family_ns(postmaster: int) -> int | None:
    """The CPU time of a process and of all its children: the living ones, and those that it saw end."""
    ended = _ended_ns(postmaster)
    while ended is not None:
        own = used_ns(postmaster)
        living = sum(used_ns(child) or 0 for child in _children(postmaster))
        before, ended = ended, _ended_ns(postmaster)
        if own is not None and before == ended:  # else one ended meanwhile, and was counted twice, or not at all
            return own + before + living
    return None


def _ended_ns(parent: int) -> int | None:
    """The CPU time of the children that it saw end."""
    stat = _stat(parent)
    return None if stat is None else (int(stat[1][13]) + int(stat[1][14])) * TICK_NS


def _children(parent: int) -> list[int]:
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if (stat := _stat(pid)) is not None and int(stat[1][1]) == parent]


def _stat(pid: int) -> tuple[str, list[str]] | None:
    """A process's name, and the fields after it: its state, its parent, …"""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    head, _, rest = text.rpartition(")")  # the name may hold anything, blanks and brackets too
    return head.partition("(")[2], rest.split()
