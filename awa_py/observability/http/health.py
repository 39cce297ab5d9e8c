"""Combine health checks into the answer of /healthz and /readyz."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from awa_py.observability.checks import HealthCheck, problems


@dataclass(frozen=True, slots=True)
class Health:
    """The results of several health checks."""

    checks: Sequence[HealthCheck] = ()

    @property
    def good(self) -> bool:
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """Problems of required checks."""
        return problems(self.checks)

    @property
    def warnings(self) -> list[str]:
        """Problems of checks that are not required."""
        return [check.problem for check in self.checks if check.problem is not None and not check.required]

    def answer(self, good: str, bad: str) -> dict[str, Any]:
        """Return the JSON body of the HTTP answer."""
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
    """Something with health checks, e.g. a worker or a candidate. `checks` is safe from any thread."""

    def checks(self) -> list[HealthCheck]: ...


def health_probe(*sources: HealthSource) -> Callable[[], Health]:
    """Return a function that runs the checks of all sources."""
    return lambda: Health([check for source in sources for check in source.checks()])
