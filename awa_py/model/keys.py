"""Concurrency keys as jobs declare them: a text that may name arguments, `customer:{customer_id}`."""

import json
import re
from collections.abc import Callable

from awa_py.errors import InvalidJob
from awa_py.model.job import check_concurrency_key

_NAME = re.compile(r"\{([^\W\d]\w*)\}")  # any other brace is just a brace

# By name, since every job pays for it: json.loads and json.dumps are several times the work.
_decode = json.JSONDecoder().raw_decode
_encode = json.JSONEncoder(sort_keys=True).encode


class KeyTemplate:
    """Makes the concurrency keys of jobs of one kind."""

    __slots__ = ("_kind", "_parts", "_text", "names")

    def __init__(self, kind: str, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidJob(f"{kind}: concurrency_key is a string, not {type(text).__name__}")
        self._kind = kind
        self._text = text
        self._parts = _NAME.split(text)  # texts, and between each two of them a name
        self.names = tuple(self._parts[1::2])
        if not self.names:
            check_concurrency_key(kind, text)

    def check(self, takes: Callable[[str], bool]) -> None:
        """Fails where it names an argument that jobs of the kind do not take."""
        for name in self.names:
            if not takes(name):
                raise self._no_argument(name)

    def fill(self, args_json: str) -> str:
        """The key of a job with these arguments: a text goes in as it is, anything else as JSON."""
        if not self.names:
            return self._text
        args = _decode(args_json)[0]
        parts = self._parts.copy()
        for place in range(1, len(parts), 2):
            try:
                value = args[parts[place]]
            except KeyError:
                raise self._no_argument(parts[place]) from None
            kind = type(value)
            parts[place] = value if kind is str else str(value) if kind is int else _encode(value)
        return check_concurrency_key(self._kind, "".join(parts))

    def _no_argument(self, name: str) -> InvalidJob:
        return InvalidJob(f'{self._kind}: concurrency_key "{self._text}" names "{name}", which the job does not have')
