"""Which queue a job goes to that names none, as code declares it: by its kind, or by how its kind begins."""

from collections.abc import Mapping

from awa_py.errors import ConfigError
from awa_py.model.job import DEFAULT_QUEUE, MAX_NAME_CHARACTERS, check_queue


class Routes:
    """Queues by pattern: the name of a kind, or the beginning of one and a star. It never changes: `with_route` makes
    another one."""

    __slots__ = ("_queues",)

    def __init__(self, queues: Mapping[str, str] | None = None) -> None:
        self._queues = {check_pattern(pattern): check_queue(queue) for pattern, queue in (queues or {}).items()}

    def with_route(self, pattern: str, queue: str) -> "Routes":
        """These and one more."""
        known = self._queues.get(pattern, queue)
        if known != queue:
            raise ConfigError(f'route "{pattern}" is declared twice: to "{known}" and to "{queue}"')
        return Routes({**self._queues, pattern: queue})

    def queue_for(self, kind: str) -> str:
        """Where jobs of this kind usually go: by the pattern that is the kind, else by the longest that begins it."""
        if kind in self._queues:
            return self._queues[kind]
        fitting = (pattern for pattern in self._queues if pattern.endswith("*") and kind.startswith(pattern[:-1]))
        best = max(fitting, key=len, default=None)
        return DEFAULT_QUEUE if best is None else self._queues[best]


def check_pattern(pattern: str) -> str:
    """`pattern`, where it can be that of a route."""
    if not isinstance(pattern, str):
        raise ConfigError(f"route {pattern!r}: a route's pattern is text")
    if not pattern.strip():
        raise ConfigError('a route\'s pattern cannot be empty: name a kind, or how kinds begin, as in "gh_*"')
    if "*" in pattern[:-1]:
        raise ConfigError(f'route "{pattern}": a star stands only at the end of a pattern, as in "gh_*"')
    if len(pattern) > MAX_NAME_CHARACTERS:
        raise ConfigError(f'route "{pattern[:40]}…": a pattern has at most {MAX_NAME_CHARACTERS} characters')
    if any(ord(character) < 32 or ord(character) == 127 for character in pattern):
        raise ConfigError(f"route {pattern!r}: a pattern cannot hold control characters")
    return pattern
