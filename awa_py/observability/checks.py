"""Health checks of a process, shown at /healthz and /readyz and used for the systemd status."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The result of one check. `problem` is a sentence, or None if the check passed.

    A process can work while a check that is not `required` fails.
    """

    name: str
    problem: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    required: bool = True


def problems(checks: Sequence[HealthCheck]) -> list[str]:
    """Return the problems of the required checks."""
    return [check.problem for check in checks if check.required and check.problem is not None]
