"""Build converters, which turn Python values into JSON and back, from annotations.

This happens once, when a handler is registered. For each job, only the functions of the converters run.
"""

import dataclasses
import enum
import typing
from collections.abc import Callable
from pathlib import PurePath
from types import UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin

from awa_py.arguments.annotations import alias_value, hints_of, is_unpacked, parameters_of
from awa_py.arguments.composites import ANY, ARRAYS, MAPPINGS, array, fixed_tuple, mapping, record, union
from awa_py.arguments.converters import NONE, SCALARS, Converter, enumeration, literal, text
from awa_py.errors import InvalidJob

_WRAPPERS = tuple(
    getattr(typing, name)
    for name in ("Annotated", "Required", "NotRequired", "ReadOnly", "Final", "ClassVar")
    if hasattr(typing, name)
)


class ConverterBuilder:
    """Builds converters. Each record and type alias is built once: they may contain themselves."""

    def __init__(self) -> None:
        self._known: dict[object, Converter] = {}

    def build(self, hint: Any) -> Converter:
        """Return the converter for an annotation. An annotation without a JSON form is treated as Any."""
        origin, args = get_origin(hint) or hint, get_args(hint)
        if hint is None:
            return NONE
        if origin in (Union, UnionType):
            return union([self.build(member) for member in args])
        if origin is Literal:
            return literal([(value, self.build(type(value)).dump(value)) for value in args])
        if origin in _WRAPPERS and args:
            return self.build(args[0])
        if isinstance(hint, NewType):
            return self.build(hint.__supertype__)
        if type(origin).__name__ == "TypeAliasType":  # `type X = …`, in typing since 3.12
            return self._once(origin, lambda: self.build(alias_value(origin)))
        if origin is tuple:
            return self._tuple(args, bare=hint in (tuple, typing.Tuple))  # noqa: UP006
        if isinstance(origin, type):
            return self._class(origin, args)
        return ANY

    def _class(self, cls: Any, args: tuple[Any, ...]) -> Converter:
        if cls in SCALARS:
            return SCALARS[cls]
        if cls in ARRAYS:
            return array(cls, self.build(args[0]) if args else ANY)
        if cls in MAPPINGS:
            key, item = args or (Any, Any)
            return mapping(cls, self.build(str if key is Any else key), self.build(item))
        if issubclass(cls, enum.Enum):
            return enumeration(cls)
        if issubclass(cls, PurePath):
            return text(cls, write=str, read=cls)
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
        if bare or any(is_unpacked(arg) for arg in args):
            return array(tuple, ANY)
        if len(args) == 2 and args[1] is Ellipsis:
            return array(tuple, self.build(args[0]))
        return fixed_tuple([self.build(arg) for arg in args])

    def _typed_dict(self, cls: Any) -> Converter:
        hints = hints_of(cls)
        # Under `from __future__ import annotations`, __required_keys__ ignores Required and NotRequired.
        markers = {name: get_origin(hint) for name, hint in hints.items()}
        required = {name for name in cls.__required_keys__ if markers.get(name) is not typing.NotRequired}
        required |= {name for name in markers if markers[name] is typing.Required}
        fields = {name: self.build(hint) for name, hint in hints.items()}
        return record(cls, fields, required, accepts=lambda value: isinstance(value, dict), read=dict, build=dict)

    def _named_tuple(self, cls: Any) -> Converter:
        hints = hints_of(cls)
        fields = {name: self.build(hints.get(name, Any)) for name in cls._fields}
        required = fields.keys() - cls._field_defaults.keys()
        return record(cls, fields, required, accepts=_is_exactly(cls), read=cls._asdict, build=cls)

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
            raise InvalidJob(
                f'{cls.__name__} cannot be rebuilt from JSON: its constructor needs "{name}", which is not a field'
            )
        fields = {name: self.build(hints.get(name, Any)) for name in names}
        return record(
            cls,
            fields,
            needed,
            accepts=_is_exactly(cls),
            read=lambda value: {name: getattr(value, name) for name in names},
            build=cls,
        )


def _is_exactly(cls: type) -> Callable[[object], bool]:
    # The additional fields of a subclass would be lost.
    return lambda value: type(value) is cls
