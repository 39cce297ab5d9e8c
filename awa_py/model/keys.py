"""Templates of concurrency keys, which may contain names of arguments: `customer:{customer_id}`."""

import json
import re
from collections.abc import Callable

from awa_py.errors import InvalidJob
from awa_py.model.names import check_concurrency_key

_NAME = re.compile(r"\{([^\W\d]\w*)\}")  # other braces are ordinary characters

# json.loads and json.dumps take several times as long, and every job pays for it.
_decode = json.JSONDecoder().raw_decode
_encode = json.JSONEncoder(sort_keys=True).encode


class KeyTemplate:
    """The template of the concurrency keys of a kind's jobs."""

    __slots__ = ("_kind", "_parts", "_text", "names")

    def __init__(self, kind: str, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidJob(f"{kind}: concurrency_key is a string, not {type(text).__name__}")
        self._kind = kind
        self._text = text
        self._parts = _NAME.split(text)  # literal text and argument names, alternating
        self.names = tuple(self._parts[1::2])
        if not self.names:
            check_concurrency_key(kind, text)

    def check(self, accepts: Callable[[str], bool]) -> None:
        """Raise InvalidJob if the template names an argument that the handler does not accept."""
        for name in self.names:
            if not accepts(name):
                raise self._no_argument(name)

    def fill(self, args_json: str) -> str:
        """Return the key of a job with these arguments. Strings are inserted as they are, other values as JSON."""
        if not self.names:
            return self._text
        args = _decode(args_json)[0]
        parts = self._parts.copy()
        for n in range(1, len(parts), 2):
            try:
                value = args[parts[n]]
            except KeyError:
                raise self._no_argument(parts[n]) from None
            kind = type(value)
            parts[n] = value if kind is str else str(value) if kind is int else _encode(value)
        return check_concurrency_key(self._kind, "".join(parts))

    def _no_argument(self, name: str) -> InvalidJob:
        return InvalidJob(f'{self._kind}: concurrency_key "{self._text}" names "{name}", which the job does not have')
