"""What a process knows about its own health."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One thing that can be wrong: the problem in a sentence (None: all is well), and what else there is to know.

    Where a check is not `required`, the process can work all the same.
    """

    name: str
    problem: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    required: bool = True


def problems(checks: Sequence[HealthCheck]) -> list[str]:
    """What keeps the process from its work, in sentences."""
    return [check.problem for check in checks if check.required and check.problem is not None]
