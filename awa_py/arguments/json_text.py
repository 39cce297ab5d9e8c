"""JSON text that PostgreSQL can store, and clear errors about values that cannot be stored."""

import json
import math
from typing import Any

from awa_py.arguments.converters import show_key
from awa_py.errors import InvalidJob

Path = tuple[str | int, ...]

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def dumps(value: object, *, what: str, limit: int, noun: str = "arguments") -> str:
    """Return compact JSON that PostgreSQL can store, of at most `limit` bytes.

    `what` and `noun` are for messages: "send_email", "arguments".
    """
    try:
        text = _encode(value)
        size = len(text) if text.isascii() else len(text.encode())
    except RecursionError:
        raise InvalidJob(f"{what}: {noun}: nested too deeply for JSON") from None
    except (TypeError, ValueError) as error:
        path, problem = _fault(value) or ((), str(error))
        raise InvalidJob(f"{what}: {location(path, noun)}: {problem}") from None
    # Either the escape of NUL, or a backslash followed by "u0000": only the value can tell.
    if "\\u0000" in text and (fault := _fault(value)):
        raise InvalidJob(f"{what}: {location(fault[0], noun)}: {fault[1]}")
    if size > limit:
        raise InvalidJob(f"{what}: {_sizes(size, limit, noun)}")
    return text


def location(path: Path, noun: str = "arguments") -> str:
    """Return a text for the part at this path, e.g. `argument "to"` or `arguments.to[0].name`."""
    if noun == "arguments" and len(path) == 1:
        return f'argument "{path[0]}"'
    return noun + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" if show_key(part) == part else "[…]" for part in path
    )


def _fault(value: object, path: Path = (), inside: tuple[int, ...] = ()) -> tuple[Path, str] | None:
    """Return the path of the part that cannot be stored as JSON and the reason, or None."""
    match value:
        case None | bool():
            return None
        case str():
            problem = _text_fault(value)
        case float():
            problem = None if math.isfinite(value) else f"{json.dumps(value)} is not JSON"
        case int():
            problem = _integer_fault(value)
        case dict() | list() | tuple():
            if id(value) in inside:
                return path, "it contains itself"
            return _fault_within(value, path, (*inside, id(value)))
        case _:
            name = type(value).__name__
            problem = f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name} is not JSON-serializable"
    return (path, problem) if problem else None


def _fault_within(
    value: dict[Any, Any] | list[Any] | tuple[Any, ...], path: Path, inside: tuple[int, ...]
) -> tuple[Path, str] | None:
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for part, item in parts:
        if isinstance(value, dict):
            fault = _fault(part)
            if fault or isinstance(part, tuple):
                return path, f"in a key, {fault[1] if fault else 'a tuple is not JSON-serializable'}"
        if fault := _fault(item, (*path, part if isinstance(part, int) else str(part)), inside):
            return fault
    return None


def _text_fault(value: str) -> str | None:
    if "\0" in value:
        return r"\u0000 cannot be stored in PostgreSQL"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return f"the lone surrogate \\u{ord(value[error.start]):04x} cannot be stored in PostgreSQL"
    return None


def _integer_fault(value: int) -> str | None:
    try:
        int.__repr__(value)
    except ValueError:
        return "the integer has too many digits"
    return None


def _sizes(size: int, limit: int, noun: str) -> str:
    shown, shown_limit = _size(size), _size(limit)
    if shown == shown_limit:
        shown, shown_limit = f"{size} bytes", f"{limit} bytes"
    return f"{shown} of {noun}, the limit is {shown_limit}"


def _size(size: int) -> str:
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size} bytes"
