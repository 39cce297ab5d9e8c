"""CPU time of processes on this machine, including PostgreSQL's. Linux only."""

import os
import sys
import time
from pathlib import Path

PROC = Path("/proc")
SERVER_NAMES = ("postgres", "postmaster")
TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


def used_ns(pid: int) -> int | None:
    """Return the CPU time of all threads of a live process, of any user.

    Reads the process's clock, because /proc counts in hundredths of a second: too coarse for a short run.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)  # clock_getcpuclockid(3), which Python does not offer
    except OSError:
        return None


def find_postmaster(backend_pid: int) -> int | None:
    """Return the pid of the backend's postmaster, or None if the backend does not run on this machine."""
    found = _stat(backend_pid)
    if found is None or found[0] not in SERVER_NAMES:
        return None
    parent_pid = int(found[1][1])
    parent = _stat(parent_pid)
    return parent_pid if parent is not None and parent[0] in SERVER_NAMES else None


def used_with_children_ns(pid: int) -> int | None:
    """Return the CPU time of a process and its children, including those that have ended."""
    ended = _ended_children_ns(pid)
    while ended is not None:
        own = used_ns(pid)
        live = sum(used_ns(child) or 0 for child in _children(pid))
        before, ended = ended, _ended_children_ns(pid)
        if own is not None and before == ended:  # otherwise a child ended meanwhile: counted twice, or not at all
            return own + before + live
    return None


def _ended_children_ns(pid: int) -> int | None:
    stat = _stat(pid)
    return None if stat is None else (int(stat[1][13]) + int(stat[1][14])) * TICK_NS


def _children(pid: int) -> list[int]:
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()]
    return [each for each in pids if (stat := _stat(each)) is not None and int(stat[1][1]) == pid]


def _stat(pid: int) -> tuple[str, list[str]] | None:
    """Return a process's name and the fields after it: its state, its parent, …"""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    head, _, rest = text.rpartition(")")  # the name may contain anything, even spaces and parentheses
    return head.partition("(")[2], rest.split()
