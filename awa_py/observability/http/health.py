"""Whether a process is well, and if not, why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from awa_py.observability.checks import HealthCheck, problems


@dataclass(frozen=True, slots=True)
class Health:
    """What was checked, and what came of it."""

    checks: Sequence[HealthCheck] = ()

    @property
    def good(self) -> bool:
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """What is wrong, in sentences."""
        return problems(self.checks)

    @property
    def warnings(self) -> list[str]:
        """What is wrong, and keeps nobody from working."""
        return [check.problem for check in self.checks if check.problem is not None and not check.required]

    def answer(self, good: str, bad: str) -> dict[str, Any]:
        """As JSON."""
        return {
            "status": good if self.good else bad,
            "problems": self.problems,
            "warnings": self.warnings,
            "checks": {
                check.name: {
                    "ok": check.problem is None,
                    **({} if check.problem is None else {"problem": check.problem}),
                    **check.details,
                }
                for check in self.checks
            },
        }


class HealthSource(Protocol):
    """A worker, or a candidate: something that knows how it is, and can be asked from any thread."""

    def checks(self) -> list[HealthCheck]: ...


def health_probe(*parts: HealthSource) -> Callable[[], Health]:
    """Asks each part, whenever it is called."""
    return lambda: Health([check for part in parts for check in part.checks()])
