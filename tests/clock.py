"""A clock that a test advances by hand."""

from types import SimpleNamespace

import pytest


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def install(self, monkeypatch: pytest.MonkeyPatch, module: str) -> "Clock":
        """Replace the module's `time.monotonic` for the duration of the test."""
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: self.now))
        return self
