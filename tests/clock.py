"""A clock that a test turns by hand."""

from types import SimpleNamespace

import pytest


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def qualify(self, monkeypatch: pytest.MonkeyPatch, module: str) -> "Clock":
        """The module's `time.monotonic` is this one, for the test."""
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: self.now))
        return self
