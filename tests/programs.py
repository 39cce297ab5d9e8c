"""Programs that `cmd_exec` runs in tests, and the processes that they have started."""

import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

# Each creates the file `runs` when all of its processes have started.
FAMILIES = {
    "child": "touch runs; exec sleep 3600",
    "grandchild": "sleep 3600 & touch runs; wait",
    "deaf": "trap '' TERM; sleep 3600 & touch runs; while :; do sleep 1; done",
    "own session": "setsid sh -c 'touch runs; exec sleep 3600' & wait",
    "orphan of its own session": "(setsid sh -c 'touch runs; sleep 3600; true' &) ; while :; do sleep 1; done",
    "closed output": "exec >&- 2>&-; touch runs; exec sleep 3600",
    "forker": "touch runs; while :; do (setsid sleep 3600 &); sleep 0.05; done",
}
MARK = "AWA_TEST_MARK"


class Root:
    """A directory with programs. A mark in their environment identifies the processes that they start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mark = uuid4().hex

    @classmethod
    def within(cls, directory: Path) -> "Root":
        (directory / "root").mkdir()
        return cls(directory / "root")

    def script(self, name: str, body: str) -> str:
        """Write a program and return its path for a job's arguments."""
        program = self.path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return f"./{name}"

    def args(self, *argv: str, **others: Any) -> dict[str, Any]:
        return {"argv": list(argv), **others, "env": {MARK: self.mark, **others.get("env", {})}}

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def note(self, name: str) -> Callable[[], bool]:
        """Return a function that returns True once a program has created this file."""
        return lambda: (self.path / name).exists()
