"""The Converter class, and the converters of single values: scalars, literals and enumerations."""

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any
from uuid import UUID

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]
JSON_SCALARS = frozenset({NoneType, bool, int, float, str})
Convert = Callable[[Any], Any]

_MICROSECOND = timedelta(microseconds=1)
_DECIMAL_SECONDS = re.compile(r"(-?)([0-9]{1,14})\.([0-9]{6})")
_SHOWN_CHARACTERS = 40


class Mismatch(Exception):
    """A value that does not fit its annotation: the problem, and the path to it inside the argument."""

    def __init__(self, problem: str, *, near: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.near = near  # right type, wrong part: a better message than "must be A or B"
        self.path: list[str | int] = []

    def inside(self, part: str | int) -> "Mismatch":
        """Prepend a part to the path."""
        self.path.insert(0, part)
        self.near = True
        return self


@dataclass(frozen=True, slots=True)
class Converter:
    """Converts values of one annotation to JSON (`dump`) and back (`load`).

    Values whose type is in `plain` are the same in JSON, and are not converted. `exact` is the annotated class.
    `schema` is a JSON Schema that accepts all JSON that `load` accepts; empty: any JSON.
    """

    name: str
    dump: Convert
    load: Convert
    plain: frozenset[type] = frozenset()
    exact: type | None = None
    schema: Mapping[str, Any] = field(default_factory=dict)


def show(value: object) -> str:
    """Return a short text of a value in the code, e.g. a literal. Never use it for a job's data."""
    shown = f'"{value}"' if isinstance(value, str) else repr(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}…"


def show_key(key: str) -> str:
    """Return a key of a job's data if it is an identifier. Other keys may hold secrets."""
    return key if key.isidentifier() and len(key) <= _SHOWN_CHARACTERS else "…"


def wrong_type(name: str, value: object) -> Mismatch:
    return Mismatch(f"must be {name}, not {'None' if value is None else type(value).__name__}")


def wrong_value(name: str, value: object) -> Mismatch:
    return Mismatch(f"must be {name}, but this {type(value).__name__} is not valid", near=True)


def either(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _native(cls: Any, json_type: str, *, accepts: tuple[Any, ...] = ()) -> Converter:
    """Return the converter of a type that JSON has. Types in `accepts` are converted to it when loaded."""
    name = "None" if cls is NoneType else cls.__name__
    bases = (cls, *accepts)

    def dump(value: Any) -> Any:
        if type(value) in bases:
            return value
        if not isinstance(value, bases) or isinstance(value, bool):
            raise wrong_type(name, value)
        # A subclass, e.g. a member of a StrEnum, is stored as its JSON type.
        return str.__str__(value) if cls is str else int(value) if isinstance(value, int) else float(value)

    def load(value: Any) -> Any:
        if type(value) not in bases:
            raise wrong_type(name, value)
        try:
            return cls(value) if accepts else value
        except OverflowError:
            raise wrong_value(name, value) from None

    return Converter(name, dump, load, plain=frozenset({cls}), exact=cls, schema={"type": json_type})


def text(cls: Any, *, write: Convert, read: Convert, also: tuple[type, ...] = (), form: str | None = None) -> Converter:
    """Return the converter of a type that is a string in JSON. Loading also accepts the types in `also`.

    `form` is the format of the string in JSON Schema.
    """
    name = cls.__name__

    def dump(value: Any) -> Any:
        if not isinstance(value, cls):
            raise wrong_type(name, value)
        return write(value)

    def load(value: Any) -> Any:
        if type(value) is not str and type(value) not in also:
            raise wrong_type(name, value)
        try:
            return read(value)
        except (ValueError, ArithmeticError):
            raise wrong_value(name, value) from None

    schema: dict[str, Any] = {"type": ["string", "number"] if also else "string"}
    return Converter(name, dump, load, exact=cls, schema=schema if form is None else {**schema, "format": form})


def _aware(value: datetime) -> datetime:
    if value.utcoffset() is None:
        raise Mismatch("must be an aware datetime, not a naive one: give it a timezone", near=True)
    return value


def _write_date(value: date) -> str:
    if isinstance(value, datetime):
        raise wrong_type("date", value)
    return value.isoformat()


def _write_time(value: time) -> str:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Mismatch("must be a time without a timezone that depends on the date", near=True)
    return value.isoformat()


def _write_timedelta(value: timedelta) -> int | float | str:
    """Return seconds as a number, or as a decimal string if a float would lose microseconds (centuries)."""
    microseconds = value // _MICROSECOND
    if microseconds % 1_000_000 == 0:
        return microseconds // 1_000_000
    if abs(microseconds) < 2**32 * 1_000_000:  # larger floats are more than a microsecond apart
        return microseconds / 1_000_000
    sign = "-" if microseconds < 0 else ""
    return f"{sign}{abs(microseconds) // 1_000_000}.{abs(microseconds) % 1_000_000:06d}"


def _read_timedelta(value: int | float | str) -> timedelta:
    if not isinstance(value, str):
        return timedelta(seconds=value)
    match = _DECIMAL_SECONDS.fullmatch(value)
    if match is None:
        raise ValueError(value)
    sign, seconds, microseconds = match.groups()
    duration = timedelta(seconds=int(seconds), microseconds=int(microseconds))
    return -duration if sign else duration


def literal(choices: list[tuple[Any, JSON]]) -> Converter:
    # Types are part of the keys because True == 1.
    encoded = {(type(value), value): form for value, form in choices}
    decoded = {(type(form), form): value for value, form in choices}
    name = either([show(form) for _, form in choices])

    def find(table: Mapping[Any, Any], value: Any) -> Any:
        try:
            return table[type(value), value]
        except (KeyError, TypeError):
            raise wrong_value(name, value) from None

    return Converter(
        name,
        dump=lambda value: find(encoded, value),
        load=lambda value: find(decoded, value),
        schema={"enum": [form for _, form in choices]},
    )


def enumeration(cls: Any) -> Converter:
    name = cls.__name__
    by_name = any(type(member.value) not in JSON_SCALARS for member in cls)

    def dump(value: Any) -> Any:
        if not isinstance(value, cls):
            raise wrong_type(name, value)
        return value.name if by_name else value.value

    def load(value: Any) -> Any:
        try:
            member = cls[value] if by_name else cls(value)
        except (KeyError, TypeError, ValueError):
            raise wrong_value(name, value) from None
        if type(value) is bool and type(member.value) is not bool:
            raise wrong_value(name, value)
        return member

    # A class with `_missing_`, such as a Flag, has more values than it lists.
    is_listed = cls._missing_.__func__ is Enum._missing_.__func__  # type: ignore[attr-defined]
    values = [member.name if by_name else member.value for member in cls]
    return Converter(name, dump, load, exact=cls, schema={"enum": values} if is_listed else {})


NONE = _native(NoneType, "null")

SCALARS: dict[type, Converter] = {
    NoneType: NONE,
    str: _native(str, "string"),
    bool: _native(bool, "boolean"),
    int: _native(int, "integer"),
    float: _native(float, "number", accepts=(int,)),
    datetime: text(
        datetime,
        write=lambda value: _aware(value).isoformat(),
        read=lambda value: _aware(datetime.fromisoformat(value)),
        form="date-time",
    ),
    date: text(date, write=_write_date, read=date.fromisoformat, form="date"),
    time: text(time, write=_write_time, read=time.fromisoformat, form="time"),
    timedelta: text(timedelta, write=_write_timedelta, read=_read_timedelta, also=(int, float)),
    UUID: text(UUID, write=str, read=UUID, form="uuid"),
    Decimal: text(Decimal, write=str, read=lambda value: Decimal(str(value)), also=(int, float)),
    bytes: text(
        bytes,
        write=lambda value: base64.b64encode(value).decode(),
        read=lambda value: base64.b64decode(value, validate=True),
    ),
}
