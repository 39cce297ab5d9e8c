"""Whether a process is ready for work, and if not, why."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Health:
    """What is wrong, in sentences; nothing: the process is ready."""

    problems: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        return not self.problems


class Part(Protocol):
    """A worker, or a candidate: something that knows what it lacks, and can be asked from any thread."""

    def problems(self) -> Sequence[str]: ...


def health_of(*parts: Part) -> Callable[[], Health]:
    """Asks each part, whenever it is called."""
    return lambda: Health(tuple(problem for part in parts for problem in part.problems()))
