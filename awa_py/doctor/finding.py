"""The findings of checks: a level, a sentence, and what to do."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The severity. Only a problem makes `awa doctor` fail."""

    OK = "ok"
    NOTICE = "notice"  # worth knowing
    WARNING = "warning"  # works now, and may fail later
    PROBLEM = "problem"  # jobs do not run, or may be lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report. The field names are the keys of `awa doctor --json`."""

    level: Level
    group: str
    check: str
    about: str | None  # the index, queue, session …; None if it concerns the whole check
    says: str
    do: str | None  # None if there is nothing to do


class Findings:
    """Collects the findings of one check."""

    def __init__(self, group: str, check: str) -> None:
        self._group = group
        self._check = check
        self.found: list[Finding] = []

    def ok(self, says: str) -> None:
        """Report that the check passed, unless it has other findings."""
        if not self.found:
            self._add(Level.OK, None, says, None)

    def notice(self, about: str | None, says: str, do: str) -> None:
        self._add(Level.NOTICE, about, says, do)

    def warning(self, about: str | None, says: str, do: str) -> None:
        self._add(Level.WARNING, about, says, do)

    def problem(self, about: str | None, says: str, do: str) -> None:
        self._add(Level.PROBLEM, about, says, do)

    def _add(self, level: Level, about: str | None, says: str, do: str | None) -> None:
        self.found.append(Finding(level=level, group=self._group, check=self._check, about=about, says=says, do=do))
