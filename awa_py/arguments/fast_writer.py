"""A fast path for arguments that are plain JSON scalars: they are written in one step, without conversion."""

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


class FastWriter:
    """Writes the arguments of a call as compact JSON if each is a scalar that needs no conversion.

    For all other calls `Signature.dump` and `dumps` are used. They return the same text more slowly, or raise an error
    that says what is wrong.
    """

    def __init__(self, plain: Mapping[str, frozenset[type]], required: frozenset[str]) -> None:
        self._members = {
            name: (f"{encode_basestring(name)}:", {cls: _WRITERS[cls] for cls in classes})
            for name, classes in plain.items()
        }
        self._required = required

    def write(self, given: Mapping[str, object], limit: int) -> str | None:
        """Return the JSON, or None if a value needs conversion or the JSON is longer than `limit` bytes."""
        written: list[str] = []
        try:
            for name, value in given.items():
                key, writers = self._members[name]
                written.append(key + writers[type(value)](value))
            text = f"{{{','.join(written)}}}"
            size = len(text) if text.isascii() else len(text.encode())
        except (KeyError, ValueError):
            return None
        if (
            size > limit
            or "\\u0000" in text
            or not (len(given) == len(self._members) or self._required <= given.keys())
        ):
            return None
        return text
