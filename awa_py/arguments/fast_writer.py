"""Arguments that are JSON already, written in one step: the ordinary call, and the one that has to be fast."""

from collections.abc import Callable, Mapping
from json.encoder import encode_basestring
from math import isfinite
from types import NoneType
from typing import Any

_Write = Callable[[Any], str]


def _float(value: float) -> str:
    if not isfinite(value):
        raise ValueError(value)
    return repr(value)


_WRITERS: dict[type, _Write] = {
    NoneType: lambda value: "null",
    bool: lambda value: "true" if value else "false",
    int: repr,
    float: _float,
    str: encode_basestring,
}


class PlainWriter:
    """Writes a call's arguments as compact JSON, where each is a scalar that needs no conversion.

    Everything else it leaves to `Signature.dump` and `dumps`, which give the same text more slowly, or say what is
    wrong.
    """

    def __init__(self, plain: Mapping[str, frozenset[type]], needed: frozenset[str]) -> None:
        self._members = {
            name: (f"{encode_basestring(name)}:", {cls: _WRITERS[cls] for cls in classes})
            for name, classes in plain.items()
        }
        self._needed = needed

    def write(self, given: Mapping[str, object], limit: int) -> str | None:
        """The JSON, at most `limit` bytes; None where this call is not as plain as that."""
        written: list[str] = []
        try:
            for name, value in given.items():
                key, writers = self._members[name]
                written.append(key + writers[type(value)](value))
            text = f"{{{','.join(written)}}}"
            size = len(text) if text.isascii() else len(text.encode())
        except (KeyError, ValueError):
            return None
        if size > limit or "\\u0000" in text or not (len(given) == len(self._members) or self._needed <= given.keys()):
            return None
        return text
