"""The routes that code declares: the queue of jobs that name none, by kind or by prefix of the kind."""

from collections.abc import Mapping

from awa_py.errors import ConfigError
from awa_py.model.job import DEFAULT_QUEUE
from awa_py.model.names import MAX_NAME_CHARACTERS, check_queue
from awa_py.text import is_plain


class Routes:
    """Queues by pattern: a kind, or a prefix of kinds and a star. Immutable: `with_route` returns a new object."""

    __slots__ = ("_queues",)

    def __init__(self, queues: Mapping[str, str] | None = None) -> None:
        self._queues = {check_pattern(pattern): check_queue(queue) for pattern, queue in (queues or {}).items()}

    def with_route(self, pattern: str, queue: str) -> "Routes":
        """Return these routes and one more."""
        known = self._queues.get(pattern, queue)
        if known != queue:
            raise ConfigError(f'route "{pattern}" is declared twice: to "{known}" and to "{queue}"')
        return Routes({**self._queues, pattern: queue})

    def queue_for(self, kind: str) -> str:
        """Return the queue for a kind: by the pattern that equals it, else by the longest prefix."""
        if kind in self._queues:
            return self._queues[kind]
        matching = (pattern for pattern in self._queues if pattern.endswith("*") and kind.startswith(pattern[:-1]))
        best = max(matching, key=len, default=None)
        return DEFAULT_QUEUE if best is None else self._queues[best]


def check_pattern(pattern: str) -> str:
    """Return `pattern` if it is valid, or raise ConfigError."""
    if not isinstance(pattern, str):
        raise ConfigError(f"route {pattern!r}: a route's pattern is a string")
    if not pattern.strip():
        raise ConfigError('a route\'s pattern cannot be empty: use a kind, or a prefix with a star, e.g. "gh_*"')
    if "*" in pattern[:-1]:
        raise ConfigError(f'route "{pattern}": a star is allowed only at the end of a pattern, e.g. "gh_*"')
    if len(pattern) > MAX_NAME_CHARACTERS:
        raise ConfigError(f'route "{pattern[:40]}…": a pattern has at most {MAX_NAME_CHARACTERS} characters')
    if not is_plain(pattern):
        raise ConfigError(f"route {pattern!r}: a pattern cannot contain control characters")
    return pattern
