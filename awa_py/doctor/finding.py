"""What an examination finds: a level, a sentence, and what to do about it."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is. Only a problem makes `awa doctor` fail."""

    OK = "ok"
    NOTICE = "notice"  # worth knowing
    WARNING = "warning"  # goes well today, and may not tomorrow
    PROBLEM = "problem"  # jobs do not run, or may be lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report."""

    level: Level
    group: str
    check: str
    about: str | None  # the index, queue, session …; None: the whole
    says: str
    do: str | None  # None: nothing


class Findings:
    """Where a check writes down what it finds."""

    def __init__(self, group: str, check: str) -> None:
        self._group = group
        self._check = check
        self.findings: list[Finding] = []

    def ok(self, says: str) -> None:
        """All is well; unless something was noted before."""
        if not self.findings:
            self._note(Level.OK, None, says, None)

    def notice(self, about: str | None, says: str, do: str) -> None:
        self._note(Level.NOTICE, about, says, do)

    def warning(self, about: str | None, says: str, do: str) -> None:
        self._note(Level.WARNING, about, says, do)

    def problem(self, about: str | None, says: str, do: str) -> None:
        self._note(Level.PROBLEM, about, says, do)

    def _note(self, level: Level, about: str | None, says: str, do: str | None) -> None:
        self.findings.append(Finding(level=level, group=self._group, check=self._check, about=about, says=says, do=do))
