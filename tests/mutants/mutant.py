"""A mistake, and the tests that have to notice it."""

from dataclasses import dataclass

SQL = "awa_py/store/sql/"
BASELINE = "schema/0001_baseline/"
INTEGRATION = "tests/integration/"


def ignored(condition: str) -> str:
    """Return `AND …` as a condition that is always true.

    PostgreSQL refuses a statement that does not use one of its values, and any test would notice that.
    """
    return condition.replace("AND ", "AND (", 1) + " OR true)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A mistake: in `file`, `old`, which occurs there once, becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def plant(self, text: str) -> str:
        """Return the file's text with the mistake."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has {text.count(self.old)} times {self.old!r} instead of once")
        return text.replace(self.old, self.new)
