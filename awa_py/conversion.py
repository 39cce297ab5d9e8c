"""How one Python value becomes JSON and comes back, decided by its annotation.

`Compiler.compile` turns an annotation into a Converter once, when a handler is registered;
what runs for every job is only the small tree of functions that it made.
"""

import base64
import dataclasses
import enum
import inspect
import json
import re
import sys
import typing
from collections import abc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin
from uuid import UUID

from awa_py.errors import InvalidJob

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]
Convert = Callable[[Any], Any]

_MICROSECOND = timedelta(microseconds=1)
_DECIMAL_SECONDS = re.compile(r"(-?)([0-9]{1,14})\.([0-9]{6})")
_SHOWN_CHARACTERS = 40
_JSON_SCALARS = frozenset({NoneType, bool, int, float, str})


class Mismatch(Exception):
    """A value that does not fit its annotation: what is wrong with it, and where inside the argument."""

    def __init__(self, problem: str, *, near: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.near = near  # the right kind of value with a wrong part: worth more than "must be A or B"
        self.path: list[str | int] = []

    def inside(self, part: str | int) -> "Mismatch":
        self.path.insert(0, part)
        self.near = True
        return self


@dataclass(frozen=True, slots=True)
class Converter:
    """Both directions for one annotation; values whose type is in `plain` pass through unchanged."""

    name: str
    dump: Convert
    load: Convert
    plain: frozenset[type] = frozenset()
    exact: type | None = None


class Compiler:
    """Makes converters, each record and type alias once: they can hold themselves."""

    def __init__(self) -> None:
        self._known: dict[object, Converter] = {}

    def compile(self, hint: Any) -> Converter:
        """The converter for an annotation; one that says nothing about JSON converts like Any."""
        origin, args = get_origin(hint) or hint, get_args(hint)
        if hint is None:
            return _NONE
        if origin in (Union, UnionType):
            return _union([self.compile(member) for member in args])
        if origin is Literal:
            return _literal([(value, self.compile(type(value)).dump(value)) for value in args])
        if origin in _WRAPPERS and args:
            return self.compile(args[0])
        if isinstance(hint, NewType):
            return self.compile(hint.__supertype__)
        if type(origin).__name__ == "TypeAliasType":  # `type X = …`, which typing only has since 3.12
            return self._once(origin, lambda: self.compile(_alias_value(origin)))
        if origin is tuple:
            return self._tuple(args, bare=hint in (tuple, typing.Tuple))  # noqa: UP006
        if isinstance(origin, type):
            return self._class(origin, args)
        return ANY

    def _class(self, cls: Any, args: tuple[Any, ...]) -> Converter:
        if cls in _SCALARS:
            return _SCALARS[cls]
        if cls in _ARRAYS:
            return _array(cls, self.compile(args[0]) if args else ANY)
        if cls in _MAPPINGS:
            key, item = args or (Any, Any)
            return _mapping(cls, self.compile(str if key is Any else key), self.compile(item))
        if issubclass(cls, enum.Enum):
            return _enumeration(cls)
        if issubclass(cls, PurePath):
            return _text(cls, write=str, read=cls)
        if issubclass(cls, dict) and hasattr(cls, "__required_keys__"):
            return self._once(cls, lambda: self._typed_dict(cls))
        if issubclass(cls, tuple) and hasattr(cls, "_field_defaults"):
            return self._once(cls, lambda: self._named_tuple(cls))
        if dataclasses.is_dataclass(cls):
            return self._once(cls, lambda: self._dataclass(cls))
        return ANY

    def _once(self, key: Any, make: Callable[[], Converter]) -> Converter:
        if key not in self._known:
            self._known[key] = Converter(
                key.__name__,
                dump=lambda value: self._known[key].dump(value),
                load=lambda value: self._known[key].load(value),
            )
            self._known[key] = make()
        return self._known[key]

    def _tuple(self, args: tuple[Any, ...], *, bare: bool) -> Converter:
        if bare or any(_is_unpacked(arg) for arg in args):
            return _array(tuple, ANY)
        if len(args) == 2 and args[1] is Ellipsis:
            return _array(tuple, self.compile(args[0]))
        return _fixed_tuple([self.compile(arg) for arg in args])

    def _typed_dict(self, cls: Any) -> Converter:
        hints = hints_of(cls)
        # Under `from __future__ import annotations` __required_keys__ misses what the annotations say.
        said = {name: get_origin(hint) for name, hint in hints.items()}
        required = {name for name in cls.__required_keys__ if said.get(name) is not typing.NotRequired}
        required |= {name for name in said if said[name] is typing.Required}
        fields = {name: self.compile(hint) for name, hint in hints.items()}
        return _record(cls, fields, required, accepts=lambda value: isinstance(value, dict), read=dict, build=dict)

    def _named_tuple(self, cls: Any) -> Converter:
        hints = hints_of(cls)
        fields = {name: self.compile(hints.get(name, Any)) for name in cls._fields}
        required = fields.keys() - cls._field_defaults.keys()
        return _record(cls, fields, required, accepts=_is_exactly(cls), read=cls._asdict, build=cls)

    def _dataclass(self, cls: Any) -> Converter:
        hints = hints_of(cls)
        names = [field.name for field in dataclasses.fields(cls) if field.init]
        needed = {
            name
            for name, parameter in parameters_of(cls).items()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        }
        for name in sorted(needed.difference(names)):
            raise InvalidJob(f'{cls.__name__} cannot be rebuilt: its constructor needs "{name}", not a field')
        fields = {name: self.compile(hints.get(name, Any)) for name in names}
        return _record(
            cls,
            fields,
            needed,
            accepts=_is_exactly(cls),
            read=lambda value: {name: getattr(value, name) for name in names},
            build=cls,
        )


def hints_of(thing: Any) -> dict[str, Any]:
    """The annotations of a function or class, resolved; one that cannot be resolved stays as written."""
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except Exception:  # An annotation is any expression, so resolving it can raise anything.
        owners = reversed(thing.__mro__) if isinstance(thing, type) else (thing,)
        return {name: _resolve(hint, owner) for owner in owners for name, hint in _written(owner).items()}


def parameters_of(function: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """What a function or class is called with; its annotations may be impossible to resolve."""
    if sys.version_info >= (3, 14):
        import annotationlib

        forward = annotationlib.Format.FORWARDREF
        return inspect.signature(function, annotation_format=forward).parameters
    return inspect.signature(function).parameters


def _written(owner: Any) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(owner, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(owner)


def _resolve(hint: Any, owner: Any) -> Any:
    def probe() -> None: ...

    probe.__annotations__ = {"hint": hint}
    try:
        is_class = isinstance(owner, type)
        names = vars(sys.modules[owner.__module__]) if is_class else inspect.unwrap(owner).__globals__
        return typing.get_type_hints(probe, globalns=names, include_extras=True)["hint"]
    except Exception:  # As above.
        return hint


def _alias_value(alias: Any) -> Any:
    try:
        return alias.__value__
    except Exception:  # As above: the right side of `type X = …` is evaluated here.
        return Any


def _is_unpacked(hint: Any) -> bool:
    return (
        isinstance(hint, typing.TypeVarTuple)
        or get_origin(hint) is typing.Unpack
        or getattr(hint, "__unpacked__", False)
    )


def _is_exactly(cls: type) -> Callable[[object], bool]:
    # A subclass's further fields would be lost on the way.
    return lambda value: type(value) is cls


def show(value: object) -> str:
    """A value from JSON, short enough for a message."""
    shown = f'"{value}"' if isinstance(value, str) else repr(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}…"


def _wrong_type(name: str, value: object) -> Mismatch:
    return Mismatch(f"must be {name}, not {'None' if value is None else type(value).__name__}")


def _wrong_value(name: str, value: object) -> Mismatch:
    return Mismatch(f"must be {name}, not {show(value)}", near=True)


def _native(cls: Any, *, accepts: tuple[Any, ...] = ()) -> Converter:
    """A type that JSON has itself; one of `accepts` becomes it when loaded."""
    name = "None" if cls is NoneType else cls.__name__
    bases = (cls, *accepts)

    def dump(value: Any) -> Any:
        if type(value) in bases:
            return value
        if not isinstance(value, bases) or isinstance(value, bool):
            raise _wrong_type(name, value)
        # A subclass, such as a StrEnum's member, is stored as what it is in JSON.
        return str.__str__(value) if cls is str else int(value) if isinstance(value, int) else float(value)

    def load(value: Any) -> Any:
        if type(value) not in bases:
            raise _wrong_type(name, value)
        try:
            return cls(value) if accepts else value
        except OverflowError:
            raise _wrong_value(name, value) from None

    return Converter(name, dump, load, plain=frozenset({cls}), exact=cls)


def _text(cls: Any, *, write: Convert, read: Convert, also: tuple[type, ...] = ()) -> Converter:
    """A type that is a string in JSON; loading takes the JSON types of `also` too."""
    name = cls.__name__

    def dump(value: Any) -> Any:
        if not isinstance(value, cls):
            raise _wrong_type(name, value)
        return write(value)

    def load(value: Any) -> Any:
        if type(value) is not str and type(value) not in also:
            raise _wrong_type(name, value)
        try:
            return read(value)
        except (ValueError, ArithmeticError):
            raise _wrong_value(name, value) from None

    return Converter(name, dump, load, exact=cls)


def _aware(value: datetime) -> datetime:
    if value.utcoffset() is None:
        raise Mismatch("must be an aware datetime, not a naive one: give it a timezone", near=True)
    return value


def _write_date(value: date) -> str:
    if isinstance(value, datetime):
        raise _wrong_type("date", value)
    return value.isoformat()


def _write_time(value: time) -> str:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Mismatch("must be a time without a timezone that depends on the date", near=True)
    return value.isoformat()


def _write_timedelta(value: timedelta) -> int | float | str:
    """Seconds as a number; as a decimal string where a float would lose microseconds (centuries)."""
    microseconds = value // _MICROSECOND
    if microseconds % 1_000_000 == 0:
        return microseconds // 1_000_000
    if abs(microseconds) < 2**53:
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


def _any(value: Any) -> Any:
    """Plain JSON as it is. Keys are checked since json would turn 1 into "1" and not back."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise Mismatch(f"has the key {show(key)}: without an annotation, keys are strings", near=True)
            if type(item) not in _JSON_SCALARS:
                _at(key, _any, item)
    elif isinstance(value, (list, tuple)):
        _each(_any, _JSON_SCALARS, value)
    return value


def _at(part: str | int, convert: Convert, value: Any) -> Any:
    try:
        return convert(value)
    except Mismatch as mismatch:
        raise mismatch.inside(part) from None


def _each(convert: Convert, plain: frozenset[type], values: Iterable[Any]) -> list[Any]:
    converted: list[Any] = []
    try:
        for value in values:
            converted.append(value if type(value) in plain else convert(value))  # noqa: PERF401
    except Mismatch as mismatch:
        raise mismatch.inside(len(converted)) from None
    return converted


def _array(cls: Any, item: Converter) -> Converter:
    accepted: Any
    accepted, build = _ARRAYS[cls]
    name = cls.__name__

    def dump(value: Any) -> Any:
        if not isinstance(value, accepted) or isinstance(value, (str, bytes, bytearray, Mapping)):
            raise _wrong_type(name, value)
        items = _each(item.dump, item.plain, value)
        # Equal sets give equal JSON, in every process: a job's uniqueness is judged by it.
        return sorted(items, key=_sortable) if isinstance(value, abc.Set) else items

    def load(value: Any) -> Any:
        if type(value) is not list:
            raise _wrong_type(name, value)
        items = _each(item.load, item.plain, value)
        try:
            return build(items)
        except TypeError:  # An element of a set that cannot be hashed.
            raise _wrong_value(name, value) from None

    return Converter(name, dump, load, exact=cls)


def _sortable(value: JSON) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


def _fixed_tuple(items: list[Converter]) -> Converter:
    def convert(value: Any, functions: list[Convert], expected: Any) -> list[Any]:
        if not isinstance(value, expected):
            raise _wrong_type("tuple", value)
        if len(value) != len(items):
            raise Mismatch(f"must have {len(items)} items, not {len(value)}", near=True)
        return [_at(index, functions[index], part) for index, part in enumerate(value)]

    dumps, loads = [item.dump for item in items], [item.load for item in items]
    return Converter(
        "tuple",
        dump=lambda value: convert(value, dumps, tuple),
        load=lambda value: tuple(convert(value, loads, list)),
        exact=tuple,
    )


def _mapping(cls: Any, key: Converter, item: Converter) -> Converter:
    name = cls.__name__

    def dump(value: Any) -> Any:
        if not isinstance(value, cls):
            raise _wrong_type(name, value)
        return {
            dump_key(part): entry if type(entry) in item.plain else _at(str(part), item.dump, entry)
            for part, entry in value.items()
        }

    def load(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong_type(name, value)
        return {
            load_key(part): entry if type(entry) in item.plain else _at(part, item.load, entry)
            for part, entry in value.items()
        }

    def dump_key(part: Any) -> str:
        if type(part) is str and str in key.plain:
            return part
        try:
            encoded = key.dump(part)
            written = encoded if type(encoded) is str else json.dumps(encoded)
            if load_key(written) == part:
                return written
        except Mismatch:
            pass
        raise Mismatch(f"has the key {show(part)}: a key must be {key.name}", near=True)

    def load_key(part: str) -> Any:
        try:
            return key.load(part)
        except Mismatch:
            pass
        try:
            return key.load(json.loads(part))
        except (Mismatch, ValueError):
            raise Mismatch(f"has the key {show(part)}: a key must be {key.name}", near=True) from None

    return Converter(name, dump, load, exact=cls)


def _record(
    cls: Any,
    fields: Mapping[str, Converter],
    required: abc.Set[str],
    *,
    accepts: Callable[[object], bool],
    read: Convert,
    build: Callable[..., Any],
) -> Converter:
    """An object with named parts: a dataclass, a NamedTuple or a TypedDict."""
    name = cls.__name__
    dumps = {field: converter.dump for field, converter in fields.items()}
    loads = {field: converter.load for field, converter in fields.items()}

    def convert(parts: Mapping[str, Any], functions: Mapping[str, Convert]) -> dict[str, Any]:
        for field in parts:
            if field not in functions:
                raise Mismatch(f"has an unexpected {show(field)}", near=True)
        for field in fields:
            if field in required and field not in parts:
                raise Mismatch(f"is missing {show(field)}", near=True)
        return {field: _at(field, functions[field], part) for field, part in parts.items()}

    def dump(value: Any) -> Any:
        if not accepts(value):
            raise _wrong_type(name, value)
        return convert(read(value), dumps)

    def load(value: Any) -> Any:
        if type(value) is not dict:
            raise _wrong_type(name, value)
        parts = convert(value, loads)
        try:
            return build(**parts)
        except (TypeError, ValueError) as error:
            raise Mismatch(f"cannot become {name}: {error}", near=True) from error

    return Converter(name, dump, load, exact=cls)


def optional(converter: Converter) -> Converter:
    """The same, and None."""
    return _union([converter, _NONE])


def _union(members: list[Converter]) -> Converter:
    name = _either([member.name for member in members])
    plain = frozenset[type]().union(*(member.plain for member in members))
    is_ambiguous = sum(not member.plain for member in members) > 1 or not plain <= {NoneType}

    def dump(value: Any) -> Any:
        if type(value) in plain:
            return value
        mismatches = []
        for member in sorted(members, key=lambda member: member.exact is not type(value)):
            try:
                encoded = member.dump(value)
            except Mismatch as mismatch:
                mismatches.append(mismatch)
                continue
            back = reader(encoded) if is_ambiguous else member
            if back is not member:
                raise Mismatch(
                    f"is {member.name}, but would come back as {back.name}: annotate it {member.name} alone",
                    near=True,
                )
            return encoded
        raise closest(mismatches, value)

    def load(value: Any) -> Any:
        return value if type(value) in plain else attempt(value)[1]

    def reader(value: Any) -> Converter:
        return next((member for member in members if type(value) in member.plain), None) or attempt(value)[0]

    def attempt(value: Any) -> tuple[Converter, Any]:
        mismatches = []
        for member in members:
            try:
                return member, member.load(value)
            except Mismatch as mismatch:
                mismatches.append(mismatch)
        raise closest(mismatches, value)

    def closest(mismatches: list[Mismatch], value: Any) -> Mismatch:
        near = [mismatch for mismatch in mismatches if mismatch.near]
        return near[0] if len(near) == 1 else _wrong_type(name, value)

    return Converter(name, dump, load, plain)


def _literal(choices: list[tuple[Any, JSON]]) -> Converter:
    # Types are part of the keys because True == 1.
    encoded = {(type(value), value): form for value, form in choices}
    decoded = {(type(form), form): value for value, form in choices}
    name = _either([show(form) for _, form in choices])

    def find(table: Mapping[Any, Any], value: Any) -> Any:
        try:
            return table[type(value), value]
        except (KeyError, TypeError):
            raise _wrong_value(name, value) from None

    return Converter(name, dump=lambda value: find(encoded, value), load=lambda value: find(decoded, value))


def _enumeration(cls: Any) -> Converter:
    name = cls.__name__
    by_name = any(type(member.value) not in _JSON_SCALARS for member in cls)

    def dump(value: Any) -> Any:
        if not isinstance(value, cls):
            raise _wrong_type(name, value)
        return value.name if by_name else value.value

    def load(value: Any) -> Any:
        try:
            member = cls[value] if by_name else cls(value)
        except (KeyError, TypeError, ValueError):
            raise _wrong_value(name, value) from None
        if type(value) is bool and type(member.value) is not bool:
            raise _wrong_value(name, value)
        return member

    return Converter(name, dump, load, exact=cls)


def _either(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


ANY = Converter("JSON", dump=_any, load=lambda value: value, plain=_JSON_SCALARS)
_NONE = _native(NoneType)

_WRAPPERS = tuple(
    getattr(typing, name)
    for name in ("Annotated", "Required", "NotRequired", "ReadOnly", "Final", "ClassVar")
    if hasattr(typing, name)
)

_SCALARS: dict[type, Converter] = {
    NoneType: _NONE,
    str: _native(str),
    bool: _native(bool),
    int: _native(int),
    float: _native(float, accepts=(int,)),
    datetime: _text(
        datetime,
        write=lambda value: _aware(value).isoformat(),
        read=lambda text: _aware(datetime.fromisoformat(text)),
    ),
    date: _text(date, write=_write_date, read=date.fromisoformat),
    time: _text(time, write=_write_time, read=time.fromisoformat),
    timedelta: _text(timedelta, write=_write_timedelta, read=_read_timedelta, also=(int, float)),
    UUID: _text(UUID, write=str, read=UUID),
    Decimal: _text(Decimal, write=str, read=lambda value: Decimal(str(value)), also=(int, float)),
    bytes: _text(
        bytes,
        write=lambda value: base64.b64encode(value).decode(),
        read=lambda text: base64.b64decode(text, validate=True),
    ),
}

# What is accepted for the annotation, and what its handler gets.
_ARRAYS: dict[type, tuple[type, Callable[[list[Any]], Any]]] = {
    list: (list, list),
    tuple: (tuple, tuple),
    set: (set, set),
    frozenset: (frozenset, frozenset),
    abc.Sequence: (abc.Sequence, list),
    abc.MutableSequence: (abc.MutableSequence, list),
    abc.Collection: (abc.Collection, list),
    abc.Iterable: (abc.Collection, list),
    abc.Set: (abc.Set, frozenset),
    abc.MutableSet: (abc.MutableSet, set),
}
_MAPPINGS = frozenset({dict, abc.Mapping, abc.MutableMapping})
